"""A request that waits for the store to say whether its limits have room for it (policies/leasing.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.types import InferenceRequest

if TYPE_CHECKING:
    from policies.state.blocks import Block


class Parked:
    """It has no ticket yet, holds nothing, and is in flight in the sums. `needs`: of each block that is too small how
    much; at `due_s` it waits no more."""

    __slots__ = ("due_s", "needs", "request", "timer")

    def __init__(self, request: InferenceRequest, needs: list[tuple[Block, int]], due_s: float) -> None:
        self.request = request
        self.needs = needs
        self.due_s = due_s
        self.timer = 0  # as of a ticket
