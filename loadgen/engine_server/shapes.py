"""The JSON that vLLM answers with, per route: stream events and whole bodies. Field order is vLLM's.

Events are cut from templates made once per answer, so that a token costs a join of bytes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from loadgen.engine_server.answer import Answer, Segment
from loadgen.engine_server.ask import Ask

DONE = b"data: [DONE]\n\n"
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "abort": "abort"}
TEXT = "\x01"  # stands for the text in a template
Template = tuple[bytes, bytes]


def template(event: dict[str, object]) -> Template:
    """What stands before and after the text of an event."""
    before, after = msgspec.json.encode(event).split(rb"\u0001")
    return b"data: " + before, after + b"\n\n"


def fill(parts: Template, text: bytes, usage: bytes) -> bytes:
    """An event from its template; `usage` becomes its last field unless it is empty."""
    if usage:
        return b"".join((parts[0], text, parts[1][:-3], b',"usage":', usage, b"}\n\n"))
    return parts[0] + text + parts[1]


class Shape(Protocol):
    """How one route spells an answer. Methods return whole events, each to be one HTTP chunk.

    `always_counts`: usage, with what came from the cache, belongs to its events whether it was asked for or not.
    `shows_cached`: what came from the cache is told whatever the engine's flags are. `steady`: within a segment the events of
    tokens differ in their text alone, which `around` is put around.
    """

    always_counts: bool
    shows_cached: bool
    steady: bool

    def usage(self, prompt: int, output: int, cached: int | None, reasoning: int) -> bytes:
        """The usage object; `cached` None leaves out what came from the cache."""

    def begin(self, index: int, usage: bytes) -> list[bytes]:
        """Events that come with the first token of choice `index`, before it."""

    def open(self, index: int, segment: Segment, tool: str | None) -> list[bytes]:
        """Events that begin a segment."""

    def around(self, index: int, segment: Segment) -> Template:
        """What stands around the text of a token's event in the open segment."""

    def token(self, index: int, around: Template, text: bytes, usage: bytes) -> bytes:
        """The event of tokens that are more than one or bring usage with them."""

    def close(self, index: int, segment: Segment) -> list[bytes]:
        """Events that end a segment."""

    def finish(self, last: "Last") -> list[bytes]:
        """The last token of a choice and why it ended."""

    def end(self, usage: bytes) -> list[bytes]:
        """Events after the last choice; `usage` empty if it was not asked for."""

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        """The body of an answer that is not streamed: answer and how many of its tokens are given, per choice."""


@dataclass(slots=True, kw_only=True)
class Last:
    """The end of choice `index`: the text that is still to be given, in which segment, and the usage that goes with it."""

    index: int
    segment: Segment
    text: bytes
    answer: Answer
    usage: bytes


class Filled:
    """Events that are cut from templates, and usage only where it is asked for."""

    always_counts = False
    shows_cached = False
    steady = True

    def token(self, index: int, around: Template, text: bytes, usage: bytes) -> bytes:
        return fill(around, text, usage)


class Unframed:
    """Tokens alone: no events of their own begin, open or close them."""

    def begin(self, index: int, usage: bytes) -> list[bytes]:
        return []

    def open(self, index: int, segment: Segment, tool: str | None) -> list[bytes]:
        return []

    def close(self, index: int, segment: Segment) -> list[bytes]:
        return []


def usage_object(prompt: int, output: int, cached: int | None, reasoning: int) -> bytes:
    """The `usage` of the OpenAI routes; `cached` None leaves the details out."""
    usage: dict[str, object] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return msgspec.json.encode(usage)


def messages_usage(prompt: int, output: int, cached: int | None) -> bytes:
    """The `usage` of `/v1/messages`: input without what came from the cache."""
    usage = {"input_tokens": prompt - (cached or 0), "output_tokens": output}
    if cached is not None:
        usage |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
    return msgspec.json.encode(usage)


class OpenAIUsage(Filled):
    """Usage as vLLM's OpenAI routes have it."""

    def usage(self, prompt: int, output: int, cached: int | None, reasoning: int) -> bytes:
        return usage_object(prompt, output, cached, reasoning)


class Chat(OpenAIUsage):
    """`/v1/chat/completions`."""

    def __init__(self, request_id: str, ask: Ask) -> None:
        self.id = f"chatcmpl-{request_id}"
        self.model = ask.model
        self.created = int(time.time())

    def begin(self, index: int, usage: bytes) -> list[bytes]:
        choice = self._choice(index, {"role": "assistant", "content": ""}, None)
        del choice["token_ids"]
        event = self._envelope([choice]) | {"prompt_token_ids": None}
        return [event_of(event | usage_field(usage))]

    def open(self, index: int, segment: Segment, tool: str | None) -> list[bytes]:
        if segment is not Segment.TOOL:
            return []
        function = {"name": tool, "arguments": ""}
        call = {"id": f"call_{self.id[-24:]}{index}", "type": "function", "index": 0, "function": function}
        return [event_of(self._envelope([self._choice(index, {"tool_calls": [call]}, None)]))]

    def around(self, index: int, segment: Segment) -> Template:
        return template(self._token(index, segment, None))

    def close(self, index: int, segment: Segment) -> list[bytes]:
        return []

    def finish(self, last: Last) -> list[bytes]:
        around = template(self._token(last.index, last.segment, last.answer.finish))
        return [fill(around, last.text, last.usage)]

    def end(self, usage: bytes) -> list[bytes]:
        return [event_of(self._envelope([]) | usage_field(usage)), DONE] if usage else [DONE]

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        choices = [self._message(index, *entry) for index, entry in enumerate(answers)]
        body = self._envelope(choices) | {"object": "chat.completion", "service_tier": None, "system_fingerprint": None}
        body |= usage_field(usage) | {"prompt_logprobs": None, "prompt_token_ids": None, "kv_transfer_params": None}
        return msgspec.json.encode(body)

    def _message(self, index: int, answer: Answer, given: int) -> dict[str, object]:
        text = plain(answer.join(Segment.TEXT, given))
        calls = []
        if answer.tool is not None:
            function = {"name": answer.tool, "arguments": text}
            calls = [{"id": f"call_{self.id[-24:]}{index}", "type": "function", "function": function}]
        message = {
            "role": "assistant",
            "content": None if answer.tool is not None else text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": calls,
            "reasoning": plain(answer.join(Segment.REASONING, given)) or None,
        }
        choice = {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish}
        return choice | {"stop_reason": None, "token_ids": None}

    def _token(self, index: int, segment: Segment, reason: str | None) -> dict[str, object]:
        delta: dict[str, object] = {"content": TEXT}
        if segment is Segment.REASONING:
            delta = {"reasoning": TEXT}
        elif segment is Segment.TOOL:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": TEXT}}]}
        return self._envelope([self._choice(index, delta, reason)])

    def _choice(self, index: int, delta: dict[str, object], reason: str | None) -> dict[str, object]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return choice | ({} if reason is None else {"stop_reason": None}) | {"token_ids": None}

    def _envelope(self, choices: list[dict[str, object]]) -> dict[str, object]:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        return {**head, "choices": choices}


class Completions(Unframed, OpenAIUsage):
    """`/v1/completions`."""

    def __init__(self, request_id: str, ask: Ask) -> None:
        self.id = f"cmpl-{request_id}"
        self.model = ask.model
        self.created = int(time.time())

    def around(self, index: int, segment: Segment) -> Template:
        return template(self._token(index, segment, None))

    def finish(self, last: Last) -> list[bytes]:
        around = template(self._token(last.index, last.segment, last.answer.finish))
        return [fill(around, last.text, last.usage)]

    def end(self, usage: bytes) -> list[bytes]:
        return [event_of(self._envelope([]) | usage_field(usage)), DONE] if usage else [DONE]

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        choices = []
        for index, (answer, given) in enumerate(answers):
            text = plain(b"".join(answer.pieces[:given]))
            choices.append(self._choice(index, text, answer.finish) | {"prompt_logprobs": None})
        body = self._envelope(choices) | {"service_tier": None, "system_fingerprint": None}
        return msgspec.json.encode(body | usage_field(usage) | {"kv_transfer_params": None})

    def _token(self, index: int, segment: Segment, reason: str | None) -> dict[str, object]:
        return self._envelope([self._choice(index, TEXT, reason)])

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, object]:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return choice | {"prompt_token_ids": None, "token_ids": None}

    def _envelope(self, choices: list[dict[str, object]]) -> dict[str, object]:
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**head, "choices": choices}


def plain(escaped: bytes) -> str:
    """Text out of a JSON string."""
    return msgspec.json.decode(b'"%b"' % escaped, type=str)


def usage_field(usage: bytes) -> dict[str, object]:
    """The field of an event, if there is any usage to tell."""
    return {"usage": msgspec.Raw(usage)} if usage else {}


def event_of(data: dict[str, object]) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
