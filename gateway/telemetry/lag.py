"""How late the event loop is: a timer that asks to be called after `PERIOD_S` and notes by how much it was missed.

Lag is what every request, probe and stream on the loop suffers together, so it is sampled, never inferred.
uvloop rounds timers to whole milliseconds: half a millisecond of any sample is not lag.
"""

import asyncio
from collections.abc import Callable

PERIOD_S = 0.05


class LagSampler:
    """Gives `observe` the lateness in seconds of every timer until it is cancelled. Needs a running loop.

    No task: to wake one twenty times a second takes five times as long as to be called.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._ask()

    def cancel(self) -> None:
        """Sample no more."""
        self._timer.cancel()

    def _ask(self) -> None:
        self._due_s = self._loop.time() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._called)

    def _called(self) -> None:
        self._observe(max(0.0, self._loop.time() - self._due_s))
        self._ask()
