"""What a person sees while the load runs: counters only, so that watching does not disturb the measurement.

On a terminal a picture that refreshes four times a second; elsewhere (a pipe, a log, TERM=dumb) one plain line every
five seconds. Colours follow NO_COLOR. Everything here goes to stderr; stdout is for the report.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from loadgen import tasks
from loadgen.live.picture import BOLD, DIM, PLAIN, RED, Line, Part, Picture, Row, bar, folded, table
from loadgen.report.record import REJECTED, Outcome, Sample, Slo
from loadgen.report.stats import percentile, quantile

LAG_LIMIT_MS = 10.0  # of send lag at p99; beyond it the client, not the system, is measured (loadgen.md 8.2 V1)
NEAR = 0.5  # of a limit: from there on its value is red
_LIVE_S, _PLAIN_S = 0.25, 5.0
_FIGURES_S = 1.0  # percentiles and the client's health are made anew that often, counters in each picture
_MOST_ROWS = 12
_KEPT = 1000  # latest values that live percentiles are of: the cost of a frame must not grow with the run


class Counts:
    """Running counters of one group."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.sent = self.ok = self.rejected = self.failed = self.cancelled = self.good = 0
        self.ttft_ms: deque[float] = deque(maxlen=_KEPT)

    @property
    def ended(self) -> int:
        """Requests that have ended, in whatever way."""
        return self.ok + self.rejected + self.failed + self.cancelled

    def times(self) -> tuple[float | None, float | None]:
        """TTFT at p50 and p99, ms, of the latest that came."""
        ordered = sorted(self.ttft_ms)
        return percentile(ordered, 0.5), percentile(ordered, 0.99)

    @property
    def attainment(self) -> float | None:
        """Good among those that have ended and were not left by their client."""
        judged = self.ended - self.cancelled
        return self.good / judged if judged else None


class Tally:
    """Counters of a running load; the client's watcher, and the only thing a display reads.

    Groups are the classes that clients ask for, or what `of` says; `slo` is one for all, or a request's own.
    """

    def __init__(
        self,
        groups: Iterable[str],
        slo: Slo | Callable[[Sample], Slo],
        of: Callable[[Sample], str] = lambda sample: sample.priority,
    ) -> None:
        """One counter for each of `groups`, in that order."""
        self.groups = {name: Counts() for name in groups}
        self.lags_ms: deque[float] = deque(maxlen=_KEPT)
        self._slo_of = slo if callable(slo) else lambda sample: slo
        self._of = of

    def sent(self, sample: Sample) -> None:
        """A request went out."""
        self.groups[self._of(sample)].sent += 1
        self.lags_ms.append(sample.lag_ms)

    def ended(self, sample: Sample) -> None:
        """A request ended."""
        counts = self.groups[self._of(sample)]
        if sample.outcome is Outcome.OK:
            counts.ok += 1
            counts.good += not self._slo_of(sample).missed(sample)
            if sample.ttft_ms is not None:
                counts.ttft_ms.append(sample.ttft_ms)
        elif sample.outcome is Outcome.CANCELLED:
            counts.cancelled += 1
        elif sample.outcome in REJECTED:
            counts.rejected += 1
        else:
            counts.failed += 1
            counts.sent += sample.outcome is Outcome.DROPPED  # it ended without having gone out

    def sums(self) -> tuple[int, int, int, int]:
        """Sent, ended, rejected, failed over all groups."""
        every = self.groups.values()
        return (
            sum(one.sent for one in every),
            sum(one.ended for one in every),
            sum(one.rejected for one in every),
            sum(one.failed for one in every),
        )


class Clock(Protocol):
    """Where a run stands."""

    def now_s(self) -> float:
        """Seconds since time 0 of the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vital:
    """One figure of how well the client is, with the limit beyond which a run cannot be trusted. `text` has both."""

    text: str
    value: float
    limit: float


@asynccontextmanager
async def shown(console: Console, view: "View") -> AsyncIterator[None]:
    """Show `view` while the block runs."""
    live = console.is_terminal and not console.is_dumb_terminal
    task = tasks.start(_live(console, view) if live else _plain(console, view), "progress display")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


class View:
    """One load as text. `title`, the clock of the run, its counters, when it measures and how long it sends.

    `offered` says how many requests were due at a time; `vitals` how well the client is; `phase` names what is not
    part of the schedule, "" while it runs.
    """

    offered: Callable[[float], int] | None = None
    vitals: Callable[[], Iterable[Vital]] | None = None
    phase = ""

    def __init__(
        self, title: str, clock: Clock, tally: Tally, window_s: tuple[float, float], total_s: float | None = None
    ) -> None:
        """`window_s`: start and end of what is measured, on `clock`; `total_s`: end of all load, None: of the window."""
        self._title = title
        self._clock = clock
        self._tally = tally
        self._window_s = window_s
        self._total_s = total_s or window_s[1]
        self._figured_s = math.nan
        self._times: dict[str, tuple[float | None, float | None]] = {}
        self._health: list[Vital] = []

    def line(self, *, ended: bool = False) -> str:
        """Everything in one plain line."""
        sent, done, rejected, failed = self._tally.sums()
        phase = "finished" if ended else f"{self._clock_text()}, {self._phase()}"
        groups = ", ".join(f"{name} {_percent(one.attainment)}" for name, one in self._shown())
        near = "" if ended else "".join(f"; {one.text}" for one in self._vitals() if one.value > NEAR * one.limit)
        return (
            f"{self._title}: {phase}: sent {sent}, in flight {sent - done}, "
            f"done {done}, rejected {rejected}, failed {failed}; within SLO so far: {groups}{near}"
        )

    def picture(self) -> RenderableType:
        """The live picture, as wide as it may be where it is printed."""
        return Picture(self._lines)

    def _lines(self, width: int) -> Iterator[Line]:
        now_s = self._clock.now_s()
        if not abs(now_s - self._figured_s) < _FIGURES_S:  # also of a clock that does not run yet
            self._figured_s = now_s
            self._times = {name: one.times() for name, one in self._shown()}
            self._health = list(self._vitals())
        yield from folded([(self._title, BOLD), *((text, PLAIN) for text in self._head())], "  ", width)
        yield bar(now_s / self._total_s, width)
        yield from table(self._rows(), width)
        yield from folded([("client:", DIM), *self._figures()], " ", width)

    def _head(self) -> Iterator[str]:
        sent, done, _, _ = self._tally.sums()
        now_s = max(self._clock.now_s(), 0.001)
        sending_s = min(now_s, self._total_s)
        yield self._clock_text()
        yield self._phase()
        offered = f"offered {self.offered(now_s) / sending_s:.1f} " if self.offered else ""
        yield f"{offered}sent {sent / sending_s:.1f} done {done / now_s:.1f} /s"
        yield f"in flight {sent - done}"

    def _rows(self) -> Iterator[Row]:
        sending_s = min(max(self._clock.now_s(), 0.001), self._total_s)
        for name, one in self._shown():
            p50_ms, p99_ms = self._times.get(name, (None, None))
            yield (
                name,
                f"{one.sent}",
                f"{one.sent / sending_s:.1f}",
                f"{one.ok}",
                f"{one.rejected}",
                f"{one.failed}",
                _whole(p50_ms),
                _whole(p99_ms),
                _percent(one.attainment),
            )
        hidden = len(self._tally.groups) - _MOST_ROWS
        if hidden > 0:
            yield (f"and {hidden} more",)

    def _shown(self) -> list[tuple[str, Counts]]:
        """The groups, or those with the most requests where there are too many to be read."""
        groups = list(self._tally.groups.items())
        if len(groups) <= _MOST_ROWS:
            return groups
        return sorted(groups, key=lambda one: one[1].sent, reverse=True)[:_MOST_ROWS]

    def _vitals(self) -> Iterable[Vital]:
        if self.vitals is not None:
            return self.vitals()
        lag_ms = quantile(self._tally.lags_ms, 0.99) or 0.0
        return (Vital(text=f"send lag p99 {lag_ms:.1f} ms", value=lag_ms, limit=LAG_LIMIT_MS),)

    def _figures(self) -> Iterator[Part]:
        last = len(self._health) - 1
        for place, one in enumerate(self._health):
            yield one.text + ("," if place < last else ""), RED if one.value > NEAR * one.limit else DIM

    def _phase(self) -> str:
        if self.phase:
            return self.phase
        now_s, (start_s, end_s) = self._clock.now_s(), self._window_s
        if now_s < start_s:
            return "warm-up"
        if now_s < end_s:
            return "measuring"
        return "tail" if now_s < self._total_s else "drain"

    def _clock_text(self) -> str:
        return f"{min(max(0.0, self._clock.now_s()), self._total_s):.0f} of {self._total_s:.0f} s"


async def _live(console: Console, view: View) -> None:
    with Live(view.picture(), console=console, auto_refresh=False, transient=True) as live:
        while True:
            await asyncio.sleep(_LIVE_S)
            live.update(view.picture(), refresh=True)


async def _plain(console: Console, view: View) -> None:
    while True:
        await asyncio.sleep(_PLAIN_S)
        console.print(view.line(), highlight=False, soft_wrap=True)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
