"""What has to be run, and running it: one arm at one load under one seed, or its highest rate there.

A task is known by everything it stands on: the resolved arm, the seed, and the code that a run of it goes through.
So a result is found again by whichever experiment asks for it, and never when anything it depends on has changed. A
baseline does not depend on the core's policies.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import msgspec

from loadgen.experiments.code import code, digest
from loadgen.experiments.terms import Load, Setup
from loadgen.report.arms import run_as_json
from loadgen.report.record import REJECTED, Sample
from loadgen.scenario import Scenario
from loadgen.sim import inputs
from loadgen.sim.arm import CORE, Arm, Ran, run
from loadgen.sim.loop import Timing
from loadgen.sim.search import Probe, probe, shortened
from loadgen.workload.trace import Trace

CLOSE = 1.04  # a search ends when the rates that pass and fail are so near
STEP = 1.25  # between its first probes
LARGEST, SMALLEST = 16.0, 1 / 16
REFUSALS_S = 5.0  # scheduling.md 13, E13

Plain = dict[str, Any]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """`search`: find the highest scale, beginning at this one, in windows of `search_s`. Otherwise `arm` is run as it is."""

    arm: Arm
    seed: int
    search: float | None = None
    search_s: float = 0.0

    def key(self) -> str:
        """Equal only for tasks with equal results."""
        plain = msgspec.to_builtins(self, enc_hook=str)
        ours = self.arm.router == CORE
        if not ours:
            for without in ("policy", "lengths"):
                del plain["arm"][without]
        traces = [digest(path) for path in trace_files(self.arm.scenario)]
        told = msgspec.json.encode([plain, code(ours), traces], order="deterministic")
        return hashlib.sha256(told).hexdigest()[:32]


def at(setup: Setup, load: Load, scale: float | None, traces: Path) -> Arm:
    """The arm at `scale` times the load's rate, or (None) to be searched. Raises one of `inputs.UNUSABLE`."""
    arm = unscaled(setup, load, traces)
    return arm if scale is None else scaled(arm, load, scale)


def unscaled(setup: Setup, load: Load, traces: Path) -> Arm:
    """The arm as it is searched. Raises one of `inputs.UNUSABLE`."""
    given = inputs.read(load.scenario, load.fleet, None, (*load.changes, *setup.changes))
    return Arm(
        router=setup.router,
        scenario=given.scenario.with_trace(traces),
        fleet=given.fleet,
        policy=given.policy,
        timing=Timing(poll_s=setup.poll_s, frozen_s=setup.frozen_s, patience_s=load.patience_s),
        lengths=setup.lengths,
    )


def scaled(arm: Arm, load: Load, scale: float) -> Arm:
    """At that factor on its rate, in the load's window, but with all of its tail: what is measured last still meets the load."""
    short = shortened(arm.scenario, scale, load.seconds)
    traced = any(isinstance(one.arrivals, Trace) for one in arm.scenario.tenants)
    kept = short if traced else msgspec.structs.replace(short, tail=arm.scenario.tail)
    return msgspec.structs.replace(arm, scenario=kept)


def missing(load: Load, traces: Path) -> list[str]:
    """The traces of a load that are not in that folder."""
    scenario = inputs.read(load.scenario, load.fleet, None, load.changes).scenario
    return sorted({path.name for path in trace_files(scenario) if not (traces / path.name).is_file()})


def trace_files(scenario: Scenario) -> list[Path]:
    """The traces that it replays."""
    return [Path(one.arrivals.file) for one in scenario.tenants if isinstance(one.arrivals, Trace)]


def work(task: Task) -> Plain:
    """Do it; plain values."""
    if task.search is not None:
        return highest(lambda scale: probe(task.arm, scale, task.seed, task.search_s), task.search)
    seen = Seen()
    return seen.with_run(run(task.arm, task.seed, seen.ended))


def highest(at_scale: Callable[[float], Probe], start: float) -> Plain:
    """The highest scale that passes (0: none), in steps from `start` on, then bisected."""
    probes: list[Probe] = []

    def passes(scale: float) -> bool:
        probes.append(at_scale(scale))
        return probes[-1].passed

    low, high = _bracket(passes, start)
    while low and high < math.inf and high / low > CLOSE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if passes(middle) else (low, middle)
    found = next((one for one in probes if one.scale == low), None)
    failed = next((one for one in probes if one.scale == high), None)
    return {
        "scale": low,
        "rate": found.rate if found else 0.0,
        "tokens_per_s": found.tokens_per_s if found else 0.0,
        "limited_by": failed.why if failed else "",
        "probes": len(probes),
    }


def _bracket(passes: Callable[[float], bool], start: float) -> tuple[float, float]:
    if passes(start):
        while start < LARGEST:
            if not passes(start * STEP):
                return start, start * STEP
            start *= STEP
        return start, math.inf
    while start > SMALLEST:
        start /= STEP
        if passes(start):
            return start, start * STEP
    return 0.0, start


class Seen:
    """What a report does not say of a run."""

    def __init__(self) -> None:
        self._refused: dict[int, int] = defaultdict(int)
        self._waited_s = 0.0

    def ended(self, sample: Sample) -> bool:
        """A measured request is over; the run goes on."""
        if sample.outcome in REJECTED:
            self._refused[int(sample.sched_s // REFUSALS_S)] += 1
        self._waited_s = max(self._waited_s, sample.queued_s)
        return False

    def with_run(self, ran: Ran) -> Plain:
        """All of it as plain values."""
        report = ran.report
        made = [one for pool in ran.pools for one in pool.forecasts if one.seen]
        told = sum(one.seen for one in made)
        return {
            **run_as_json(report),
            "forecasts": [
                {
                    "class": one.band,
                    "long": one.long,
                    "seen": one.seen,
                    "covered": one.covered,
                    "margin": round(one.margin, 3),
                }
                for one in made
            ],
            "coverage": sum(one.covered for one in made) / told if told else None,
            "moves_per_min": sum(pool.lane_moves for pool in ran.pools) / report.window_s * 60,
            "taking_long": [pool.taking_long for pool in ran.pools],
            "refusals_cv": self._cv(int(report.window_s // REFUSALS_S)),
            "longest_wait_s": round(self._waited_s, 3),
        }

    def _cv(self, slots: int) -> float:
        """How unevenly refusals come: deviation over mean of their number in 5 s."""
        if not self._refused:
            return 0.0
        first = min(self._refused)
        counts = [self._refused.get(first + place, 0) for place in range(slots)]
        return pstdev(counts) / fmean(counts) if any(counts) else 0.0
