"""The highest rate at which a scenario still meets its goal (loadgen.md 1.7).

The requests are the same at every rate, only closer together. Double until a probe fails, then bisect until the two
rates are within 5 %, then confirm on two further seeds; below a rate that one of these fails, in steps of 5 %, the next
one that it passes is looked for, and confirmed in its turn. The answer passes on all three. A probe passes if it is valid,
stationary, and meets its targets in total and in every cell that can be judged. One that can no longer pass is cut.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import msgspec

from loadgen.report.figures import counts, judge
from loadgen.report.record import Sample
from loadgen.report.run import RunReport, report
from loadgen.scenario import Scenario
from loadgen.schedule import Schedule, build
from loadgen.sim.arm import Arm, simulate, slo_of
from loadgen.workload.arrivals import Ramp, Spike, Step
from loadgen.workload.fields import duration, seconds
from loadgen.workload.trace import Trace

CLOSE = 1.05
CONFIRMED_BY = 3  # seeds
LEAST_REQUESTS = 500  # of a probe's window
LARGEST, SMALLEST = 64.0, 1 / 64


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one rate. `why` says what it failed on, "" if it passed; `attainment` is partial in a cut one."""

    scale: float
    rate: float
    seed: int
    why: str
    attainment: float | None
    tokens_per_s: float
    requests: int
    cut: bool

    @property
    def passed(self) -> bool:
        return not self.why


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the highest scale that passes on all seeds (0: none does), the lowest that failed (infinity: none), every
    probe.
    """

    router: str
    scale: float
    rate: float
    failed_scale: float
    probes: tuple[Probe, ...]
    valid: bool


@dataclass(slots=True)
class Search:
    """One search for one arm: from `start` on, in windows of `probe_s`."""

    arm: Arm
    seed: int
    start: float
    probe_s: float

    def run(self, told: Callable[[str, Probe], None] = lambda router, probe: None) -> Found:
        """Find it; `told` hears of each probe."""
        probes: list[Probe] = []
        search = steps(self.seed, self.start)
        wanted = next(search)
        while True:
            made = self._probe(*wanted)
            probes.append(made)
            told(self.arm.router, made)
            try:
                wanted = search.send(made.passed)
            except StopIteration as over:
                return found(self.arm.router, over.value, probes)

    def _probe(self, scale: float, seed: int) -> Probe:
        return probe(self.arm, scale, seed, self.probe_s)


Steps = Generator[tuple[float, int], bool, tuple[float, float]]
"""Yields the scale and the seed of the next probe, is sent whether it passed, and returns the highest scale that passes
on all seeds (0: none) and the lowest that failed (infinity: none, up to the largest that is tried)."""


def steps(seed: int, start: float) -> Steps:
    """The search itself, whoever runs its probes, simulated or live."""
    low, high = yield from _bracket(seed, start)
    while low and CLOSE < high / low < math.inf:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (yield middle, seed) else (low, middle)
    seeds = range(seed, seed + CONFIRMED_BY)
    unsure = [*seeds[1:]]  # the first has passed there
    while low and (failed := (yield from _first_failing(low, unsure))) is not None:
        low, high = yield from _below(low, failed)
        unsure = [one for one in seeds if one != failed]
    return low, high


def _below(scale: float, seed: int) -> Steps:
    """As `_bracket`, within 5 %, of a seed that has failed at `scale`: no other is asked meanwhile.

    Most often 5 % less will do. Where not, strides double, and what they have stepped over is bisected: a seed that
    holds at a quarter of what the first one does takes 10 probes where single steps of 5 % take 29.
    """
    most = int(math.log(scale / SMALLEST, CLOSE)) if scale > SMALLEST else 0
    fails, passes = 0, min(1, most)
    while fails < most and not (yield scale / CLOSE**passes, seed):
        fails, passes = passes, min(passes * 2, most)
    if fails == most:
        return 0.0, scale / CLOSE**fails
    while passes - fails > 1:
        middle = (passes + fails) // 2
        fails, passes = (fails, middle) if (yield scale / CLOSE**middle, seed) else (middle, passes)
    return scale / CLOSE**passes, scale / CLOSE**fails


def found(router: str, bracket: tuple[float, float], probes: Sequence[Probe]) -> Found:
    """What a search came to."""
    low, high = bracket
    return Found(
        router=router,
        scale=low,
        rate=max((probe.rate for probe in probes if probe.scale == low), default=0.0),
        failed_scale=high,
        probes=tuple(probes),
        valid=any(probe.passed or probe.why != TOO_FEW for probe in probes),
    )


def _first_failing(scale: float, seeds: Sequence[int]) -> Generator[tuple[float, int], bool, int | None]:
    for seed in seeds:
        if not (yield scale, seed):
            return seed
    return None


def probe(arm: Arm, scale: float, seed: int, probe_s: float) -> Probe:
    """Whether the arm meets its goals at `scale` times its scenario's rate, in a window of `probe_s`."""
    scenario = shortened(arm.scenario, scale, probe_s)
    schedule = build(scenario, seed)
    misses = Misses(scenario, schedule)
    there = msgspec.structs.replace(arm, scenario=scenario)
    samples = simulate(there, schedule, seed, misses.too_many).samples
    window_s = schedule.window_start_s, schedule.window_end_s
    told = report(samples, slo_of(scenario), scenario.slo, window_s, None)
    return Probe(
        scale=scale,
        rate=len(schedule.requests) / scenario.total_s,
        seed=seed,
        why="attainment" if misses.cut else why(told),
        attainment=told.totals.attainment,
        tokens_per_s=told.totals.output_tokens_per_s,
        requests=len(samples),
        cut=misses.cut,
    )


def shortened(
    scenario: Scenario, scale: float, probe_s: float, only: str | None = None, least: int = LEAST_REQUESTS
) -> Scenario:
    """The scenario at `scale` times its rate (that of the tenant `only`), in a window of `probe_s`, or as long as it takes
    for `least` requests.

    A load that changes over time keeps its times; a trace has no more than was recorded.
    """
    scaled = scenario.scaled(scale, only)
    sources = [tenant.arrivals for tenant in scaled.tenants]
    if any(isinstance(source, Step | Ramp | Spike) for source in sources):
        return scaled
    window_s = max(probe_s, least / scaled.rate)
    if any(isinstance(source, Trace) for source in sources):
        window_s = min(window_s, scaled.duration_s)
    times = {"warmup": min(scaled.warmup_s, probe_s / 2), "duration": window_s, "tail": min(seconds(scaled.tail), 30.0)}
    return msgspec.structs.replace(scaled, **{name: duration(value_s) for name, value_s in times.items()})


class Misses:
    """Counts what was not good: beyond the target's share of all planned requests a run cannot pass any more."""

    def __init__(self, scenario: Scenario, schedule: Schedule) -> None:
        planned = sum(one.measured and one.cancel_after_s is None for one in schedule.requests)
        self.cut = False
        self._slo_of = slo_of(scenario)
        self._allowed = (1 - scenario.slo.target) * planned
        self._missed = 0

    def too_many(self, sample: Sample) -> bool:
        """Whether it is time to stop."""
        if counts(sample) and not judge(sample, self._slo_of(sample)).good:
            self._missed += 1
            self.cut = self._missed > self._allowed + 1e-9
        return self.cut


TOO_FEW = "no cell with enough requests"


def _bracket(seed: int, start: float) -> Steps:
    """A scale that passes (0: none) and a larger one that fails (infinity: none)."""
    scale = start
    if (yield scale, seed):
        while scale < LARGEST:
            more = min(scale * 2, LARGEST)
            if not (yield more, seed):
                return scale, more
            scale = more
        return scale, math.inf
    while scale > SMALLEST:
        scale /= 2
        if (yield scale, seed):
            return scale, scale * 2
    return 0.0, scale


def why(report: RunReport) -> str:
    """What a probe failed on; "" for nothing."""
    if not report.valid:
        return TOO_FEW
    missed = [
        "/".join(part for part in key if part)
        for key, cell in report.cells.items()
        if cell.sufficient and (cell.attainment or 0.0) < report.targets[key]
    ]
    if missed:
        return f"attainment of {missed[0]}"
    if not report.met:
        return "attainment"
    return "" if report.balance.stationary else "not stationary"
