"""What tenants were served in the last minute, for whoever wants to see it: nothing is decided by it.

Two windows of a minute each, the one that runs and the one before. Of the one before counts what would lie in the last minute
if it had come evenly. Only tokens are added up for each request; what they cost is worked out when somebody asks.
"""

from collections.abc import Iterator
from typing import Final

from policies.types import Fairness

WINDOW_S: Final = 60.0
Used = tuple[float, float, float]
"""Tokens of input that were not cached, cached ones, and tokens of output."""


def cost(terms: Fairness, uncached: float, cached: float, output: float) -> float:
    """What a request costs an engine, in prompt tokens."""
    if terms.kind == "round_robin":
        return float(terms.quantum)
    return max(1.0, terms.input * uncached + terms.cached * cached + terms.output * output)


class Tally:
    """Requests, and their tokens."""

    __slots__ = ("cached", "count", "output", "uncached")

    def __init__(self) -> None:
        self.count = self.uncached = self.cached = self.output = 0.0

    def cost(self, terms: Fairness) -> float:
        """What all of them cost."""
        made = cost(terms, self.uncached, self.cached, self.output)
        return made * self.count if terms.kind == "round_robin" else made


class Served:
    """Tallies by tenant."""

    __slots__ = ("_before", "_ends_s", "_running")

    def __init__(self) -> None:
        self._running: dict[str, Tally] = {}
        self._before: dict[str, Tally] = {}
        self._ends_s = 0.0  # of the window that runs

    def add(self, tenant: str, used: Used, now: float) -> None:
        """One request more was served."""
        if now >= self._ends_s:
            self._turn(now)
        tally = self._running.get(tenant)
        if tally is None:
            tally = self._running[tenant] = Tally()
        uncached, cached, output = used
        tally.count += 1.0
        tally.uncached += uncached
        tally.cached += cached
        tally.output += output

    def _turn(self, now: float) -> None:
        late = now - self._ends_s >= WINDOW_S
        self._before = {} if late else self._running
        self._running = {}
        self._ends_s = now + WINDOW_S if late else self._ends_s + WINDOW_S

    def last_minute(self, terms: Fairness, now: float) -> Iterator[tuple[str, float]]:
        """Each that was served something, and what that cost."""
        late = now >= self._ends_s  # nobody was served since the end of the window that ran
        before, running = (self._running, {}) if late else (self._before, self._running)
        part = (self._ends_s + (WINDOW_S if late else 0.0) - now) / WINDOW_S
        if part <= 0.0:
            return
        none = Tally()
        for tenant in dict.fromkeys((*before, *running)):
            earlier, lately = before.get(tenant, none), running.get(tenant, none)
            yield tenant, sum(share * one.cost(terms) for share, one in ((part, earlier), (1.0, lately)) if one.count)
