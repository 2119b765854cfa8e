"""What tenants were served in the last minute, for whoever wants to see it: nothing is decided by it.

Two windows of a minute each, the one that runs and the one before. Of the one before counts what would lie in the last minute
if it had come evenly. So there is a number or two for each tenant that was served lately, and an addition for each request.
"""

from collections.abc import Iterator
from typing import Final

WINDOW_S: Final = 60.0


class Served:
    """Costs by tenant."""

    __slots__ = ("_before", "_ends_s", "_running")

    def __init__(self) -> None:
        self._running: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._ends_s = 0.0  # of the window that runs

    def add(self, tenant: str, cost: float, now: float) -> None:
        """It was served that much."""
        if now >= self._ends_s:
            self._turn(now)
        running = self._running
        running[tenant] = running.get(tenant, 0.0) + cost

    def _turn(self, now: float) -> None:
        late = now - self._ends_s >= WINDOW_S
        self._before = {} if late else self._running
        self._running = {}
        self._ends_s = now + WINDOW_S if late else self._ends_s + WINDOW_S

    def last_minute(self, now: float) -> Iterator[tuple[str, float]]:
        """Each that was served something, and what."""
        late = now >= self._ends_s  # nobody was served since the end of the window that ran
        before, running = (self._running, {}) if late else (self._before, self._running)
        part = (self._ends_s + (WINDOW_S if late else 0.0) - now) / WINDOW_S
        if part <= 0.0:
            return
        for tenant in dict.fromkeys((*before, *running)):
            yield tenant, part * before.get(tenant, 0.0) + running.get(tenant, 0.0)
