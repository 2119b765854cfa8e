"""Sends the requests of one process, each at its intended time on the clock of the run, whatever the server does."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from loadgen.client.agenda import Agenda, Answers, Item, Writer
from loadgen.client.exchange import Exchange, Rules, after
from loadgen.client.health import Monitor, Pulse
from loadgen.client.idle import Idle
from loadgen.client.route import Pools, Routes, routes_to
from loadgen.client.values import ClientOptions, Target, Watcher
from loadgen.report.record import Outcome, Sample
from loadgen.schedule import sample_of
from loadgen.workload.planned import Planned, Requests
from loadgen.workload.prompts import Prose

_BUDGET_S = 0.001  # of sending, and of writing prompts, between two looks at the sockets
Targets = Mapping[str, tuple[Target, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process sends: `requests` sorted by time. [start_s, end_s) is measured, `last_s` is the last planned
    time of the whole run; `chained` and `again` as in its `Survey`."""

    requests: Requests
    start_s: float
    end_s: float
    last_s: float
    chained: frozenset[str]
    again: Mapping[str, int]
    worker: int = 0


class Beholder(Watcher, Protocol):
    """A watcher that also hears how the client itself does."""

    def pulse(self, pulse: Pulse) -> None:
        """A second of the run is over."""


class Sender:
    """One run of one share of a schedule."""

    def __init__(
        self, share: Share, targets: Targets, options: ClientOptions, beholder: Beholder, *, keep: bool = True
    ) -> None:
        """`options.max_open` is of this process. Without `keep` the beholder alone gets the samples."""
        self._keep = keep
        self._share = share
        self._targets = targets
        self._options = options
        self._beholder = beholder
        self._open: dict[int, tuple[Exchange, Planned]] = {}
        self._samples: list[Sample] = []
        self._stopped = False
        self._quiet = asyncio.Event()  # nothing is left to send, and nothing open
        self._timer: asyncio.Handle | None = None

    async def run(self, prose: Prose, begun: Callable[[], float]) -> list[Sample]:
        """Send everything and wait for the answers; one sample for each request that was due, by intended time.

        `begun` is asked once, when all is ready, for time 0 of the schedule on the monotonic clock.
        """
        share, options = self._share, self._options
        pools = self._pools = Pools(options.connect_s)
        routes = {name: routes_to(those, pools, options.length_control) for name, those in self._targets.items()}
        self._answers = Answers(share.again)
        writer = Writer(Routes(routes, share.worker), prose, self._answers)
        self._agenda = Agenda(share.requests, share.last_s, share.chained, writer)
        self._idle = Idle()
        zero = begun()
        self._rules = Rules(
            zero=zero,
            timeout_s=options.timeout_s,
            retries=options.retries,
            honour_retry_after=options.honour_retry_after,
            idle=self._idle,
        )
        self._monitor = Monitor(share.worker, self._now, self._beholder.pulse, self._state)
        drain_s = options.timeout_s if options.drain_s is None else options.drain_s
        drained = after(zero + share.last_s + drain_s - time.monotonic(), self._give_up)
        try:
            async with self._monitor:
                self._turn()
                self._maybe_quiet()
                await self._quiet.wait()
        finally:
            drained.cancel()
            self._give_up()
            pools.close()
        self._samples.sort(key=attrgetter("sched_s"))
        return self._samples

    def stop(self, grace_s: float) -> None:
        """Send nothing more; what is open may go on for `grace_s`."""
        self._stop_sending()
        if self._open:
            after(grace_s, self._give_up)

    def _stop_sending(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._maybe_quiet()

    def _give_up(self) -> None:
        self._stop_sending()
        self._idle.finish()  # what has ended already keeps its own outcome
        for exchange, _ in list(self._open.values()):
            exchange.end(Outcome.UNFINISHED)

    def _state(self) -> tuple[int, dict[str, int]]:
        return len(self._open), self._pools.local_failures

    def _now(self) -> float:
        return time.monotonic() - self._rules.zero

    # ---- when

    def _turn(self) -> None:
        """Send what is due, write out some of what will be, and come again in time for the next."""
        if self._stopped:
            return
        more = self._send_due() or self._agenda.write(self._now(), _BUDGET_S)
        self._arm(at_once=more)

    def _arm(self, *, at_once: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wake_s = self._now() if at_once else self._agenda.wake_s()
        if wake_s is None:
            self._timer = None
            self._maybe_quiet()
        elif at_once:
            self._timer = asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._timer = after(wake_s - self._now(), self._turn)

    def _send_due(self) -> bool:
        """Send what is due, for a while; whether there may be more."""
        agenda, end_s = self._agenda, time.monotonic() + _BUDGET_S
        while item := agenda.due(self._now()):
            if len(self._open) < self._options.max_open:
                self._send(item)
            else:
                self._drop(item)
            if time.monotonic() > end_s:
                return True
        return False

    def _maybe_quiet(self) -> None:
        if not self._open and (self._stopped or self._agenda.empty):
            self._quiet.set()

    # ---- what

    def _send(self, item: Item) -> None:
        sample = self._sample(item)
        said: list[str] | None = [] if self._answers.wanted(item.planned) else None
        exchange = Exchange(sample, item.request, self._rules, self._ended, said)
        self._open[sample.id] = (exchange, item.planned)
        exchange.begin(item.planned.cancel_after_s)
        self._monitor.send_lags_ms.append(sample.lag_ms)
        self._beholder.sent(sample)

    def _drop(self, item: Item) -> None:
        sample = self._sample(item)
        sample.outcome = Outcome.DROPPED
        sample.end_s = self._now()
        self._answers.ended(item.planned, None)
        self._agenda.ended(item.planned, sample.end_s)
        self._beholder.ended(sample)

    def _ended(self, exchange: Exchange) -> None:
        sample = exchange.sample
        _, planned = self._open.pop(sample.id)
        good = exchange.said is not None and sample.outcome is Outcome.OK
        self._answers.ended(planned, "".join(exchange.said or ()) if good else None)
        follows = self._agenda.ended(planned, sample.end_s)
        self._beholder.ended(sample)
        if follows and not self._stopped:
            self._arm()
        else:
            self._maybe_quiet()

    def _sample(self, item: Item) -> Sample:
        planned, share = item.planned, self._share
        measured = planned.measured if planned.after is None else share.start_s <= item.t < share.end_s
        sample = sample_of(planned, item.t, measured)
        sample.planned_output = item.route.answer_tokens(planned)
        sample.worker = share.worker
        sample.endpoint = item.route.endpoint
        if self._keep:
            self._samples.append(sample)
        return sample
