"""Two runs side by side: by how much each figure of the second is apart from the first, and whether that is certain.

Runs of the same schedule are compared in pairs, block by block: the same requests at the same times, so what both share
falls out of the difference. Runs of the same scenario under other seeds are compared as they are, and said to be.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import zip_longest
from statistics import fmean

import msgspec

from loadgen.report.document import Report
from loadgen.report.figures import SUFFICIENT
from loadgen.report.parts import Block, Interval
from loadgen.report.resampling import Ranked, Weights, draws, middle
from loadgen.report.stats import percentile
from loadgen.report.times import firm


class Verdict(StrEnum):
    """Of the second run. `same`: the whole interval is within the smallest effect that matters."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNDECIDED = "undecided"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """`unit` is ms, per s, or % of a share; `share`: differences are points and not parts of the first."""

    name: str
    unit: str
    up: bool  # more is better

    @property
    def share(self) -> bool:
        """A number from 0 to 1."""
        return self.unit == "%"


METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="attainment", unit="%", up=True),
        Metric(name="goodput", unit="per s", up=True),
        Metric(name="ttft_p50", unit="ms", up=False),
        Metric(name="ttft_p99", unit="ms", up=False),
        Metric(name="tpot_p50", unit="ms", up=False),
        Metric(name="tpot_p99", unit="ms", up=False),
        Metric(name="stall_p99", unit="ms", up=False),
        Metric(name="throughput", unit="per s", up=True),
        Metric(name="rejects", unit="%", up=False),
        Metric(name="j_share", unit="%", up=True),
        Metric(name="cached", unit="%", up=True),
    )
}
_ELSEWHERE = ("seed", "key_env", "url")
ALL = ("", "", "")  # every request: no class, tenant, priority


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one cell (`cls`, `tenant` and `priority` "": of everything). `change` is of the second from the
    first: points of 1 for shares, else a part of the first; `within` its 95 % interval.
    """

    metric: str
    cls: str = msgspec.field(name="class")
    tenant: str
    priority: str
    before: float
    after: float
    change: float
    within: Interval | None
    verdict: Verdict

    @property
    def certain(self) -> bool:
        """Zero lies outside the interval."""
        return self.within is not None and not self.within[0] <= 0 <= self.within[1]

    @property
    def cell(self) -> str:
        """For people."""
        return " ".join(part for part in (self.tenant, self.cls, self.priority) if part) or "all"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All rows; `paired`: the same schedule, compared block by block."""

    paired: bool
    rows: tuple[Row, ...]


def refusals(first: Report, second: Report, allowed: Sequence[str]) -> list[str]:
    """Why two runs cannot be compared; [] where they can."""
    told = []
    for place, report in (("first", first), ("second", second)):
        broken = [rule.id for rule in report.validity.rules if rule.state == "breach"]
        if broken:
            told.append(f"the {place} run is invalid: {', '.join(broken)}")
    if first.closed != second.closed:
        told.append("one is a closed loop and the other an open one: a closed loop slows down with the server")
    return told + [
        f"{what} (--allow-different {kind})" for kind, what in differences(first, second) if kind not in allowed
    ]


def differences(first: Report, second: Report) -> Iterator[tuple[str, str]]:
    """What makes two runs different that may be allowed to: its name for --allow-different, and what it is."""
    if scenario_hash(first) != scenario_hash(second):
        yield "SCENARIO", f"their scenarios differ in {', '.join(_changed(first.scenario, second.scenario))}"
    if first.target.get("fleet") != second.target.get("fleet"):
        yield "FLEET", "their fleets differ"


def scenario_hash(report: Report) -> str:
    """Of the resolved scenario, whatever its seed, and wherever and under which keys it was sent."""
    plain = {key: value for key, value in report.scenario.items() if key not in _ELSEWHERE}
    plain["tenants"] = [
        {key: value for key, value in tenant.items() if key not in _ELSEWHERE} for tenant in plain.get("tenants", ())
    ]
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()


def compare(first: Report, second: Report, metrics: Sequence[str], least: float) -> Comparison:
    """Every metric in total and of each cell with enough requests in both; `least` is the smallest effect."""
    paired = first.schedule == second.schedule
    return Comparison(paired=paired, rows=tuple(_Compared(first, second, paired, least).rows(metrics)))


Value = Callable[[Weights], float | None]


class _Compared:
    def __init__(self, first: Report, second: Report, paired: bool, least: float) -> None:
        self._reports = first, second
        self._least = least
        self._blocks = _cells(first), _cells(second)
        counts = [len(cells[ALL]) for cells in self._blocks]
        self._block_s = [report.window_s / count for report, count in zip(self._reports, counts, strict=True)]
        if paired:
            counts = [min(counts)] * 2  # one may have been cut short
            self._blocks = tuple({key: blocks[: counts[0]] for key, blocks in cells.items()} for cells in self._blocks)  # type: ignore[assignment]
        self._draws = draws(counts[0], 0), draws(counts[1], 0 if paired else 1)

    def rows(self, metrics: Sequence[str]) -> Iterator[Row]:
        before, after = self._blocks
        for key in (key for key in before if key in after):
            if key == ALL or min(_offered(before[key]), _offered(after[key])) >= SUFFICIENT:
                values = [_Values(cells[key], long) for cells, long in zip(self._blocks, self._block_s, strict=True)]
                made = [self._row(key, METRICS[name], values) for name in metrics]
                yield from (row for row in made if row is not None)

    def _row(self, key: tuple[str, str, str], metric: Metric, values: "Sequence[_Values]") -> Row | None:
        if metric.name == "j_share":
            found = [_slots(report) for report in self._reports] if key == ALL else []
            told = [fmean(one) if one else None for one in found] or [None, None]
            within = self._slots_within(found) if all(found) and found else None
        else:
            told = [one.value(metric.name) for one in values]
            within = self._within(metric, values)
        before, after = told
        if before is None or after is None:
            return None
        return Row(
            metric=metric.name,
            cls=key[0],
            tenant=key[1],
            priority=key[2],
            before=before,
            after=after,
            change=change(metric, before, after),
            within=within,
            verdict=_verdict(metric, within, self._least),
        )

    def _within(self, metric: Metric, values: "Sequence[_Values]") -> Interval | None:
        if min(len(draw[0]) for draw in self._draws) < 2:
            return None
        first, second = values[0].drawn(metric.name), values[1].drawn(metric.name)
        return _differences(
            metric,
            ((first(before), second(after)) for before, after in zip(*self._draws, strict=True)),
        )

    def _slots_within(self, slots: Sequence[Sequence[float]]) -> Interval | None:
        """Slots have no partner: who waits all the time depends on the run."""
        if min(map(len, slots)) < 2:
            return None
        drawn = [draws(len(one), seed) for seed, one in enumerate(slots)]

        def mean(values: Sequence[float], weights: Weights) -> float:
            return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)

        pairs = ((mean(slots[0], a), mean(slots[1], b)) for a, b in zip(*drawn, strict=True))
        return _differences(METRICS["j_share"], pairs)


class _Values:
    """The blocks of one cell of one run, and what is known of them."""

    def __init__(self, blocks: Sequence[Block], block_s: float) -> None:
        """`block_s` is how long each of them is."""
        self._blocks = blocks
        self._block_s = block_s
        self._ranked: dict[str, Ranked] = {}

    def value(self, name: str) -> float | None:
        """Of all blocks; None where there is nothing, or too little for a percentile."""
        kind, _, p = name.rpartition("_p")
        if not kind:
            return self.drawn(name)([1] * len(self._blocks))
        found = sorted(value for block in self._blocks for value in getattr(block, f"{kind}_ms"))
        return percentile(found, int(p) / 100) if firm(len(found), int(p) / 100) else None

    def drawn(self, name: str) -> Value:
        """From how often each block was drawn to the value."""
        kind, _, p = name.rpartition("_p")
        if kind:
            ranked = self._ranked.get(kind) or Ranked([getattr(block, f"{kind}_ms") for block in self._blocks])
            self._ranked[kind] = ranked
            return lambda weights: ranked.percentile(weights, int(p) / 100)
        above, below = _PARTS[name]
        tops = [getattr(block, above) for block in self._blocks]
        bottoms = [getattr(block, below) if below else self._block_s for block in self._blocks]
        return lambda weights: _ratio(_dot(tops, weights), _dot(bottoms, weights))


_PARTS = {  # what is over what; "" seconds
    "attainment": ("good", "offered"),
    "goodput": ("good", ""),
    "throughput": ("output_tokens", ""),
    "rejects": ("rejected", "offered"),
    "cached": ("cached_tokens", "prompt_tokens"),
}


def change(metric: Metric, before: float, after: float) -> float:
    """Points of 1 for shares, else a part of the first; inf where something became endless."""
    if before == after:
        return 0.0
    if metric.share:
        return after - before
    if before == math.inf:
        return -1.0
    return (after - before) / before if before else math.inf


def _differences(metric: Metric, pairs: Iterator[tuple[float | None, float | None]]) -> Interval | None:
    found = [change(metric, a, b) for a, b in pairs if a is not None and b is not None]
    return middle(found) if found else None


def _verdict(metric: Metric, within: Interval | None, least: float) -> Verdict:
    if within is None:
        return Verdict.UNDECIDED
    low, high = within
    if -least <= low and high <= least:
        return Verdict.SAME
    if low <= 0 <= high:
        return Verdict.UNDECIDED
    return Verdict.BETTER if (low > 0) is metric.up else Verdict.WORSE


def _cells(report: Report) -> dict[tuple[str, str, str], Sequence[Block]]:
    """The blocks of everything, then of each cell."""
    cells = {(cell.cls, cell.tenant, cell.priority): cell.blocks for cell in report.blocks}
    together = [_sum([one for one in at if one]) for at in zip_longest(*cells.values())]
    return {ALL: together, **cells}


def _sum(blocks: Sequence[Block]) -> Block:
    return Block(
        offered=sum(one.offered for one in blocks),
        good=sum(one.good for one in blocks),
        rejected=sum(one.rejected for one in blocks),
        output_tokens=sum(one.output_tokens for one in blocks),
        prompt_tokens=sum(one.prompt_tokens for one in blocks),
        cached_tokens=sum(one.cached_tokens for one in blocks),
        ttft_ms=tuple(value for one in blocks for value in one.ttft_ms),
        tpot_ms=tuple(value for one in blocks for value in one.tpot_ms),
        stall_ms=tuple(value for one in blocks for value in one.stall_ms),
    )


def _slots(report: Report) -> list[float]:
    return [slot.j_share for slot in report.fairness.slots if slot.j_share is not None]


def _offered(blocks: Sequence[Block]) -> int:
    return sum(block.offered for block in blocks)


def _dot(values: Sequence[float], weights: Weights) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True))


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _changed(first: dict[str, object], second: dict[str, object]) -> list[str]:
    """Fields that differ, the seed aside."""
    return sorted(
        key for key in first.keys() | second.keys() if key not in _ELSEWHERE and first.get(key) != second.get(key)
    )
