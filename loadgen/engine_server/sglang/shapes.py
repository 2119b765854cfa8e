"""The JSON that SGLang answers with, per route. Field order is SGLang's, and so is that fields without a value are null."""

import time
from collections.abc import Sequence

import msgspec

from loadgen.engine_server.answer import Answer, Segment
from loadgen.engine_server.ask import Ask
from loadgen.engine_server.shapes import (
    DONE,
    TEXT,
    Filled,
    Last,
    Template,
    Unframed,
    event_of,
    plain,
    template,
    usage_field,
)

EOS_TOKEN = 128009  # `<|eot_id|>`: what ends an answer that ends by itself
WEIGHTS = {"weight_version": "default"}
NO_USAGE: dict[str, object] = {"usage": None}


def matched(answer: Answer) -> int | str | None:
    """`matched_stop`: the token or the string that ended the answer."""
    by_itself = EOS_TOKEN if answer.finish == "stop" else None
    return by_itself if answer.stopped is None else answer.stopped


class Counting(Filled):
    """Usage: what came from the cache only where that is told and is more than nothing."""

    def usage(self, prompt: int, output: int, cached: int | None, reasoning: int) -> bytes:
        usage: dict[str, object] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached} if cached else None,
            "reasoning_tokens": reasoning,
        }
        return msgspec.json.encode(usage)

    def token(self, index: int, around: Template, text: bytes, usage: bytes) -> bytes:
        """The event of a token; `usage` in the place of its null."""
        return around[0] + text + _with(around[1], usage)


class Chat(Counting):
    """`/v1/chat/completions`. Why the choices ended is said after the last of them."""

    def __init__(self, request_id: str, ask: Ask) -> None:
        self.id = request_id
        self.model = ask.model
        self.created = int(time.time())
        self._ends: list[bytes] = []

    def begin(self, index: int, usage: bytes) -> list[bytes]:
        return [event_of(self._event(index, self._delta(role="assistant", content="")))]

    def open(self, index: int, segment: Segment, tool: str | None) -> list[bytes]:
        if segment is not Segment.TOOL:
            return []
        call = self._call(f"call_{self.id[-24:]}{index}", tool, "")
        return [event_of(self._event(index, self._delta(tool_calls=[call])))]

    def around(self, index: int, segment: Segment) -> Template:
        if segment is Segment.REASONING:
            delta = self._delta(reasoning_content=TEXT)
        elif segment is Segment.TOOL:
            delta = self._delta(tool_calls=[self._call(None, None, TEXT)])
        else:
            delta = self._delta(content=TEXT)
        return template(self._event(index, delta))

    def close(self, index: int, segment: Segment) -> list[bytes]:
        return []

    def finish(self, last: Last) -> list[bytes]:
        end = self._event(last.index, self._delta())
        end["choices"] = [self._choice(last.index, self._delta(), last.answer.finish, matched(last.answer))]
        self._ends.append(event_of(end))
        return [self.token(last.index, self.around(last.index, last.segment), last.text, last.usage)]

    def end(self, usage: bytes) -> list[bytes]:
        counted = [event_of(self._envelope([]) | usage_field(usage))] if usage else []
        return [*self._ends, *counted, DONE]

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        choices = [self._message(index, *entry) for index, entry in enumerate(answers)]
        body = self._envelope(choices) | {"object": "chat.completion"}
        return msgspec.json.encode(body | usage_field(usage) | {"metadata": WEIGHTS})

    def _message(self, index: int, answer: Answer, given: int) -> dict[str, object]:
        text = plain(answer.join(Segment.TEXT, given))
        call = None if answer.tool is None else [self._call(f"call_{self.id[-24:]}{index}", answer.tool, text)]
        message = {
            "role": "assistant",
            "content": text if call is None else None,
            "reasoning_content": plain(answer.join(Segment.REASONING, given)) or None,
            "tool_calls": call,
        }
        choice = {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish}
        return choice | {"matched_stop": matched(answer)}

    def _call(self, call_id: str | None, name: str | None, arguments: str) -> dict[str, object]:
        return {"id": call_id, "index": 0, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _delta(self, **said: object) -> dict[str, object]:
        return {"role": None, "content": None, "reasoning_content": None, "tool_calls": None, **said}

    def _choice(
        self, index: int, delta: dict[str, object], reason: str | None, stop: int | str | None
    ) -> dict[str, object]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return choice | {"matched_stop": stop}

    def _event(self, index: int, delta: dict[str, object]) -> dict[str, object]:
        return self._envelope([self._choice(index, delta, None, None)]) | NO_USAGE

    def _envelope(self, choices: list[dict[str, object]]) -> dict[str, object]:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        return {**head, "choices": choices}


class Completions(Unframed, Counting):
    """`/v1/completions`."""

    def __init__(self, request_id: str, ask: Ask) -> None:
        self.id = request_id
        self.model = ask.model
        self.created = int(time.time())

    def around(self, index: int, segment: Segment) -> Template:
        return template(self._envelope([self._choice(index, TEXT, None)]) | NO_USAGE)

    def finish(self, last: Last) -> list[bytes]:
        around = template(self._envelope([self._choice(last.index, TEXT, last.answer)]) | NO_USAGE)
        return [self.token(last.index, around, last.text, last.usage)]

    def end(self, usage: bytes) -> list[bytes]:
        return [event_of(self._envelope([]) | usage_field(usage)), DONE] if usage else [DONE]

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        choices = [
            self._choice(index, plain(b"".join(answer.pieces[:given])), answer)
            for index, (answer, given) in enumerate(answers)
        ]
        return msgspec.json.encode(self._envelope(choices) | usage_field(usage) | {"metadata": WEIGHTS})

    def _choice(self, index: int, text: str, ended: Answer | None) -> dict[str, object]:
        reason, stop = (None, None) if ended is None else (ended.finish, matched(ended))
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "matched_stop": stop}

    def _envelope(self, choices: list[dict[str, object]]) -> dict[str, object]:
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**head, "choices": choices}


class Generate(Unframed, Filled):
    """The native `/generate`: each event has the whole text so far."""

    always_counts = shows_cached = True
    steady = False

    def __init__(self, request_id: str, ask: Ask) -> None:
        self.id = request_id
        self._said: dict[int, bytes] = {}

    def usage(self, prompt: int, output: int, cached: int | None, reasoning: int) -> bytes:
        counts = {"prompt_tokens": prompt, "completion_tokens": output, "cached_tokens": cached or 0}
        return msgspec.json.encode(counts)

    def around(self, index: int, segment: Segment) -> Template:
        return b"", b""

    def token(self, index: int, around: Template, text: bytes, usage: bytes) -> bytes:
        said = self._said[index] = self._said.get(index, b"") + text
        return event_of(self._out(plain(said), msgspec.json.decode(usage), None) | {"index": index})

    def finish(self, last: Last) -> list[bytes]:
        said = plain(self._said.get(last.index, b"") + last.text)
        return [event_of(self._out(said, msgspec.json.decode(last.usage), last.answer) | {"index": last.index})]

    def end(self, usage: bytes) -> list[bytes]:
        return [DONE]

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        counts = msgspec.json.decode(usage)
        made = []
        for answer, given in answers:
            own = {**counts, "prompt_tokens": answer.prompt_tokens, "completion_tokens": given}
            made.append(self._out(plain(b"".join(answer.pieces[:given])), own, answer))
        return msgspec.json.encode(made[0] if len(made) == 1 else made)

    def _out(self, text: str, counts: dict[str, int], ended: Answer | None) -> dict[str, object]:
        reason = None if ended is None else {"type": ended.finish, **_detail(ended, counts["completion_tokens"])}
        return {"text": text, "meta_info": {"id": self.id, "finish_reason": reason, **WEIGHTS, **counts}}


def _detail(answer: Answer, given: int) -> dict[str, object]:
    """What a finish reason of the native route says beside its type."""
    if answer.finish == "length":
        return {"length": given}
    return {"matched": matched(answer)} if answer.finish == "stop" else {"message": "Aborted"}


def _with(after: bytes, usage: bytes) -> bytes:
    """The end of an event with `usage` instead of `null`."""
    return after.removesuffix(b"null}\n\n") + usage + b"}\n\n" if usage else after
