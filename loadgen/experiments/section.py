"""One experiment, run and judged: what the page says of it, as plain values."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from loadgen.experiments import judge
from loadgen.experiments.figures import Estimate, Plain, estimate, figure, group_of
from loadgen.experiments.judge import RATE, Measured, Verdict
from loadgen.experiments.lab import Lab
from loadgen.experiments.tasks import missing
from loadgen.experiments.terms import BEST, Experiment, Load, Point

MANY_CELLS = 6  # more are shown by class


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one point: means over the seeds. `groups`: figures of classes or cells; `curve`: attainment with all
    limits times so much."""

    arm: str
    attainment: Estimate
    figures: dict[str, float | None]
    groups: dict[str, dict[str, float | None]]
    curve: dict[str, float]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How much each arm carries, requests/s, under so many seeds; the last column says what it fails on."""

    where: str
    arms: dict[str, tuple[Estimate, int, str]]


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """All arms at one load and point."""

    where: str
    offered_per_s: float
    window_s: float
    seeds: int
    rows: tuple[Row, ...]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """What the page says of an experiment. `made`: the command, the commit, the day."""

    id: str
    title: str
    claim: str
    notes: tuple[str, ...]
    made: dict[str, str]
    verdicts: tuple[Verdict, ...]
    rates: tuple[Rates, ...]
    runs: tuple[Runs, ...]
    skipped: tuple[str, ...]
    curve: bool


def section(experiment: Experiment, lab: Lab, made: dict[str, str]) -> Section:
    """Run and judge it; NotYet while something has to be run first."""
    absent = {load.name: missing(load, lab.traces) for load in experiment.loads}
    places = [place for place, load in enumerate(experiment.loads) if not absent[load.name]]
    done = lab.together(places, lambda place: _at(experiment, place, lab))
    return Section(
        id=experiment.id,
        title=experiment.title,
        claim=experiment.claim,
        notes=experiment.notes,
        made=made,
        verdicts=tuple(one for verdicts, _, _ in done for one in verdicts),
        rates=tuple(rates for _, rates, _ in done if rates is not None),
        runs=tuple(one for _, _, runs in done for one in runs),
        skipped=tuple(f"{name}: needs {', '.join(files)}" for name, files in absent.items() if files),
        curve=experiment.curve,
    )


def _at(experiment: Experiment, place: int, lab: Lab) -> tuple[list[Verdict], Rates | None, list[Runs]]:
    """One load: what is claimed of rates, then every point."""
    load = experiment.loads[place]
    claims = [claim for claim in experiment.claims if claim.loads is None or place in claim.loads]
    of_rates = [claim for claim in claims if claim.figure == RATE]
    verdicts = lab.together(of_rates, lambda claim: judge.of_rates(claim, experiment, load, lab))
    rates = _rates(experiment, load, lab) if of_rates else None
    measured = lab.together(experiment.points, lambda point: _measured(experiment, load, point, lab))
    for number, runs in enumerate(measured):
        verdicts += [
            judge.of_runs(claim, runs)
            for claim in claims
            if claim.figure != RATE and (claim.points is None or number in claim.points)
        ]
    return verdicts, rates, [_table(one) for one in measured]


def _measured(experiment: Experiment, load: Load, point: Point, lab: Lab) -> Measured:
    scale = lab.scale(experiment, load, point)
    best = lab.best(experiment, load) if experiment.field else None
    arms = [*experiment.arms, *([best] if best and best not in experiment.arms else [])]
    runs = lab.together(arms, lambda arm: lab.runs(arm, load, scale))
    return Measured(
        where=f"{load.name}, {point.name}",
        runs={arm.label: result for arm, result in zip(arms, runs, strict=True)},
        best=best.label if best else "",
    )


def _rates(experiment: Experiment, load: Load, lab: Lab) -> Rates:
    """Of the arms under all seeds, of the field as far as it was searched."""
    claimed = {name for claim in experiment.claims if claim.figure == RATE for name in (claim.ours, *claim.against)}
    near = lab.contenders(experiment, load) if BEST in claimed else []
    first = lab.seeds(load)[:1]
    found: dict[str, tuple[Estimate, int, str]] = {}
    for setup in (*experiment.arms, *experiment.field):
        whole = setup in near or setup.label in claimed
        if whole or setup in experiment.field:
            results = lab.rates(setup, load, None if whole else first)
            found[setup.label] = _rate(results)
    return Rates(where=load.name, arms=found)


def _rate(results: Sequence[Plain]) -> tuple[Estimate, int, str]:
    limits = [one["limited_by"] for one in results]
    return estimate([one["rate"] for one in results]), len(results), max(set(limits), key=limits.count)


_COLUMNS = (
    "rejected_capacity",
    "failed",
    "goodput_per_s",
    "output_tokens_per_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "stall_p99_ms",
    "cached_share",
)
_OF_GROUPS = ("ttft_p50_ms", "ttft_p99_ms", "attainment")
_OF_RUNS = ("imbalance", "coverage", "moves_per_min", "refusals_cv", "longest_wait_s")


def _table(measured: Measured) -> Runs:
    first = next(iter(measured.runs.values()))
    groups = _groups(first[0])
    return Runs(
        where=measured.where,
        offered_per_s=_mean(first, "all.offered") / first[0]["window_s"],
        window_s=first[0]["window_s"],
        seeds=len(first),
        rows=tuple(_row(arm, runs, groups) for arm, runs in measured.runs.items()),
    )


def _row(arm: str, runs: Sequence[Plain], groups: Sequence[str]) -> Row:
    return Row(
        arm=arm,
        attainment=estimate([figure(run, "all.attainment") or 0.0 for run in runs]),
        figures={
            **{name: _mean(runs, f"all.{name}") for name in _COLUMNS},
            **{name: _mean(runs, name) for name in _OF_RUNS},
        },
        groups={group: {name: _mean(runs, f"{group}.{name}") for name in _OF_GROUPS} for group in groups},
        curve={factor: fmean(run["slo_curve"][factor] for run in runs) for factor in runs[0]["slo_curve"]},
    )


def _groups(run: Plain) -> list[str]:
    """The parts of a run, under the names that tell them apart."""
    cells = run["cells"]
    for part in ("class", "priority", "tenant"):
        names = list(dict.fromkeys(cell[part] for cell in cells))
        if 1 < len(names) <= MANY_CELLS and (len(names) == len(cells) or part == "class"):
            return [name for name in names if group_of(run, name)]
    return []


def _mean(runs: Sequence[Plain], name: str) -> float | None:
    values = [value for run in runs if (value := figure(run, name)) is not None]
    return estimate(values).mean if values else None
