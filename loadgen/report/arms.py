"""Several arms side by side: the table for people, the same as plain values for programs."""

import math
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.table import Table

from loadgen.report.figures import Figures, mean
from loadgen.report.record import Slo
from loadgen.report.run import CellKey, RunReport, interval

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


def table(arms: Arms) -> Table:
    """A block for all requests and one for each cell; in it a row for each arm. Times in ms, means over the seeds."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column("times in ms", no_wrap=True)
    for heading in _HEADINGS:
        made.add_column(heading, justify="right", no_wrap=True)
    keys = cells(arms)
    for key in (None, *(keys if len(keys) > 1 else ())):
        made.add_row(_ALL if key is None else _name(key, keys), style="bold")
        for arm, runs in arms.items():
            group = mean_of(runs, key)
            if group is not None:
                made.add_row(f"  {arm}", *_row(group, runs if key is None else ()))
        made.add_section()
    return made


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
        totals = mean_of(runs, None)
        busy = _average([one.busy_share for run in runs for one in run.endpoints])
        most = _average([run.imbalance or 0.0 for run in runs])
        preempted = _average([float(sum(one.preemptions for one in run.endpoints)) for run in runs])
        flying = _average([run.balance.mean for run in runs])
        steady = all(run.balance.stationary for run in runs)
        waited = (totals.queued_p50_ms, totals.queued_p99_ms) if totals else (None, None)
        made.add_row(
            f"  {arm}",
            f"{busy * 100:.0f} %",
            f"{most:.2f}",
            f"{preempted:,.0f}",
            f"{flying:,.0f}",
            *(_time(value) for value in waited),
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
    groups = [group for runs in arms.values() if (group := mean_of(runs, None))]
    if not all(group.firm(0.99) for group in groups):
        yield "~ too few requests for this percentile: read it as roughly the largest value."
    yield "Simulated engines: the numbers compare ways of scheduling, they do not promise a machine's."


def cells(arms: Arms) -> list[CellKey]:
    """Every cell that some run has, sorted."""
    return sorted({key for runs in arms.values() for run in runs for key in run.cells})


def mean_of(runs: Sequence[RunReport], key: CellKey | None) -> Figures | None:
    """The mean over seeds of a cell's figures, or of the totals."""
    found = [run.totals if key is None else run.cells[key] for run in runs if key is None or key in run.cells]
    return mean(found) if found else None


def as_json(runs: Sequence[RunReport]) -> dict[str, object]:
    """One arm: means over seeds, then each run."""
    totals, within = mean_of(runs, None), interval(runs)
    keys = cells({"": runs})
    return {
        "totals": totals.as_json() if totals else None,
        "attainment_95": None if within is None else [round(bound, 4) for bound in within],
        "cells": [{**_labels(key), **group.as_json()} for key in keys if (group := mean_of(runs, key))],
        "runs": [_run(run) for run in runs],
    }


def _run(run: RunReport) -> dict[str, object]:
    return {
        "seed": run.seed,
        "schedule": run.schedule,
        "window_s": run.window_s,
        "valid": run.valid,
        "slo_met": run.met,
        "totals": run.totals.as_json(),
        "cells": [{**_labels(key), "target": run.targets[key], **cell.as_json()} for key, cell in run.cells.items()],
        "slo_curve": {factor: None if share is None else round(share, 4) for factor, share in run.slo_curve.items()},
        "in_flight": {
            "mean": round(run.balance.mean, 2),
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
