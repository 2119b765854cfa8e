"""Several arms side by side: the table for people, the same as plain values for programs."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich import box
from rich.table import Table

from loadgen.report.figures import Figures, mean
from loadgen.report.record import Slo
from loadgen.report.run import CellKey, RunReport, difference, interval

Arms = Mapping[str, Sequence[RunReport]]
"""The runs of each arm, one for each seed."""

_HEADINGS = (
    "offered",
    "refused",
    "failed",
    "TTFT\np50",
    "TTFT\np99",
    "TPOT\np50",
    "stall\np99",
    "within\nSLO",
    "good\nper s",
    "tokens\nper s",
    "cached /\nideal",
)
_ALL = "all"
MANY_CELLS = 12


def table(arms: Arms) -> Table:
    """A block for all requests, then for each cell, or each class where there are too many; a row in it for each arm.

    Times in ms, means over the seeds.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column("times in ms", no_wrap=True)
    for heading in _HEADINGS:
        made.add_column(heading, justify="right", no_wrap=True)
    for title, of in _blocks(arms):
        made.add_row(title, style="bold")
        for arm, runs in arms.items():
            groups = [group for run in runs if (group := of(run))]
            if groups:
                made.add_row(f"  {arm}", *_row(mean(groups), runs if title == _ALL else ()))
        made.add_section()
    return made


def _blocks(arms: Arms) -> Iterator[tuple[str, Callable[[RunReport], Figures | None]]]:
    """Title of each block, and where its figures are."""
    yield _ALL, lambda run: run.totals
    keys = cells(arms)
    if len(keys) > MANY_CELLS:
        for name in sorted({key[0] for key in keys}):
            yield name, lambda run, name=name: run.classes.get(name)  # type: ignore[misc]
    elif len(keys) > 1:
        for key in keys:
            yield _name(key, keys), lambda run, key=key: run.cells.get(key)  # type: ignore[misc]


def engines(arms: Arms) -> Table:
    """How each arm used the engines, and how long requests waited for one."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column("engines", no_wrap=True)
    headings = (
        "busy",
        "most / mean\nrequests",
        "preempted",
        "in flight",
        "waited ms\np50",
        "waited ms\np99",
        "balance",
    )
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    for arm, runs in arms.items():
        totals = mean([run.totals for run in runs])
        busy = _average([one.busy_share for run in runs for one in run.endpoints])
        most = _average([run.imbalance or 0.0 for run in runs])
        preempted = _average([float(sum(one.preemptions for one in run.endpoints)) for run in runs])
        flying = _average([run.balance.mean for run in runs])
        steady = all(run.balance.stationary for run in runs)
        made.add_row(
            f"  {arm}",
            f"{busy * 100:.0f} %",
            f"{most:.2f}",
            f"{preempted:,.0f}",
            f"{flying:,.0f}",
            _time(totals.queued_p50_ms),
            _time(totals.queued_p99_ms),
            "stationary" if steady else "overloaded",
        )
    return made


def footnotes(slo: Slo, arms: Arms) -> Iterator[str]:
    """What the words of the tables mean."""
    yield (
        f"SLO: first token within {slo.ttft.base_ms:g} ms (+ {slo.ttft.per_token_ms:g} ms per prompt token beyond "
        f"{slo.ttft.free_tokens:,}), no pause above {slo.stall_ms:g} ms, at most {slo.tpot_ms:g} ms per token on "
        "average. Times count from the intended arrival; whoever got no answer waits for ever in the percentiles."
    )
    groups = [mean([run.totals for run in runs]) for runs in arms.values()]
    if len(cells(arms)) > MANY_CELLS:
        yield f"{len(cells(arms))} cells of class, tenant and priority are in --json; {_worst(arms)}"
    yield from _differences(arms)
    for arm, runs in arms.items():
        if bad := _bad_ends(runs):
            yield f"{arm}: {bad}."
    if not all(group.firm(0.99) for group in groups):
        yield "~ too few requests for this percentile: read it as roughly the largest value."
    yield "Simulated engines: the numbers compare ways of scheduling, they do not promise a machine's."


def cells(arms: Arms) -> list[CellKey]:
    """Every cell that some run has, sorted."""
    return sorted({key for runs in arms.values() for run in runs for key in run.cells})


def _differences(arms: Arms) -> Iterator[str]:
    """The first arm beside each other one, as sentences."""
    first, *others = arms
    for other in others:
        ours, theirs = (mean([run.totals for run in arms[name]]).attainment or 0.0 for name in (first, other))
        within = difference(arms[first], arms[other])
        if within is not None:
            low, high = (bound * 100 for bound in within)
            clear = "" if low > 0 or high < 0 else ", not certain"
            yield (
                f"{first} against {other}: {(ours - theirs) * 100:+.1f} points within the SLO "
                f"(95 %: {low:+.1f} to {high:+.1f}{clear})."
            )


def _worst(arms: Arms) -> str:
    """The cell that does worst in the first arm."""
    arm, runs = next(iter(arms.items()))
    judged = [
        (cell.attainment or 0.0, " ".join(part for part in key if part))
        for run in runs
        for key, cell in run.cells.items()
        if cell.sufficient
    ]
    if not judged:
        return "none of them is large enough to be judged."
    share, name = min(judged)
    return f"the worst of {arm} that is large enough to be judged is {name}, {share * 100:.1f} %."


def _bad_ends(runs: Sequence[RunReport]) -> str:
    ends: Counter[str] = Counter()
    for run in runs:
        for (outcome, reason), number in run.ends.items():
            ends[f"{outcome} ({reason})" if reason else outcome] += number
    return ", ".join(f"{number:,} x {end}" for end, number in ends.most_common())


def as_json(runs: Sequence[RunReport]) -> dict[str, object]:
    """One arm: means over seeds, then each run."""
    within = interval(runs)
    return {
        "totals": mean([run.totals for run in runs]).as_json(),
        "attainment_95": None if within is None else [round(bound, 4) for bound in within],
        "cells": [
            {**_labels(key), **mean([run.cells[key] for run in runs if key in run.cells]).as_json()}
            for key in cells({"": runs})
        ],
        "runs": [run_as_json(run) for run in runs],
    }


def compared(told: Mapping[str, dict[str, object]], arms: Arms) -> dict[str, object]:
    """The arms as plain values, each with what the first one's attainment is more than its own, 95 %."""
    first = next(iter(arms))
    made: dict[str, object] = {}
    for name, one in told.items():
        within = difference(arms[first], arms[name])
        made[name] = {**one, "first_is_better_by_95": None if within is None else [round(bound, 4) for bound in within]}
    return made


def run_as_json(run: RunReport) -> dict[str, object]:
    """One run as plain values."""
    return {
        "seed": run.seed,
        "schedule": run.schedule,
        "window_s": run.window_s,
        "valid": run.valid,
        "slo_met": run.met,
        "totals": run.totals.as_json(),
        "cells": [{**_labels(key), "target": run.targets[key], **cell.as_json()} for key, cell in run.cells.items()],
        "classes": {name: group.as_json() for name, group in run.classes.items()},
        "ends": [
            {"outcome": outcome, "reason": reason, "count": number} for (outcome, reason), number in run.ends.items()
        ],
        "slo_curve": {factor: None if share is None else round(share, 4) for factor, share in run.slo_curve.items()},
        "in_flight": {
            "mean": round(run.balance.mean, 2),
            "waiting": round(run.balance.waiting, 2),
            "drift": round(run.balance.drift, 2),
            "stationary": run.balance.stationary,
        },
        "imbalance": None if run.imbalance is None else round(run.imbalance, 4),
        "endpoints": [
            {
                "name": one.name,
                "requests": one.requests,
                "busy_share": round(one.busy_share, 4),
                "prompt_tokens": one.prompt_tokens,
                "cached_tokens": one.cached_tokens,
                "output_tokens": one.output_tokens,
                "steps": one.steps,
                "preemptions": one.preemptions,
            }
            for one in run.endpoints
        ],
    }


def _labels(key: CellKey) -> dict[str, str]:
    return dict(zip(("class", "tenant", "priority"), key, strict=True))


def _name(key: CellKey, keys: Sequence[CellKey]) -> str:
    """The parts of a cell's name that tell it from the others."""
    varied = [part for place, part in enumerate(key) if len({other[place] for other in keys}) > 1]
    return " ".join(varied)


def _row(group: Figures, runs: Sequence[RunReport]) -> list[str]:
    within = interval(runs) if runs else None
    share = "-" if group.attainment is None else f"{group.attainment * 100:.1f} %"
    if within is not None:
        share = f"{share} ({within[0] * 100:.0f}-{within[1] * 100:.0f})"
    cached = group.cached_share
    return [
        f"{group.offered:,.0f}",
        f"{group.rejected:,.0f}",
        f"{group.failed:,.0f}",
        _time(group.ttft_p50_ms),
        ("" if group.firm(0.99) else "~") + _time(group.ttft_p99_ms),
        _time(group.tpot_p50_ms),
        _time(group.stall_p99_ms),
        share,
        f"{group.goodput_per_s:.2f}",
        f"{group.output_tokens_per_s:,.0f}",
        "-" if cached is None else f"{cached * 100:.0f} %",
    ]


def _time(value: float | None) -> str:
    if value is None:
        return "-"
    return "never" if value == math.inf else f"{value:,.0f}"


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
