"""One request of a schedule."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from loadgen.workload.prompts import Block


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to come: `t` seconds after the start, what it asks, and when its client leaves (None: never).

    A turn after another (`after`, its id) comes `think_s` after the end of that answer; its `t` is the earliest that
    can be. `input_tokens` is the whole planned prompt as the simulated engine counts it, made of `blocks`. Of
    `output_tokens`, `reasoning_tokens` are thought and not said. `cls` is its class in the scenario. `measured` False
    is warm-up or tail.
    """

    id: int
    t: float
    tenant: str
    priority: str
    cls: str
    session: str = ""
    turn: int = 0
    after: int | None = None
    think_s: float = 0.0
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    max_tokens: int | None = None
    stream: bool = True
    cancel_after_s: float | None = None
    measured: bool
    blocks: tuple[Block, ...]

    @property
    def answer_tokens(self) -> int:
        """Of the planned answer, what its cap lets through."""
        return min(self.output_tokens, self.max_tokens or self.output_tokens)


class Requests(Protocol):
    """Requests in order of time, that can be gone through as often as one likes: in memory, or in a file."""

    def __iter__(self) -> Iterator[Planned]:
        """From the first."""

    def __len__(self) -> int:
        """How many."""
