"""What must be known of a schedule before it is sent, found by going through it once: it may be larger than memory."""

from array import array
from collections.abc import Iterable

import msgspec

from loadgen.schedule import Planned, Schedule
from loadgen.workload.prompts import Block
from loadgen.workload.summary import Ideal

SHARED = "/prefix/"  # in the namespace of blocks that many prompts of a scenario begin with

Head = tuple[str, tuple[Block, ...]]
"""A tenant, and the shared blocks its prompts begin with."""


class Longest(msgspec.Struct):
    """Of one tenant's requests: the longest prompt, and the largest sum of prompt and answer with what it is made of.

    `uncapped`: the longest prompt whose answer has no cap of the scenario's, 0 without any.
    """

    priority: str
    input_tokens: int = 0
    prompt: int = 0
    answer: int = 0
    uncapped: int = 0

    def take(self, planned: Planned) -> None:
        """One more request."""
        self.input_tokens = max(self.input_tokens, planned.input_tokens)
        answer = planned.max_tokens or planned.output_tokens
        if planned.input_tokens + answer > self.prompt + self.answer:
            self.prompt, self.answer = planned.input_tokens, answer
        if planned.max_tokens is None:
            self.uncapped = max(self.uncapped, planned.input_tokens)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`due` are the times of all requests in order; `heads` shared beginnings of measured prompts."""

    tenants: dict[str, Longest]
    cells: tuple[tuple[str, str], ...]  # tenant and class
    due: "array[float]"
    measured: int
    heads: tuple[Head, ...]

    @property
    def last_s(self) -> float:
        """When the last request is due."""
        return self.due[-1] if self.due else 0.0


def facts(schedule: Schedule) -> Facts:
    """All of them."""
    tenants: dict[str, Longest] = {}
    cells: dict[tuple[str, str], None] = {}
    heads: dict[Head, None] = {}
    due, measured = array("d"), 0
    for one in schedule.requests:
        if one.tenant not in tenants:
            tenants[one.tenant] = Longest(priority=one.priority)
        tenants[one.tenant].take(one)
        cells[one.tenant, one.cls] = None
        due.append(one.t)
        measured += one.measured
        if one.measured and (head := _head(one)):
            heads[one.tenant, head] = None
    return Facts(
        tenants=dict(sorted(tenants.items())),
        cells=tuple(sorted(cells)),
        due=due,
        measured=measured,
        heads=tuple(heads),
    )


def ideal(before: Iterable[Planned], schedule: Schedule) -> "array[int]":
    """Of each prompt, by its id, the tokens that a cache without a limit would know; `before` was sent before."""
    known = Ideal()
    for one in before:
        known.known(one)
    found = array("i", bytes(4 * len(schedule.requests)))
    for one in schedule.requests:
        found[one.id] = known.known(one)
    return found


def _head(planned: Planned) -> tuple[Block, ...]:
    shared = 0
    for block in planned.blocks:
        if SHARED not in block.namespace:
            break
        shared += 1
    return planned.blocks[:shared]
