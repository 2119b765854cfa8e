"""Drives `policies.Core` in real time: events in, decisions to whoever waits for them, one timer.

Everything here is synchronous. The core decides; who asks is told at once what it decides at once, and anybody else in
a turn of the loop of its own: a long queue would otherwise be walked by recursion, one end freeing the next place.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from time import time
from typing import Final, Protocol

from gateway.clock import monotonic
from policies.core import Core
from policies.decisions import Decision
from policies.events import Arrived, Event, Tick, WallClock
from policies.types import InferenceRequest

IDLE_STEP_S: Final = 0.02  # between two rings while nobody waits
CLOCK_STEP_S: Final = 0.5  # by which the wall clock may wander untold
Record = Callable[[float, Event, list[Decision]], None]


class Waiter(Protocol):
    """Whoever holds a place in the core, or waits for one."""

    def decided(self, decision: Decision) -> None:
        """The core has decided about it."""


class Dispatcher:
    """The core with a clock and a timer. `record` sees every event with its decisions, in order."""

    def __init__(self, core: Core, record: Record) -> None:
        self.core = core
        self._record = record
        self._waiters: dict[str, Waiter] = {}
        self._undelivered: deque[Decision] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = math.inf  # without a timer
        self._ahead_s = 0.0  # the wall clock, as the core was told
        self._skew_s = 0.0  # by which the clock that counts is ahead of this machine's
        self.short: Callable[[], None] | None = None  # to be called when a request waits for what a store may have

    def arrive(self, request: InferenceRequest, waiter: Waiter) -> Decision | None:
        """A request asks for a place. The decision if there is one at once; else `waiter` will hear it."""
        self._waiters[request.id] = waiter
        decision = self.handle(Arrived(request=request), request.id)
        if decision is None and self.short is not None and self.core.waits_for_store():
            self.short()
        return decision

    def leave(self, request_id: str, event: Event | None) -> None:
        """A request ends, by `event`; None: the core itself has ended it."""
        if self._waiters.pop(request_id, None) is not None and event is not None:
            self.handle(event)

    def handle(self, event: Event, asker: str = "") -> Decision | None:
        """Tell the core what happened. Returns what it decides at once about `asker`, the id of a request."""
        now = monotonic()
        core = self.core
        decisions = core.handle(event, now)
        self._record(now, event, decisions)
        answer = None
        for decision in decisions:
            if decision.request_id == asker:
                answer = decision
            else:
                if not self._undelivered:
                    asyncio.get_running_loop().call_soon(self.settle)
                self._undelivered.append(decision)
        due = core.next_wakeup()
        if due is not None and due < self._armed_s:
            self._arm(due, now)
        return answer

    def settle(self) -> None:
        """Let everybody hear what was decided so far. Whoever has left meanwhile need not."""
        for _ in range(len(self._undelivered)):
            decision = self._undelivered.popleft()
            waiter = self._waiters.get(decision.request_id)
            if waiter is not None:
                waiter.decided(decision)
        if self._undelivered:
            asyncio.get_running_loop().call_soon(self.settle)

    def tell_the_time(self) -> None:
        """Tell the core how far the wall clock is ahead, when that has changed: its budgets go by the calendar."""
        offset_s = time() + self._skew_s - monotonic()
        if abs(offset_s - self._ahead_s) > CLOCK_STEP_S:
            self._ahead_s = offset_s
            self.handle(WallClock(offset_s=offset_s))

    def follow_clock(self, skew_s: float) -> None:
        """Another clock counts, which is so far ahead of this machine's: replicas go by that of their store."""
        self._skew_s = skew_s
        self.tell_the_time()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, due: float, now: float) -> None:
        # Where nobody waits a ring only brings counts up to date, which every event does before anything is decided: fast
        # engines would otherwise have the timer set and ring a thousand times a second.
        if due < now + IDLE_STEP_S and not self.core.anybody_waits():
            due = now + IDLE_STEP_S
            if due >= self._armed_s:
                return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_s = due
        self._timer = asyncio.get_running_loop().call_later(max(0.001, due - now), self._ring)

    def _ring(self) -> None:
        self._timer, self._armed_s = None, math.inf
        due, now = self.core.next_wakeup(), monotonic()
        if due is None:
            return
        if due <= now:
            self.handle(Tick())
        else:
            self._arm(due, now)
