"""`/v1/responses` (create): its body as a conversation, and the JSON of its answers. Nothing is stored.

Each segment of an answer is an item of its output. Events are numbered, so that none is cut from a template.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loadgen.engine_server.answer import Answer, Segment
from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.messages import named
from loadgen.engine_server.shapes import Last, Template, plain

DELTAS = {
    Segment.REASONING: "response.reasoning_text.delta",
    Segment.TEXT: "response.output_text.delta",
    Segment.TOOL: "response.function_call_arguments.delta",
}


def as_chat(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a chat with the same prompt, or a `Refusal`."""
    given = data.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise Refusal(400, "input: Input should be a valid string or list", "Bad Request", "input")
    said = [_message(item) for item in items]
    if data.get("instructions") is not None:
        said.insert(0, {"role": "system", "content": data["instructions"]})
    return {**data, "messages": said, "max_tokens": data.get("max_output_tokens")}


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call":
        return {"role": "assistant", "tool_calls": [{"function": item}]}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return {"role": item.get("role", "user"), "content": item.get("content")}


class Responses:
    """One answer, one choice."""

    always_counts, shows_cached, steady = True, False, False

    def __init__(self, request_id: str, ask: Ask) -> None:
        self.id = f"resp_{request_id}"
        self.model = ask.model
        self.created = int(time.time())
        self._number = 0
        self._output: list[dict[str, object]] = []  # items that are complete
        self._item: dict[str, object] = {}
        self._said = b""

    def usage(self, prompt: int, output: int, cached: int | None, reasoning: int) -> bytes:
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached or 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": prompt + output,
        }
        return msgspec.json.encode(usage)

    def begin(self, index: int, usage: bytes) -> list[bytes]:
        begun = self._response("in_progress", [], None)
        return [self._event("response.created", response=begun), self._event("response.in_progress", response=begun)]

    def open(self, index: int, segment: Segment, tool: str | None) -> list[bytes]:
        self._item, self._said = self._begun(segment, tool), b""
        events = [self._event("response.output_item.added", output_index=self._place, item=self._item)]
        if segment is Segment.TEXT:
            events.append(self._event("response.content_part.added", **self._where(), part=_part("")))
        return events

    def around(self, index: int, segment: Segment) -> Template:
        return DELTAS[segment].encode(), b""

    def token(self, index: int, around: Template, text: bytes, usage: bytes) -> bytes:
        self._said += text
        kind = around[0].decode()
        where = (
            self._where()
            if kind != DELTAS[Segment.TOOL]
            else {"item_id": self._item["id"], "output_index": self._place}
        )
        more: dict[str, object] = {"logprobs": []} if kind == DELTAS[Segment.TEXT] else {}
        return self._event(kind, **where, delta=plain(text), **more)

    def close(self, index: int, segment: Segment) -> list[bytes]:
        text = plain(self._said)
        events = []
        if segment is Segment.TEXT:
            events.append(self._event("response.output_text.done", **self._where(), text=text, logprobs=[]))
            events.append(self._event("response.content_part.done", **self._where(), part=_part(text)))
        item = self._done(segment, text)
        events.append(self._event("response.output_item.done", output_index=self._place, item=item))
        self._output.append(item)
        return events

    def finish(self, last: Last) -> list[bytes]:
        token = self.token(last.index, self.around(last.index, last.segment), last.text, b"")
        done = self.close(last.index, last.segment)
        whole = self._response(_status(last.answer), self._output, last.usage)
        return [token, *done, self._event("response.completed", response=whole)]

    def end(self, usage: bytes) -> list[bytes]:
        return []

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        answer, given = answers[0]
        output = []
        for segment in (Segment.REASONING, Segment.TEXT if answer.tool is None else Segment.TOOL):
            text = plain(answer.join(segment, given))
            if text or segment is not Segment.REASONING:
                self._item = self._begun(segment, answer.tool)
                self._output.append(self._item)
                output.append(self._done(segment, text))
        return msgspec.json.encode(self._response(_status(answer), output, usage))

    @property
    def _place(self) -> int:
        return len(self._output)

    def _where(self) -> dict[str, object]:
        return {"item_id": self._item["id"], "output_index": self._place, "content_index": 0}

    def _begun(self, segment: Segment, tool: str | None) -> dict[str, object]:
        name = f"{self.id[5:]}{self._place}"
        if segment is Segment.REASONING:
            return {"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
        if segment is Segment.TOOL:
            call = {"id": f"fc_{name}", "type": "function_call", "call_id": f"call_{name}", "name": tool}
            return {**call, "arguments": "", "status": "in_progress"}
        message: dict[str, object] = {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": []}
        return message | {"status": "in_progress"}

    def _done(self, segment: Segment, text: str) -> dict[str, object]:
        said: dict[str, object] = {"content": [_part(text)]}
        if segment is Segment.REASONING:
            said = {"content": [{"type": "reasoning_text", "text": text}]}
        elif segment is Segment.TOOL:
            said = {"arguments": text}
        return {**self._item, **said, "status": "completed"}

    def _response(self, status: str, output: list[dict[str, object]], usage: bytes | None) -> dict[str, object]:
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "model": self.model,
            "object": "response",
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": status,
            "usage": None if usage is None else msgspec.Raw(usage),
        }

    def _event(self, kind: str, **fields: object) -> bytes:
        self._number += 1
        return named({"type": kind, "sequence_number": self._number - 1, **fields})


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _status(answer: Answer) -> str:
    return "completed" if answer.finish in ("stop", "tool_calls") else "incomplete"
