"""The OpenAI dialect in answers: chat and completion chunks, response events, usage.

A chunk is a TOKEN when its delta has content, reasoning or part of a tool call; role-only, empty and usage chunks are
not (loadgen.md 6.1). The strippable usage chunk is exactly `choices: []` with a usage object (http.md 6.4).
"""

from typing import Final

from gateway.dialects.facts import (
    EventFacts,
    EventKind,
    Object,
    Usage,
    as_count,
    as_object,
    as_objects,
    as_status,
    is_text,
)

_ERROR: Final = EventKind.ERROR
_ABORT: Final = EventKind.ABORT
_END: Final = EventKind.END
_USAGE: Final = EventKind.USAGE
_TOKEN: Final = EventKind.TOKEN
_OTHER: Final = EventKind.OTHER
_TEXTS: Final = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal")
_PLAIN_TAILS: Final = (
    b'"finish_reason":null}]}\n\n',
    b'"usage":null}\n\n',  # SGLang writes it into every chunk
)
_RESPONSE_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")


def chunk_facts(event: bytes, data: Object, raw: bytes) -> EventFacts:
    """Facts of one chat or completions event; `event` is its event field, `raw` its data."""
    error = data.get("error")
    usage = usage_of(data.get("usage"))
    if error or event == b"error" or data.get("object") == "error":
        inner = as_object(error)
        status = as_status(inner.get("code"), inner.get("status"), data.get("code"), data.get("status"))
        return EventFacts(kind=_ERROR, status=status, error=raw, usage=usage)
    return EventFacts(kind=_chunk_kind(data, usage), usage=usage)


def response_facts(event: bytes, data: Object, raw: bytes) -> EventFacts:
    """Facts of one event of the responses route."""
    kind = data.get("type")
    if data.get("error") or kind == "error" or event == b"error":
        inner = as_object(data.get("error"))
        status = as_status(inner.get("code"), inner.get("status"), data.get("code"), data.get("status"))
        return EventFacts(kind=_ERROR, status=status, error=raw)
    response = as_object(data.get("response"))
    usage = usage_of(response.get("usage"))
    if kind in _RESPONSE_ENDS:
        return EventFacts(kind=_END, usage=usage, failed=kind == "response.failed")
    if isinstance(kind, str) and kind.endswith(".delta") and is_text(data.get("delta")):
        return EventFacts(kind=_TOKEN, usage=usage)
    return EventFacts(kind=_OTHER, usage=usage)


def usage_of(value: object) -> Usage | None:
    """Usage of chat, completions, embeddings (prompt/completion) and responses (input/output)."""
    if not isinstance(value, dict):
        return None
    usage = as_object(value)
    details = as_object(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    return Usage(
        as_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        as_count(details.get("cached_tokens")),
        as_count(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def _chunk_kind(data: Object, usage: Usage | None) -> EventKind:
    choices = data.get("choices")
    if choices == [] and usage is not None:
        return _USAGE
    found = _OTHER
    for choice in as_objects(choices):
        if choice.get("finish_reason") == "abort":
            return _ABORT
        if _bears_token(choice):
            found = _TOKEN
    return found


def _bears_token(choice: Object) -> bool:
    if is_text(choice.get("text")):
        return True
    delta = as_object(choice.get("delta"))
    for name in _TEXTS:
        if is_text(delta.get(name)):
            return True
    return bool(as_object(delta.get("function_call")))


def watch_chunks(events: bytes) -> bool:
    """May these events of chat or completions hold an end, an error, an abort or usage, or the last, empty, delta?

    One line with such a tail holds neither end nor usage, and there is no need to look for them. (`find`, for `in`
    takes its argument for a number first, and the exception it drops costs ten times the search.)
    """
    if events.find(b"error") >= 0 or events.find(b'"abort"') >= 0:
        return True
    if events.endswith(_PLAIN_TAILS) and events.count(b"\n") == 2:
        return False
    if events.find(b"[DONE]") >= 0:
        return True
    if events.count(b'"finish_reason"') != events.count(b'"finish_reason":null'):
        return True
    return events.count(b'"usage"') != events.count(b'"usage":null')


def watch_responses(events: bytes) -> bool:
    """The same for the responses route; `response.c` is created and completed, `.in` in_progress and incomplete."""
    find = events.find
    return find(b"response.c") >= 0 or find(b"response.in") >= 0 or find(b"response.f") >= 0 or find(b"error") >= 0
