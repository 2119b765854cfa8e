"""From the recipe of a request to what is said: messages, whatever the API they are sent through.

The length of an answer is asked for in one of four ways. A `marker` is understood by the simulated engine
(--allow-markers): it stands at the end of what the model is to answer, in place of as many tokens, and stays there when
the message comes again as history, so a prompt is the head of the next one byte for byte.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from loadgen.workload.planned import Planned
from loadgen.workload.prompts import ANSWERS, CALLS, TOKEN_BYTES, Block, Prose, Role, grouped

Control = Literal["marker", "ignore_eos", "min_tokens", "none"]
"""What sets the length of an answer: a marker in the prompt, fields of vLLM's, or nothing but the model."""

_NONE: Mapping[int, str] = MappingProxyType({})


class Message(msgspec.Struct, frozen=True):
    """What one role says. Of a `call` it is the argument; of `tools`, what describes them."""

    role: Role
    text: str


def messages(prose: Prose, planned: Planned, control: Control, answers: Mapping[int, str] = _NONE) -> list[Message]:
    """The prompt of `planned`, in order; `answers` are those received so far in its session, by turn.

    An answer that is not there (it failed, or was never asked for) is replaced by planned words of its planned length.
    """
    groups = list(grouped(planned.blocks))
    said = [Message(role, _text(prose, blocks, answers)) for role, blocks in groups]
    if control != "marker":
        return said
    ending = marker(planned.output_tokens, planned.reasoning_tokens)
    for place in range(len(said) - 1, -1, -1):
        role, blocks = groups[place]
        if role in ("user", "tool") and ending:
            said[place] = _ended(said[place], ending)
        answered = role in ("assistant", "call") and not blocks[0].namespace.startswith(CALLS)
        ending = marker(sum(one.tokens for one in blocks)) if answered else ""
    return said


def marker(output_tokens: int, reasoning_tokens: int = 0) -> str:
    """Asks the simulated engine for an answer of exactly that many tokens, the first of them thought; whole tokens."""
    think = f" think={reasoning_tokens}" if reasoning_tokens else ""
    text = f"[[fb out={output_tokens}{think}]]"
    return text + " " * (-len(text) % TOKEN_BYTES)


def _text(prose: Prose, blocks: Sequence[Block], answers: Mapping[int, str]) -> str:
    known = (answers.get(one.id) if one.namespace.startswith(ANSWERS) else None for one in blocks)
    return "".join(prose.text(one) if text is None else text for one, text in zip(blocks, known, strict=True))


def _ended(message: Message, ending: str) -> Message:
    return Message(message.role, message.text[: max(0, len(message.text) - len(ending))] + ending)
