"""What one run came to: totals and cells, whether load and system were in balance, how the work was spread.

A run is stationary when the number of requests in flight does not drift over the window: slope x length <= max(5,
20 % of the mean) (loadgen.md 6.3). One that is not is overloaded, whatever its attainment.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from loadgen.report.figures import Figures, Judged, SloOf, counts, curve, figures, judge
from loadgen.report.record import Sample, Slo

BLOCK_S = 10.0
RESAMPLES = 2000
FEW_SEEDS = 5
DRIFT_REQUESTS = 5.0
DRIFT_SHARE = 0.2

CellKey = tuple[str, str, str]


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
    """Requests in flight over the window, in the client's eyes."""

    mean: float
    drift: float  # slope x length
    stationary: bool


@dataclass(slots=True, kw_only=True)
class RunReport:
    """One arm under one seed. `cells` by (class, tenant, priority); `targets` are theirs, and the scenario's own."""

    seed: int
    schedule: str
    window_s: float
    target: float
    totals: Figures
    cells: dict[CellKey, Figures]
    targets: dict[CellKey, float]
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
    samples: Sequence[Sample], slo_of: SloOf, slo: Slo, window_s: tuple[float, float], identity: tuple[int, str]
) -> RunReport:
    """The report of a run; `identity` is the seed and the digest of its schedule."""
    start_s, end_s = window_s
    length_s = end_s - start_s
    judged = [judge(one, slo_of(one)) for one in samples if counts(one)]
    by_cell: dict[CellKey, list[Judged]] = defaultdict(list)
    for one in judged:
        by_cell[cell_of(one.sample)].append(one)
    tokens: dict[CellKey, float] = defaultdict(float)
    for sample in samples:
        tokens[cell_of(sample)] += sample.tokens_between(start_s, end_s)
    return RunReport(
        seed=identity[0],
        schedule=identity[1],
        window_s=length_s,
        target=slo.target,
        totals=figures(judged, sum(tokens.values()), length_s),
        cells={key: figures(by_cell[key], tokens[key], length_s) for key in sorted(by_cell)},
        targets={key: slo_of(by_cell[key][0].sample).target for key in sorted(by_cell)},
        balance=balance(samples, start_s, end_s),
        slo_curve=curve(judged),
        blocks=_blocks(judged, start_s, end_s),
    )


def cell_of(sample: Sample) -> CellKey:
    """Where a request is counted."""
    return sample.cls, sample.tenant, sample.priority


def balance(samples: Sequence[Sample], start_s: float, end_s: float) -> Balance:
    """Requests in flight, each second of the window."""
    begun = sorted(one.sched_s for one in samples)
    ended = sorted(one.end_s for one in samples if one.end_s > 0)
    times = [start_s + second + 0.5 for second in range(int(end_s - start_s))]
    open_at = [bisect_right(begun, time) - bisect_right(ended, time) for time in times]
    if len(times) < 2:
        return Balance(mean=float(sum(open_at)), drift=0.0, stationary=True)
    middle, mean = sum(times) / len(times), sum(open_at) / len(open_at)
    covered = sum((time - middle) * (number - mean) for time, number in zip(times, open_at, strict=True))
    drift = covered / sum((time - middle) ** 2 for time in times) * (end_s - start_s)
    return Balance(mean=mean, drift=drift, stationary=drift <= max(DRIFT_REQUESTS, DRIFT_SHARE * mean))


def interval(reports: Sequence[RunReport]) -> tuple[float, float] | None:
    """95 % of the attainment in total: over seeds from five of them on, else by resampling 10 s of arrivals."""
    if len(reports) >= FEW_SEEDS:
        return _over_seeds([one.totals.attainment or 0.0 for one in reports])
    blocks = [block for one in reports for block in one.blocks if block[1]]
    if len(blocks) < 2:
        return None
    random = Random(0)
    drawn = sorted(_resampled(blocks, random) for _ in range(RESAMPLES))
    return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]


_T95 = {5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def _over_seeds(values: Sequence[float]) -> tuple[float, float]:
    count = len(values)
    mean = sum(values) / count
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
    half = _T95.get(count, 1.96) * spread
    return mean - half, mean + half


def _resampled(blocks: Sequence[tuple[int, int]], random: Random) -> float:
    chosen = random.choices(blocks, k=len(blocks))
    return sum(good for good, _ in chosen) / sum(offered for _, offered in chosen)


def _blocks(judged: Sequence[Judged], start_s: float, end_s: float) -> list[tuple[int, int]]:
    count = max(1, math.ceil((end_s - start_s) / BLOCK_S))
    good, offered = [0] * count, [0] * count
    for one in judged:
        place = min(count - 1, max(0, int((one.sample.sched_s - start_s) / BLOCK_S)))
        offered[place] += 1
        good[place] += one.good
    return list(zip(good, offered, strict=True))
