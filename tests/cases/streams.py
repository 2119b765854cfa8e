"""Streams as engines spell them: JSON without spaces, which is what the relay's short cuts are made for."""

import json
from collections.abc import Sequence

from tests.kit import wire
from tests.kit.script_engine import Script, Step
from tests.kit.stage import Stage

ROUTES = ("chat", "completions", "messages", "responses")
OPENAI = ("chat", "completions")


def compact(event: bytes) -> bytes:
    """The same event without spaces in its JSON; what holds no JSON stays."""
    lines = [_line(line) for line in event.split(b"\n")]
    return b"\n".join(lines)


def _line(line: bytes) -> bytes:
    try:
        value = json.loads(line.removeprefix(b"data: "))
    except ValueError:
        return line
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() if line.startswith(b"data: ") else line


def stream_of(route: str, words: Sequence[str], *, prompt: int = 7, usage: bool | None = None) -> list[bytes]:
    """A good stream; without a usage chunk of its own unless asked for (`messages` and `responses` tell theirs anyway)."""
    asked = route not in OPENAI if usage is None else usage
    return [compact(event) for event in wire.events(route, words, prompt=prompt, with_usage=asked)]


async def tokens(stage: Stage) -> tuple[int, int]:
    """Prompt and output tokens counted so far."""
    by = (await stage.gateway.metrics()).by("forebay_tokens_total", "kind")
    return round(by.get("prompt", 0)), round(by.get("output", 0))


def saying(steps: Sequence[Step]) -> Script:
    """An engine that answers everything with these."""
    return lambda seen: steps
