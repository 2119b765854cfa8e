"""Runs an engine model in real time. Step k ends at (end of step k-1) + T exactly; only the giving out can be late.

Timers of the loop have a granularity of a millisecond, and a busy loop is late: neither enters the model, because the
next step begins at the end that was computed, not at the time it was noticed. Lateness is recorded.
"""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

from loadgen.sim.engine import EngineModel
from loadgen.sim.sequence import Sequence

EARLY_S = 0.0002  # a timer that fires by this much too soon is good enough
RECENT = 20_000
LAG_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Lag:
    """How late steps were given out: a histogram since the last reset, and the recent ones for percentiles."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BUCKETS_S) + 1)
        self.total_s = 0.0
        self.largest_s = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def observe(self, seconds: float) -> None:
        """One step."""
        late = max(0.0, seconds)
        self.counts[bisect_left(LAG_BUCKETS_S, late)] += 1
        self.total_s += late
        self.largest_s = max(self.largest_s, late)
        self._recent.append(late)

    def percentile(self, share: float) -> float:
        """Nearest rank over the recent steps, seconds; 0 without any."""
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Pacemaker:
    """Drives `model`; `emit` gets the sequences of each step that gave them a token."""

    def __init__(self, model: EngineModel, emit: Callable[[list[Sequence]], None]) -> None:
        self.model = model
        self.lag = Lag()
        self._emit = emit
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, sequences: list[Sequence]) -> None:
        """Queue the sequences of one request, all at this instant."""
        now = time.monotonic()
        for sequence in sequences:
            self.model.submit(sequence, now)
        if not self.model.stepping:
            self._begin(now)

    def abort(self, sequence: Sequence) -> None:
        """The sequence gives no more tokens."""
        self.model.abort(sequence)

    def stop(self) -> None:
        """No further step."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end = self.model.begin(now)
        if end is not None:
            self._arm(end, self._step_over)
            return
        ready = self.model.ready_at()
        if ready is not None and ready > now:
            self._arm(ready, self._begin)

    def _arm(self, when: float, call: Callable[[float], None]) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, when - time.monotonic()), self._due, when, call)

    def _due(self, when: float, call: Callable[[float], None]) -> None:
        if time.monotonic() < when - EARLY_S:
            self._arm(when, call)
        else:
            call(when)

    def _step_over(self, end: float) -> None:
        self._timer = None
        emitted = self.model.end()
        self._emit(emitted)
        self.lag.observe(time.monotonic() - end)
        self._begin(end)
