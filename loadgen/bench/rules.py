"""From the folder of a run to what the validity rules look at: equal for the run that ends and the one made again."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from loadgen.bench.validity import Counted, Evidence, Prompts, judged
from loadgen.report.folder import Health, Run, Scrape
from loadgen.report.parts import Validity
from loadgen.report.record import Sample
from loadgen.report.run import RunReport

CPU_SECONDS = 5  # V4 is of so long
UNRECONCILED = "the gateway was not looked at after the last answer"


def rules(run: Run, made: RunReport) -> Validity:
    """What `loadgen.report` asks of whoever makes a report."""
    return judged(evidence(run, made), run.basis.allowed)


def evidence(run: Run, made: RunReport) -> Evidence:
    """Everything in one value."""
    last = run.health[-1] if run.health else None
    lags = [one.emit_lag_p99_ms for one in _lasts(run.scrapes) if one.emit_lag_p99_ms is not None]
    return Evidence(
        samples=_known(run),
        probes=run.probes,
        window_s=run.window_s,
        least_ttft_ms=min(goal.slo.ttft.base_ms for goal in run.basis.goals),
        closed=run.basis.closed,
        closed_tenants=_closed(run),
        loop_lag_ms=last.loop_lag_p99_ms if last else None,
        cpu_share=_busiest(run.health),
        local_failures=last.local_failures if last else {},
        template_tokens=run.basis.template_tokens,
        controlled=run.basis.length_control != "none",
        largest_cell=round(max((cell.offered for cell in made.cells.values()), default=0)),
        emit_lag_ms=max(lags, default=None),
        server=_server(run),
        unreconciled=UNRECONCILED if any(one.gateway for one in run.scrapes) else "",
        engines=_engines(run),
    )


def _known(run: Run) -> Sequence[Sample]:
    """All requests; of a run that was killed those that left a line: whether the others had been sent nobody knows."""
    return run.samples if run.basis.ending else [one for one in run.samples if one.end_s > 0]


def _closed(run: Run) -> frozenset[str]:
    """Tenants whose requests wait for answers; none where a trace of users has names of its own."""
    tenants: Any = run.basis.scenario.get("tenants", ())
    arrivals = {one["name"]: one.get("arrivals", {}) for one in tenants}
    users = {name: one for name, one in arrivals.items() if one.get("users") is not None}
    return frozenset() if any(one.get("tenant_field") for one in users.values()) else frozenset(users)


def _busiest(health: Sequence[Health]) -> float | None:
    """The largest mean share of a core over some consecutive seconds, of any worker."""
    by_worker = groupby(sorted(health, key=attrgetter("worker", "t_s")), key=attrgetter("worker"))
    means = [mean for _, points in by_worker for mean in _means([one.cpu for one in points])]
    return max(means, default=None)


def _means(values: Sequence[float]) -> Iterable[float]:
    size = min(CPU_SECONDS, len(values))
    return (sum(values[first : first + size]) / size for first in range(len(values) - size + 1))


def _server(run: Run) -> Counted | None:
    """What all gateways that were looked at have counted during the run."""
    grown = _grown(run, [one for one in run.scrapes if one.gateway], Counted.__struct_fields__)
    return None if grown is None else Counted(**grown)


def _engines(run: Run) -> Prompts | None:
    """What engines have, those that say both. A series that begins late begins at 0: SGLang has none before the first hit."""
    lasts = (one for one in _lasts(run.scrapes) if not one.gateway)
    names = {one.name for one in lasts if one.prompt_tokens is not None and one.cached_tokens is not None}
    grown = _grown(run, [one for one in run.scrapes if one.name in names], Prompts.__struct_fields__)
    return None if grown is None else Prompts(**grown)


def _grown(run: Run, looks: Sequence[Scrape], fields: Iterable[str]) -> dict[str, int] | None:
    """The sum of each field over all that were looked at, between the first look at each and the last.

    None where the last look was before the last answer: the run was killed, or one of them did not answer any more.
    """
    lasts, firsts = _lasts(looks), _lasts(reversed(looks))
    ended_s = max((one.end_s for one in (*run.samples, *run.probes)), default=0.0)
    if not looks or run.basis.ending is None or any(one.t_s < ended_s for one in lasts):
        return None
    return {field: round(_sum(lasts, field) - _sum(firsts, field)) for field in fields}


def _lasts(scrapes: Iterable[Scrape]) -> list[Scrape]:
    """The last look at each server."""
    return list({one.name: one for one in scrapes}.values())


def _sum(scrapes: Sequence[Scrape], field: str) -> float:
    return sum(getattr(one, field) or 0.0 for one in scrapes)
