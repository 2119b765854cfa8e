"""What one whole SSE event of an answer means, and a cheap way to know that a read needs no look at all.

Events come as whole blocks of bytes; their bytes are never changed here. Lines end at LF, CR and CRLF only (bytes'
`splitlines`, never text's). An end marker is an own data line, never text inside an answer. Data that is not JSON is an
event like any other, marked `garbled`. `watch` decides per read: False means no event in it ends, fails, or tells usage; then
`tokens_in` says how many bear a token.
"""

import json
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.dialects import anthropic, openai
from gateway.dialects.decoded import Answer, PlainAnswer
from gateway.dialects.facts import BodyFacts, EventFacts, EventKind, Object, Usage, as_object, as_objects
from gateway.dialects.routes import Dialect, Route

__all__ = ["BodyFacts", "EventFacts", "EventKind", "Usage", "read_body", "read_event", "tokens_in", "watch"]

_COMMENT: Final = EventFacts(kind=EventKind.COMMENT)
_OTHER: Final = EventFacts(kind=EventKind.OTHER)
_GARBLED: Final = EventFacts(kind=EventKind.OTHER, garbled=True)
_END: Final = EventFacts(kind=EventKind.END)
_OPENAI: Final = Dialect.OPENAI
_ANTHROPIC: Final = Dialect.ANTHROPIC
_ERROR: Final = EventKind.ERROR
_BOM: Final = b"\xef\xbb\xbf"

Reader = Callable[[bytes, Object, bytes], EventFacts]
_any: Final = msgspec.json.Decoder().decode
_plain_answer: Final = msgspec.json.Decoder(PlainAnswer).decode
_answer: Final = msgspec.json.Decoder(Answer).decode
_UNREADABLE: Final = object()
# Once in each event that bears a token. No text can hold one: the quote would be written \\".
_TOKEN_MARKS: Final = {
    "chat": b'"choices"',
    "completions": b'"choices"',
    "messages": b'"content_block_delta"',
    "responses": b'.delta"',
}


def read_event(route: Route, event: bytes) -> EventFacts:
    """Facts of one whole event (its closing empty line may be missing at the end of a stream). Never raises."""
    name, data = _parse(event)
    if data is None:
        return _without_data(name, event)
    if data == b"[DONE]":
        return _END if route.name in ("chat", "completions") else _OTHER
    value = _decode(data)
    if value is _UNREADABLE:
        failed = EventFacts(kind=_ERROR, error=data, garbled=True)
        return failed if name == b"error" else _GARBLED
    return _reader(route)(name, as_object(value), data)


def read_body(route: Route, body: bytes) -> BodyFacts:
    """Facts of a whole unstreamed answer. Never raises: what cannot be read has no usage."""
    try:
        if route.dialect is _OPENAI and route.name != "responses":
            return _plain_facts(_plain_answer(body))
        answer = _answer(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _loose_body(route, body)
    return _body_facts(route, answer.usage, answer.stop_reason, [choice.finish_reason for choice in answer.choices])


def watch(route: Route) -> Callable[[bytes], bool]:
    """A test for whole events of this route: True when they must be read one by one. May be wrong only in being True."""
    if route.dialect is _ANTHROPIC:
        return anthropic.watch_messages
    return openai.watch_responses if route.name == "responses" else openai.watch_chunks


def tokens_in(route: Route, events: bytes) -> int:
    """How many of these events bear a token, where `watch` has found nothing in them."""
    return events.count(_TOKEN_MARKS[route.name])


def _reader(route: Route) -> Reader:
    if route.dialect is _ANTHROPIC:
        return anthropic.message_facts
    return openai.response_facts if route.name == "responses" else openai.chunk_facts


def _parse(event: bytes) -> tuple[bytes, bytes | None]:
    """The event field and the joined data lines; None where the event has no data line."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event.find(b"\r") < 0:
        return b"", event[6:-2]  # the usual one: one line of data and an empty one
    name = b""
    data: list[bytes] = []
    for line in event.removeprefix(_BOM).splitlines():
        field, colon, value = line.partition(b":")
        if colon and value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return name, b"\n".join(data) if data else None


def _without_data(name: bytes, event: bytes) -> EventFacts:
    if name == b"error":
        return EventFacts(kind=_ERROR)
    lines = event.removeprefix(_BOM).splitlines()
    return _COMMENT if all(line[:1] in (b":", b"") for line in lines) else _OTHER


def _decode(data: bytes) -> object:
    """The value of JSON data. The stdlib reads what msgspec refuses: NaN, and half a surrogate in an error's text."""
    try:
        return _any(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return _UNREADABLE
    return value


def _plain_facts(answer: PlainAnswer) -> BodyFacts:
    told = answer.usage
    usage = None
    if told is not None:
        details = told.prompt_tokens_details
        cached = details.cached_tokens if details is not None else None
        usage = Usage(told.prompt_tokens, cached, told.completion_tokens)
    choices = answer.choices
    if len(choices) == 1:
        return BodyFacts(usage=usage, aborted=choices[0].finish_reason == "abort")
    return BodyFacts(usage=usage, aborted=any(choice.finish_reason == "abort" for choice in choices))


def _loose_body(route: Route, body: bytes) -> BodyFacts:
    answer = as_object(_decode(body))
    reasons = [choice.get("finish_reason") for choice in as_objects(answer.get("choices"))]
    return _body_facts(route, answer.get("usage"), answer.get("stop_reason"), reasons)


def _body_facts(route: Route, usage: object, stop_reason: object, finish_reasons: list[object]) -> BodyFacts:
    of = anthropic.usage_of if route.dialect is _ANTHROPIC else openai.usage_of
    return BodyFacts(usage=of(usage), aborted=stop_reason == "abort" or "abort" in finish_reasons)
