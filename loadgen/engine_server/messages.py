"""The JSON of `/v1/messages`: Anthropic's named events around the same tokens."""

from collections.abc import Sequence

import msgspec

from loadgen.engine_server.answer import Answer, Segment
from loadgen.engine_server.ask import Ask
from loadgen.engine_server.shapes import STOP_REASONS, Filled, Last, Template, fill, messages_usage

BLOCKS: dict[Segment, dict[str, object]] = {
    Segment.REASONING: {"type": "thinking", "thinking": "", "signature": ""},
    Segment.TEXT: {"type": "text", "text": ""},
    Segment.TOOL: {"type": "tool_use", "input": {}},
}
DELTAS = {
    Segment.REASONING: ("thinking_delta", "thinking"),
    Segment.TEXT: ("text_delta", "text"),
    Segment.TOOL: ("input_json_delta", "partial_json"),
}


class Messages(Filled):
    """One answer, one choice; each segment is a content block."""

    always_counts = True

    def __init__(self, request_id: str, ask: Ask) -> None:
        self.id = f"chatcmpl-{request_id}"
        self.model = ask.model
        self._block = 0

    def usage(self, prompt: int, output: int, cached: int | None, reasoning: int) -> bytes:
        return messages_usage(prompt, output, cached)

    def begin(self, index: int, usage: bytes) -> list[bytes]:
        message = self._message([], None) | {"usage": msgspec.Raw(usage)}
        return [named({"type": "message_start", "message": message})]

    def open(self, index: int, segment: Segment, tool: str | None) -> list[bytes]:
        block = dict(BLOCKS[segment])
        if segment is Segment.TOOL:
            block |= {"id": f"call_{self.id[-24:]}", "name": tool}
        return [named({"type": "content_block_start", "index": self._block, "content_block": block})]

    def around(self, index: int, segment: Segment) -> Template:
        kind, field = DELTAS[segment]
        head = (
            f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{self._block},'
            f'"delta":{{"type":"{kind}","{field}":"'
        )
        return head.encode(), b'"}}\n\n'

    def close(self, index: int, segment: Segment) -> list[bytes]:
        self._block += 1
        return [named({"type": "content_block_stop", "index": self._block - 1})]

    def finish(self, last: Last) -> list[bytes]:
        delta = {"stop_reason": STOP_REASONS[last.answer.finish], "stop_sequence": None}
        end: dict[str, object] = {"type": "message_delta", "delta": delta, "usage": msgspec.Raw(last.usage)}
        around = self.around(last.index, last.segment)
        return [fill(around, last.text, b""), *self.close(last.index, last.segment), named(end)]

    def end(self, usage: bytes) -> list[bytes]:
        return [named({"type": "message_stop"})]

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        answer, given = answers[0]
        blocks: list[dict[str, object]] = []
        if answer.thinking:
            thinking = msgspec.Raw(b'"%b"' % answer.join(Segment.REASONING, given))
            blocks.append(BLOCKS[Segment.REASONING] | {"thinking": thinking})
        text = msgspec.Raw(b'"%b"' % answer.join(Segment.TEXT, given))
        if answer.tool is None:
            blocks.append({"type": "text", "text": text})
        else:
            arguments = msgspec.Raw(msgspec.json.decode(text, type=str).encode())
            blocks.append({"type": "tool_use", "id": f"call_{self.id[-24:]}", "name": answer.tool, "input": arguments})
        return msgspec.json.encode(self._message(blocks, STOP_REASONS[answer.finish]) | {"usage": msgspec.Raw(usage)})

    def _message(self, content: list[dict[str, object]], reason: str | None) -> dict[str, object]:
        head = {"id": self.id, "type": "message", "role": "assistant", "content": content, "model": self.model}
        return {**head, "stop_reason": reason, "stop_sequence": None}


def named(data: dict[str, object]) -> bytes:
    """An event under the name that its type is."""
    return b"event: %b\ndata: %b\n\n" % (str(data["type"]).encode(), msgspec.json.encode(data))
