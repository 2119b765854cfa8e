"""Figure beside figure: what was simulated, what the live runs came to, and how far apart they may be (loadgen.md 10).

Of times and shares medians are compared; what must be equal must be so in every run. A percentile with fewer than five
requests beyond it, and a cell of less than a hundred, is shown and not judged. Equal engines have no names: which of
them is the busiest is drawn, so the busiest is compared with the busiest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from loadgen.agree.case import Case
from loadgen.agree.live import Ran
from loadgen.agree.outcome import Came
from loadgen.report.figures import Figures
from loadgen.report.run import CellKey

NET_LIMIT_MS = 5.0
EQUAL = (0.0, 0.0)
_TTFT_MS = ((0.5, 5.0, 0.05), (0.9, 10.0, 0.08), (0.99, 25.0, 0.15))  # percentile; the larger of ms and share


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of all runs. `unit` is "", ms or % (of 1); a value None: nothing of the kind happened.

    `most` is how far apart medians may be; 0: equal in every run.
    """

    name: str
    simulated: tuple[float | None, ...]
    live: tuple[float | None, ...]
    most: float
    unit: str = ""
    judged: bool = True

    @property
    def expected(self) -> float | None:
        """The median of what was simulated."""
        return middle(self.simulated)

    @property
    def seen(self) -> float | None:
        """The median of the live runs."""
        return middle(self.live)

    @property
    def agrees(self) -> bool:
        """Within the tolerance, or not judged."""
        if not self.judged:
            return True
        if self.most == 0:
            return len({*self.simulated, *self.live}) == 1
        if self.seen is None or self.expected is None:
            return self.seen is self.expected
        return self.seen == self.expected or abs(self.seen - self.expected) <= self.most


def middle(values: Sequence[float | None]) -> float | None:
    """The median of those that are there."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


Value = Callable[[Came], float | None]


def rows(case: Case, simulated: Sequence[Came], live: Sequence[Ran], saturated: bool) -> Iterator[Row]:
    """Every row of a case. A saturated load has doubled tolerances, and counts within 2 % of what is offered."""
    yield from _told(case, live)
    made = _Rows(simulated, [one.came for one in live], saturated)
    yield from made.counts()
    for name in simulated[0].report.classes:
        yield from made.first_tokens(name)
    yield made.row("TPOT p50", lambda came: came.report.totals.tpot_p50_ms, (0.0, 0.03), "ms")
    yield made.stall()
    for key in simulated[0].report.cells:
        yield made.attainment(key)
    for group in case.fleet.engines:
        yield from made.shares(group.name, group.count)
    yield made.cached()
    yield made.row("engine steps", lambda came: came.steps, (0.0, 0.05))
    yield made.row("preemptions", lambda came: came.preemptions, (0.0, 0.05) if saturated else EQUAL)


def net(net_s: float) -> Row:
    """The constant that stands for all that is not simulated."""
    return Row(name="net constant", simulated=(0.0,), live=(net_s * 1e3,), most=NET_LIMIT_MS, unit="ms")


def _told(case: Case, live: Sequence[Ran]) -> Iterator[Row]:
    settings, endpoints = case.policy().settings, tuple(sorted(case.endpoints(), key=lambda known: known.name))
    # What models there are matters to limits alone, and the simulator has none.
    told = [(replace(one.told.settings, models={}), one.told.endpoints) for one in live]
    differing = tuple(float(known != settings) + (engines != endpoints) for known, engines in told)
    yield Row(name="settings, engines told otherwise", simulated=(0.0,), live=differing, most=0.0)
    decided = tuple(float(len(one.told.replayed.differences)) for one in live)
    yield Row(name="decisions replayed otherwise", simulated=(0.0,), live=decided, most=0.0)


class _Rows:
    def __init__(self, simulated: Sequence[Came], live: Sequence[Came], saturated: bool) -> None:
        self._simulated = simulated
        self._live = live
        self._saturated = saturated
        self._report = simulated[0].report  # says how many requests there are of each kind

    def row(self, name: str, value: Value, most: tuple[float, float], unit: str = "", judged: bool = True) -> Row:
        """`most`: a difference in the figure's own unit, and as a share of what was simulated; the larger holds."""
        simulated = tuple(value(came) for came in self._simulated)
        return Row(
            name=name,
            simulated=simulated,
            live=tuple(value(came) for came in self._live),
            most=(1 + self._saturated) * max(most[0], most[1] * (middle(simulated) or 0.0)),
            unit=unit,
            judged=judged,
        )

    def counts(self) -> Iterator[Row]:
        equal = (0.01 * self._report.totals.offered, 0.01) if self._saturated else EQUAL
        yield self.row("completed", lambda came: came.report.totals.ok, equal)
        yield self.row("rejected", lambda came: came.report.totals.rejected, equal)
        yield self.row("failed", lambda came: came.report.totals.failed, EQUAL)
        yield self.row("prompt tokens", lambda came: came.report.totals.prompt_tokens, equal)
        yield self.row("output tokens", lambda came: came.output_tokens, equal)

    def first_tokens(self, cls: str) -> Iterator[Row]:
        group = self._report.classes[cls]
        for p, ms, share in _TTFT_MS:
            figure = f"ttft_p{p * 100:.0f}_ms"
            yield self.row(
                f"TTFT p{p * 100:.0f}, {cls}",
                lambda came, figure=figure: _figure(came.report.classes.get(cls), figure),  # type: ignore[misc]
                (ms, share),
                "ms",
                group.firm(p),
            )

    def stall(self) -> Row:
        firm = self._report.totals.firm(0.99)
        return self.row("stall p99", lambda came: came.report.totals.stall_p99_ms, (20.0, 0.1), "ms", firm)

    def attainment(self, key: CellKey) -> Row:
        cell = self._report.cells[key]
        name = f"within SLO, {' '.join(key)}"
        return self.row(
            name, lambda came: _figure(came.report.cells.get(key), "attainment"), (0.02, 0.0), "%", cell.sufficient
        )

    def shares(self, group: str, count: int) -> Iterator[Row]:
        names = [f"{group}{number}" for number in range(count)]
        for place in range(count):
            name = f"requests to {group}, no. {place + 1}"
            yield self.row(name, lambda came, place=place: came.shares(names)[place], (0.03, 0.0), "%")  # type: ignore[misc]

    def cached(self) -> Row:
        most = 0.02 * self._report.totals.prompt_tokens
        return self.row("cached tokens", lambda came: came.report.totals.cached_tokens, (most, 0.0))


def _figure(group: Figures | None, name: str) -> float | None:
    return None if group is None else getattr(group, name)
