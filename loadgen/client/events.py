"""What an event or a whole answer of each API says: does it bear tokens, has it finished, what was counted, what broke.

Values whose type servers disagree on (a content that is a list, a code that is a number) are read as whatever they
are: only whether they are there counts.
"""

from typing import Any

import msgspec

from loadgen.client.values import Api
from loadgen.report.record import Sample

NOTHING, THOUGHT, CONTENT = 0, 1, 2  # what an event bears: no token, reasoning only, content


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Of every API: OpenAI's two shapes, and Anthropic's, which counts what the cache held apart."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Cached | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Function(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Said(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: list[_ToolCall] | None = None

    def bears(self) -> int:
        if self.content or self.refusal:
            return CONTENT
        if self.reasoning or self.reasoning_content:
            return THOUGHT
        calls = [call.function for call in self.tool_calls or () if call.function is not None]
        return CONTENT if any(call.name or call.arguments for call in calls) else NOTHING


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None
    text: Any = None
    finish_reason: Any = None


class _Completion(msgspec.Struct):
    """An event or a whole answer of chat and completions."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str = ""
    message: Any = None


class _Delta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None


class _Part(msgspec.Struct):
    text: Any = None


class _Begun(msgspec.Struct):
    usage: _Usage | None = None


class _Messages(msgspec.Struct):
    """An event or a whole answer of `/v1/messages`."""

    type: str = ""
    message: _Begun | None = None
    content: list[_Part] | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: Any = None
    stop_reason: Any = None


class _Output(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None


class _Response(msgspec.Struct):
    """A whole answer of `/v1/responses`."""

    status: str = ""
    output: list[_Output] | None = None
    usage: _Usage | None = None
    error: Any = None


class _ResponseEvent(msgspec.Struct):
    type: str = ""
    delta: Any = None
    response: _Response | None = None
    error: Any = None
    code: Any = None
    message: Any = None


_completion = msgspec.json.Decoder(_Completion)
_messages = msgspec.json.Decoder(_Messages)
_response = msgspec.json.Decoder(_Response)
_response_event = msgspec.json.Decoder(_ResponseEvent)


class Events:
    """Reads the events of one answer, or all of it at once; what usage says goes to the sample.

    `finished`: it said why it ended. `marked`: its end mark came. `error`: what it said went wrong, "" nothing.
    """

    __slots__ = ("_said", "_sample", "error", "event", "finished", "marked", "whole")

    def __init__(self, api: Api, sample: Sample, said: list[str] | None = None) -> None:
        """`said` gets the text of the answer, without what was thought. `event(payload)` says what it bears and `whole(body)` reads an answer at once; both may raise
        `msgspec.DecodeError` or UnicodeDecodeError."""
        self._sample = sample
        self._said = said
        self.finished = self.marked = False
        self.error = ""
        self.event, self.whole = {
            "chat": (self._chat, self._whole_completion),
            "completions": (self._chat, self._whole_completion),
            "messages": (self._message, self._whole_message),
            "responses": (self._response, self._whole_response),
        }[api]

    def _chat(self, payload: bytes) -> int:
        if payload == b"[DONE]":
            self.marked = True
            return NOTHING
        chunk = _completion.decode(payload)
        self._completed(chunk)
        bears = NOTHING
        for choice in chunk.choices or ():
            if choice.delta is not None:
                bears = max(bears, choice.delta.bears())
                self._say(choice.delta.content)
            elif choice.text:
                bears = CONTENT
                self._say(choice.text)
        return bears

    def _whole_completion(self, body: bytes) -> None:
        completion = _completion.decode(body)
        self._completed(completion)
        for choice in completion.choices or ():
            self._say(choice.message.content if choice.message is not None else choice.text)
        self.marked = True

    def _say(self, text: object) -> None:
        if self._said is not None and isinstance(text, str):
            self._said.append(text)

    def _completed(self, chunk: _Completion) -> None:
        if chunk.usage is not None:
            self._count(chunk.usage)
        if chunk.error or chunk.object == "error":
            self.error = words(chunk.error or chunk.message)
        for choice in chunk.choices or ():
            self._ends(choice.finish_reason)

    def _message(self, payload: bytes) -> int:
        event = _messages.decode(payload)
        kind, delta = event.type, event.delta
        if kind == "content_block_delta" and delta is not None:
            self._say(delta.text)
            if delta.text or delta.partial_json:
                return CONTENT
            return THOUGHT if delta.thinking else NOTHING
        if kind == "message_start" and event.message is not None and event.message.usage is not None:
            self._count(event.message.usage)
        elif kind == "message_delta" and delta is not None:
            self._ends(delta.stop_reason)
            if event.usage is not None:
                self._count(event.usage)
        elif kind == "error":
            self.error = words(event.error)
        self.marked = self.marked or kind == "message_stop"
        return NOTHING

    def _whole_message(self, body: bytes) -> None:
        message = _messages.decode(body)
        if message.usage is not None:
            self._count(message.usage)
        if message.error:
            self.error = words(message.error)
        for block in message.content or ():
            self._say(block.text)
        self._ends(message.stop_reason)
        self.marked = True

    def _response(self, payload: bytes) -> int:
        if payload == b"[DONE]":
            return NOTHING
        event = _response_event.decode(payload)
        kind = event.type
        if kind.endswith(".delta"):
            if not event.delta:
                return NOTHING
            if kind == "response.output_text.delta":
                self._say(event.delta)
            return THOUGHT if "reasoning" in kind else CONTENT
        if kind in ("response.completed", "response.incomplete", "response.failed") and event.response is not None:
            self._over(event.response)
        elif kind == "error" or event.error:
            self.error = words(event.error or {"code": event.code, "message": event.message})
        return NOTHING

    def _whole_response(self, body: bytes) -> None:
        response = _response.decode(body)
        for item in response.output or ():
            for part in (item.content or ()) if item.type == "message" else ():
                self._say(part.text)
        self._over(response)

    def _over(self, response: _Response) -> None:
        if response.usage is not None:
            self._count(response.usage)
        if response.error or response.status in ("failed", "cancelled"):
            self.error = words(response.error or response.status)
        self.finished = self.marked = response.status in ("completed", "incomplete")

    def _ends(self, reason: object) -> None:
        if reason == "abort":
            self.error = "abort"
        self.finished = self.finished or bool(reason)

    def _count(self, usage: _Usage) -> None:
        sample = self._sample
        if usage.prompt_tokens is not None:
            sample.prompt_tokens = usage.prompt_tokens
        elif usage.input_tokens is not None:
            apart = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
            sample.prompt_tokens = usage.input_tokens + apart
        output = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
        sample.output_tokens = sample.output_tokens if output is None else output
        details = usage.prompt_tokens_details or usage.input_tokens_details
        cached = details.cached_tokens if details is not None else usage.cache_read_input_tokens
        sample.cached_tokens = sample.cached_tokens if cached is None else cached


def words(error: object) -> str:
    """The code of an error, else what it says; both where the code is a number (vLLM). At most 80 characters."""
    if isinstance(error, dict):
        code, said = error.get("code"), error.get("message") or error.get("type")
        number = str(code) if str(code).isdigit() else ""
        error = f"{number} {said or ''}".strip() if number else code or said or "an error without a word"
    return str(error)[:80]
