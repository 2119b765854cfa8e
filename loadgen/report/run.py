"""What one run came to: totals and cells, whether load and system were in balance, how the work was spread.

A run is stationary when the number of requests that wait for their first token does not grow over the window: slope x
length <= max(5, 20 % of the mean) (loadgen.md 6.3), or no more than three standard errors of the slope. Of all requests
in flight that cannot be asked: bursts of arrivals alone make 20 of them 27 in two minutes on an almost idle fleet, and
a load that is heavier in its second half than in its first was taken for overload with 98 % within the SLO. A run that
is not stationary is overloaded, whatever its attainment.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loadgen.report.figures import Figures, Judged, SloOf, counts, curve, figures, judge
from loadgen.report.pauses import Pauses
from loadgen.report.record import Outcome, Sample, Slo
from loadgen.report.resampling import resampled

BLOCK_S = 10.0
FEW_SEEDS = 5
DRIFT_REQUESTS = 5.0
DRIFT_SHARE = 0.2
NOISE = 3.0  # standard errors
LEAST_BLOCKS = 4

OK = Outcome.OK
CellKey = tuple[str, str, str]
Block = tuple[int, int]  # good and offered of 10 s


@dataclass(slots=True, kw_only=True)
class EndpointShare:
    """What one engine did over the whole run."""

    name: str
    requests: int
    busy_share: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    steps: int
    preemptions: int


@dataclass(slots=True, kw_only=True)
class Balance:
    """Requests over the window, in the client's eyes: means in flight and without a first token; `drift` of those."""

    mean: float
    waiting: float
    drift: float  # slope x length
    stationary: bool


@dataclass(slots=True, kw_only=True)
class RunReport:
    """One arm under one seed. `cells` by (class, tenant, priority), `classes` by class alone.

    `targets` are the cells', `target` the scenario's own. `ends` counts bad ends by outcome and reason.
    """

    seed: int
    schedule: str
    window_s: float
    target: float
    totals: Figures
    classes: dict[str, Figures]
    cells: dict[CellKey, Figures]
    targets: dict[CellKey, float]
    ends: dict[tuple[str, str], int]
    balance: Balance
    slo_curve: dict[str, float | None]
    blocks: list[tuple[int, int]]  # good and offered of each 10 s of arrivals
    endpoints: list[EndpointShare] = field(default_factory=list)

    @property
    def imbalance(self) -> float | None:
        """Largest number of requests on an engine over the mean."""
        total = sum(one.requests for one in self.endpoints)
        return max(one.requests for one in self.endpoints) * len(self.endpoints) / total if total else None

    @property
    def valid(self) -> bool:
        """Some cell says something."""
        return any(cell.sufficient for cell in self.cells.values())

    @property
    def met(self) -> bool:
        """Every target that can be judged is met, in total and in each sufficient cell."""
        groups = [(self.totals, self.target), *((cell, self.targets[key]) for key, cell in self.cells.items())]
        return all(
            figure.attainment is not None and figure.attainment >= target
            for figure, target in groups
            if figure.sufficient
        )


def report(
    samples: Sequence[Sample], slo_of: SloOf, slo: Slo, window_s: tuple[float, float], identity: tuple[int, str] | None
) -> RunReport:
    """The report of a run; `identity` is the seed and the digest of its schedule.

    None: it is asked only whether its goals are met, and has neither classes nor the `times` of its groups.
    """
    seed, schedule = identity or (0, "")
    whole = identity is not None
    start_s, end_s = window_s
    length_s = end_s - start_s
    judged = [judge(one, slo_of(one)) for one in samples if counts(one)]
    by_cell: dict[CellKey, list[Judged]] = defaultdict(list)
    for one in judged:
        by_cell[cell_of(one.sample)].append(one)
    tokens: dict[CellKey, float] = defaultdict(float)
    for sample in samples:
        tokens[cell_of(sample)] += sample.tokens_between(start_s, end_s)
    names = sorted({key[0] for key in by_cell}) if whole else ()
    pauses = {key: Pauses.of(one.sample for one in group) for key, group in by_cell.items()} if whole else {}
    bad = Counter((one.sample.outcome.value, one.sample.reason) for one in judged if one.sample.outcome is not OK)
    return RunReport(
        seed=seed,
        schedule=schedule,
        window_s=length_s,
        target=slo.target,
        totals=figures(judged, sum(tokens.values()), length_s, _sum(pauses.values()), timed=whole),
        classes={
            name: figures(
                [one for one in judged if one.sample.cls == name],
                sum(count for key, count in tokens.items() if key[0] == name),
                length_s,
                _sum(one for key, one in pauses.items() if key[0] == name),
            )
            for name in names
        },
        cells={
            key: figures(by_cell[key], tokens[key], length_s, pauses.get(key), timed=whole) for key in sorted(by_cell)
        },
        targets={key: slo_of(by_cell[key][0].sample).target for key in sorted(by_cell)},
        ends=dict(sorted(bad.items())),
        balance=balance(samples, start_s, end_s),
        slo_curve=curve(judged),
        blocks=_blocks(judged, start_s, end_s),
    )


def _sum(several: Iterable[Pauses]) -> Pauses:
    made = Pauses()
    for one in several:
        made.add(one)
    return made


def cell_of(sample: Sample) -> CellKey:
    """Where a request is counted."""
    return sample.cls, sample.tenant, sample.priority


def balance(samples: Sequence[Sample], start_s: float, end_s: float) -> Balance:
    """Requests in flight and waiting: means of 10 s, and a straight line through them."""
    times = [start_s + second + 0.5 for second in range(int(end_s - start_s))]
    begun = sorted(one.sched_s for one in samples)
    flying = _means(times, begun, sorted(one.end_s for one in samples if one.end_s > 0))
    waiting = _means(times, begun, sorted(seen for one in samples if (seen := _answered_s(one)) > 0))
    if len(waiting) < LEAST_BLOCKS:
        return Balance(mean=_mean(flying), waiting=_mean(waiting), drift=0.0, stationary=True)
    slope, error = _line(waiting)
    drift, mean = slope * len(waiting), _mean(waiting)
    large, certain = drift > max(DRIFT_REQUESTS, DRIFT_SHARE * mean), slope > NOISE * error
    return Balance(mean=_mean(flying), waiting=mean, drift=drift, stationary=not (large and certain))


def _answered_s(sample: Sample) -> float:
    """When its client saw that it is served: the first token, or the end."""
    return sample.reads[0] if sample.reads else sample.end_s


def _means(times: Sequence[float], begun: Sequence[float], over: Sequence[float]) -> list[float]:
    """How many had begun and were not over, as means of 10 s; of a shorter window as one mean."""
    open_at = [bisect_right(begun, time) - bisect_right(over, time) for time in times]
    size = min(int(BLOCK_S), len(open_at)) or 1
    return [_mean(open_at[first : first + size]) for first in range(0, len(open_at) - size + 1, size)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _line(values: Sequence[float]) -> tuple[float, float]:
    """Least squares: the slope for each step, and its standard error."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((place - middle) ** 2 for place in range(count))
    slope = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
    rest = sum((value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(values))
    return slope, math.sqrt(rest / (count - 2) / spread)


def interval(reports: Sequence[RunReport]) -> tuple[float, float] | None:
    """95 % of the attainment in total: over seeds from five of them on, else by resampling 10 s of arrivals."""
    if len(reports) >= FEW_SEEDS:
        return _over_seeds([one.totals.attainment or 0.0 for one in reports])
    return resampled_share([block for one in reports for block in one.blocks])


def resampled_share(blocks: Sequence[Block]) -> tuple[float, float] | None:
    """95 % of good / offered, by resampling blocks of both; None of fewer than two that have anything."""
    return resampled([block for block in blocks if block[1]], _share)


def difference(ours: Sequence[RunReport], theirs: Sequence[RunReport]) -> tuple[float, float] | None:
    """95 % of the difference in attainment of two arms under the same seeds, in pairs."""
    pairs = list(zip(ours, theirs, strict=True))
    if len(pairs) >= FEW_SEEDS:
        return _over_seeds([(a.totals.attainment or 0.0) - (b.totals.attainment or 0.0) for a, b in pairs])
    blocks = [both for a, b in pairs for both in zip(a.blocks, b.blocks, strict=True) if both[0][1] and both[1][1]]
    return resampled(blocks, lambda chosen: _share([a for a, _ in chosen]) - _share([b for _, b in chosen]))


_T95 = {5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def _over_seeds(values: Sequence[float]) -> tuple[float, float]:
    count = len(values)
    mean = sum(values) / count
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
    half = _T95.get(count, _T95[10]) * spread
    return mean - half, mean + half


def _share(blocks: Sequence[Block]) -> float:
    return sum(good for good, _ in blocks) / sum(offered for _, offered in blocks)


def _blocks(judged: Sequence[Judged], start_s: float, end_s: float) -> list[tuple[int, int]]:
    count = max(1, math.ceil((end_s - start_s) / BLOCK_S))
    good, offered = [0] * count, [0] * count
    for one in judged:
        place = min(count - 1, max(0, int((one.sample.sched_s - start_s) / BLOCK_S)))
        offered[place] += 1
        good[place] += one.good
    return list(zip(good, offered, strict=True))
