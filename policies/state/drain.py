"""How fast a queue empties: cost dispatched per second, over a sliding window of ten slots."""

from math import ceil
from typing import Final

SLOTS: Final = 10
DRAIN_WINDOW_S: Final = 10.0  # scheduling.md 9
UNKNOWN_S: Final = 5.0  # nothing drained yet (scheduling.md 9)
LONGEST_S: Final = 60.0


class Drain:
    """Cost that left a queue in the last `window_s` seconds, to the nearest tenth of it."""

    __slots__ = ("_costs", "_since", "_slot", "_slot_s", "_total")

    def __init__(self, window_s: float) -> None:
        self._slot_s = window_s / SLOTS
        self._costs = [0] * SLOTS
        self._slot = 0  # number of the slot filled last, counted from the clock's zero
        self._since: int | None = None  # the first slot ever filled
        self._total = 0

    def add(self, cost: int, now: float) -> None:
        """`cost` was dispatched."""
        if int(now / self._slot_s) != self._slot or self._since is None:
            self._turn(now)
        self._costs[self._slot % SLOTS] += cost
        self._total += cost

    def wait_s(self, cost_ahead: int, now: float) -> float:
        """Whole seconds, 1 to 60, until `cost_ahead` has left at this pace; 5 when nothing has left lately."""
        self._turn(now)
        if self._total == 0 or self._since is None:
            return UNKNOWN_S
        window_s = min(SLOTS, self._slot - self._since + 1) * self._slot_s
        return float(min(LONGEST_S, max(1.0, ceil(cost_ahead * window_s / self._total))))

    def _turn(self, now: float) -> None:
        slot = int(now / self._slot_s)
        if self._since is None:
            self._slot = self._since = slot
        if slot <= self._slot:
            return
        for passed in range(self._slot + 1, min(slot, self._slot + SLOTS) + 1):
            self._total -= self._costs[passed % SLOTS]
            self._costs[passed % SLOTS] = 0
        self._slot = slot
