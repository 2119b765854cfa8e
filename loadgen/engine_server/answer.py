"""What a simulated model will say, known before the first token: segments of one-token pieces and why it stops."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random

import msgspec
import xxhash

from loadgen.engine_server import tokens
from loadgen.engine_server.ask import Ask, Marker, Refusal
from loadgen.sim.profile import Profile


class Segment(Enum):
    """Which part of an answer a token belongs to."""

    REASONING = "reasoning"
    TEXT = "text"
    TOOL = "tool"


@dataclass(slots=True, kw_only=True)
class Answer:
    """The whole answer of one sequence. `pieces` are JSON-escaped, one per token; the first `thinking` are reasoning.

    `prompt_tokens` counts the prompt; `text` is the raw text of all pieces, for the prefix chain; `stopped` the stop
    string that ended it, if one did.
    """

    prompt_tokens: int
    pieces: list[bytes]
    thinking: int
    tool: str | None
    finish: str
    text: bytes
    stopped: str | None = None

    def segment(self, position: int) -> Segment:
        """The part that the token at `position` belongs to."""
        if position < self.thinking:
            return Segment.REASONING
        return Segment.TOOL if self.tool is not None else Segment.TEXT

    def join(self, segment: Segment, given: int) -> bytes:
        """The JSON-escaped text of one segment among the first `given` tokens."""
        start, end = (0, self.thinking) if segment is Segment.REASONING else (self.thinking, len(self.pieces))
        return b"".join(self.pieces[start : min(end, given)])


def plan(ask: Ask, prompt: bytes, index: int, profile: Profile, limits: "Limits") -> Answer:
    """Decide the answer number `index` to `prompt`; raises `Refusal` if the prompt does not fit the context."""
    prompt_tokens = tokens.count(prompt)
    room = limits.room(ask, prompt_tokens, limits.context)
    most = room if ask.max_tokens is None else min(ask.max_tokens, room)
    key = xxhash.xxh3_64_intdigest(prompt, (limits.seed + index) & 0xFFFFFFFFFFFFFFFF)
    wanted = _length(ask, key, profile)
    number = max(min(wanted, most), ask.min_tokens, 1)
    raw, thinking, tool = _pieces(ask.marker, _tool(ask), key, number)
    finish = "length" if wanted > most else "tool_calls" if tool else "stop"
    raw, stopped = _stop_at(raw, thinking, ask.stop)
    return Answer(
        prompt_tokens=prompt_tokens,
        pieces=[_escape(piece) for piece in raw] if tool or ask.marker.canary else [piece.encode() for piece in raw],
        thinking=min(thinking, len(raw)),
        tool=tool,
        finish=finish if stopped is None else "stop",
        text="".join(raw).encode(),
        stopped=stopped,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the engine adds to a request: its context length, its seed, and what it has `room` for (request, tokens of its
    prompt, context -> the most tokens of an answer, or a `Refusal`)."""

    context: int
    seed: int
    room: Callable[[Ask, int, int], int]


def room(ask: Ask, prompt_tokens: int, context: int) -> int:
    """By vLLM's rule: prompt and answer fill the context at most."""
    left = context - prompt_tokens
    if left < 1:
        raise _too_long(context, prompt_tokens)
    if ask.max_tokens is not None and ask.max_tokens > left:
        raise _too_long(context, prompt_tokens, ask.max_tokens)
    return left


def _too_long(context: int, prompt: int, output: int | None = None) -> Refusal:
    asked = f"{prompt} input tokens" if output is None else f"{output} output tokens and {prompt} input tokens"
    return Refusal(
        400,
        f"This model's maximum context length is {context} tokens. However, you requested {asked}.",
        param="input_tokens",
    )


def _length(ask: Ask, key: int, profile: Profile) -> int:
    if ask.marker.output is not None:
        return ask.marker.output
    if ask.ignore_eos:
        return 1 << 40
    gauss = Random(key).gauss(0.0, 1.0)
    return max(1, round(profile.output_median * math.exp(profile.output_sigma * gauss)))


def _tool(ask: Ask) -> str | None:
    if ask.marker.tool is not None:
        return ask.marker.tool
    return ask.tools[0] if ask.must_call and ask.tools else None


def _pieces(marker: Marker, tool: str | None, key: int, number: int) -> tuple[list[str], int, str | None]:
    thinking = min(marker.think, number)
    canary = tokens.cut(marker.canary)
    head = canary[: number - thinking]
    raw = tokens.words(key, number - len(head))
    raw[thinking:thinking] = head
    if tool is None:
        return raw, thinking, None
    text = '{"q": "' + "".join(raw[thinking:])
    arguments = tokens.cut(text[: max(0, 4 * (number - thinking) - 2)].rstrip('"') + '"}')
    if number - thinking < 3:  # no room for an argument
        arguments = tokens.cut("{}")
    return raw[:thinking] + arguments, thinking, tool


def _stop_at(raw: list[str], thinking: int, stops: list[str]) -> tuple[list[str], str | None]:
    """Cut the visible text before the first stop string: whole pieces up to it, the last one shortened."""
    if not stops:
        return raw, None
    text = "".join(raw[thinking:])
    found = [(position, stop) for stop in stops if (position := text.find(stop)) >= 0]
    if not found:
        return raw, None
    position, stop = min(found)
    keep = thinking + position // tokens.TOKEN_BYTES
    rest = text[position - position % tokens.TOKEN_BYTES : position]
    return [*raw[:keep], rest], stop


def _escape(piece: str) -> bytes:
    return msgspec.json.encode(piece)[1:-1]
