"""Drives `policies.Core` in real time: events in, decisions to whoever waits for them, one timer.

Everything here is synchronous but the wait for a place. The core decides; a `Slot` is what a request holds of it, and
whatever ends the request, the slot is settled exactly once.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from gateway.steps import Signal
from policies.core import Core
from policies.decisions import Decision, Dispatch, Evict, Fail, Reject
from policies.events import Arrived, Bounced, Cancelled, Cause, Event, Finished, FirstToken, Outcome, Tick
from policies.types import InferenceRequest

Record = Callable[[float, Event, list[Decision]], None]


class Refused(Exception):
    """The core will not serve a request, or not any longer; `decision` says why."""

    def __init__(self, decision: Reject | Evict | Fail) -> None:
        super().__init__(decision.reason)
        self.decision = decision

    @property
    def outcome(self) -> str:
        """The term of the conservation invariant (faults.md 1)."""
        if isinstance(self.decision, Reject):
            return "rejected"
        return "expired" if isinstance(self.decision, Evict) else "failed"


class Dispatcher:
    """The core with a clock and a timer. `record`, if given, sees every event with its decisions, in order."""

    def __init__(self, core: Core, record: Record | None = None) -> None:
        self.core = core
        self._record = record
        self._slots: dict[str, Slot] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = 0.0

    def admit(self, request: InferenceRequest) -> "Slot":
        """A slot to be entered with `async with`: inside, the request has a place on an endpoint."""
        return Slot(self, request)

    def handle(self, event: Event) -> None:
        """Tell the core what happened and carry its decisions to those they are for."""
        now = time.monotonic()
        decisions = self.core.handle(event, now)
        if self._record is not None:
            self._record(now, event, decisions)
        for decision in decisions:
            slot = self._slots.get(decision.request_id)
            if slot is not None:
                slot.decided(decision)
        due = self.core.next_wakeup()
        if due is not None and (self._timer is None or due < self._armed_s):
            self._arm(due, now)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def enter(self, slot: "Slot") -> None:
        """A request arrives."""
        self._slots[slot.request.id] = slot
        self.handle(Arrived(request=slot.request))

    def leave(self, slot: "Slot", event: Event) -> None:
        """A request ends, by `event`."""
        if self._slots.pop(slot.request.id, None) is not None:
            self.handle(event)

    def forget(self, slot: "Slot") -> None:
        """A request that the core itself has ended."""
        self._slots.pop(slot.request.id, None)

    def _arm(self, due: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_s = due
        self._timer = asyncio.get_running_loop().call_later(max(0.001, due - now), self._ring)

    def _ring(self) -> None:
        self._timer = None
        due, now = self.core.next_wakeup(), time.monotonic()
        if due is None:
            return
        if due <= now:
            self.handle(Tick())
        else:
            self._arm(due, now)


class Slot:
    """A request's place in the core: waiting, then placed, perhaps placed again, and settled once."""

    __slots__ = ("_decision", "_dispatcher", "_over", "_waiter", "request")

    def __init__(self, dispatcher: Dispatcher, request: InferenceRequest) -> None:
        self.request = request
        self._dispatcher = dispatcher
        self._decision: Decision | None = None
        self._waiter: Signal[Dispatch | Reject | Evict | Fail] | None = None
        self._over = False

    async def __aenter__(self) -> "Slot":
        self._dispatcher.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._over:  # nobody said how it ended: an error of ours, or the task was cancelled
            self.cancelled()

    async def placed(self) -> Dispatch:
        """Wait for a place. Raises Refused."""
        decision, self._decision = self._decision, None
        if decision is None:
            self._waiter = Signal()
            decision = await self._waiter
        if isinstance(decision, Dispatch):
            return decision
        self._over = True
        self._dispatcher.forget(self)
        raise Refused(decision)

    def decided(self, decision: Decision) -> None:
        """Called by the dispatcher."""
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            self._decision = decision
        else:
            # In a turn of its own: a long queue would otherwise be walked by recursion, one end freeing the next place.
            asyncio.get_running_loop().call_soon(waiter.set, decision)

    def first_token(self, attempt: int) -> None:
        """The first token of an attempt came."""
        if not self._over:
            self._dispatcher.handle(FirstToken(request_id=self.request.id, attempt=attempt))

    def bounced(self, attempt: int, cause: Cause, retry_after_s: float | None) -> None:
        """An attempt came back; wait for the next with `placed`."""
        if not self._over:
            self._dispatcher.handle(
                Bounced(request_id=self.request.id, attempt=attempt, cause=cause, retry_after_s=retry_after_s)
            )

    def finished(
        self, attempt: int, outcome: Outcome, tokens: tuple[int | None, int | None, int | None] | None
    ) -> None:
        """The last attempt ended. `tokens` are prompt, cached and output tokens where the engine told."""
        if self._over:
            return
        self._over = True
        prompt, cached, output = tokens or (None, None, None)
        self._dispatcher.leave(
            self,
            Finished(
                request_id=self.request.id,
                attempt=attempt,
                outcome=outcome,
                prompt_tokens=prompt,
                cached_tokens=cached,
                output_tokens=output,
            ),
        )

    def cancelled(self) -> None:
        """The client left: the place is free from this moment on."""
        if self._over:
            return
        self._over = True
        self._dispatcher.leave(self, Cancelled(request_id=self.request.id))
