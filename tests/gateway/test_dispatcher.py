"""The core's clock: when it rings, and when it need not."""

import asyncio
from collections.abc import Sequence

from gateway.dispatcher import IDLE_STEP_S, Dispatcher
from policies.core import Core
from policies.decisions import Decision, Evict, Reason
from policies.events import Arrived, EndpointUp, Event, SettingsChanged, Tick
from policies.types import Band
from tests.policies.given import endpoint, request, settings

BAND = Band(name="standard", rank=2, queue_timeout_s=0.05, max_queued=10)


class Told:
    """The dispatcher with what its core was told; on the clock that counts."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self.decisions: list[Decision] = []
        self.dispatcher = Dispatcher(Core(), self._record)
        self.dispatcher.handle(SettingsChanged(settings=settings(bands=(BAND,))))
        # 10 tokens take 2.5 ms there: so long after its dispatch a request's prefill is over, by itself
        self.dispatcher.handle(EndpointUp(endpoint=endpoint("x", seqs=1, speed=5_000.0)))

    def _record(self, now: float, event: Event, decisions: Sequence[Decision]) -> None:
        self.decisions += decisions
        if isinstance(event, Tick):
            self.ticks.append(now)

    def arrive(self, name: str) -> float:
        now = asyncio.get_running_loop().time()
        arrival = request(name, at=now, tokens=10, deadline_s=now + 60.0, streamed=False)
        self.dispatcher.handle(Arrived(request=arrival))
        return now


async def test_where_nobody_waits_the_clock_rings_once_in_a_while_for_all_that_is_due_until_then() -> None:
    told = Told()
    began_s = told.arrive("first")
    due_s = told.dispatcher.core.next_wakeup()
    assert due_s is not None
    assert due_s - began_s < IDLE_STEP_S / 2
    await asyncio.sleep(3 * IDLE_STEP_S)
    (rang_s,) = told.ticks
    assert rang_s - began_s >= IDLE_STEP_S
    assert [view.prefill_tokens for view in told.dispatcher.core.endpoints()] == [0]
    told.dispatcher.close()


async def test_for_one_that_waits_it_rings_when_something_is_due_although_it_was_set_for_later() -> None:
    after_s = []
    for _ in range(5):  # of which a busy machine may delay some
        told = Told()
        told.arrive("first")
        began_s = told.arrive("second")
        await asyncio.sleep(0.08)
        after_s.append(told.ticks[0] - began_s)
        (evicted,) = [decision for decision in told.decisions if isinstance(decision, Evict)]
        assert (evicted.request_id, evicted.reason) == ("second", Reason.QUEUE_TIMEOUT)
        told.dispatcher.close()
    assert min(after_s) < IDLE_STEP_S
