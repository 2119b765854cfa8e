"""From all that is known of a run to its report. The figures are those of `run.report`, as in the simulator."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from loadgen.report.curves import curves, dots
from loadgen.report.document import Report, RunInfo
from loadgen.report.fairness import fairness
from loadgen.report.figures import Judged, counts, judge
from loadgen.report.folder import Rules, Run, Scrape
from loadgen.report.parts import Block, Cell, CellBlocks, End, EndpointUse, GatewayUse
from loadgen.report.record import REJECTED, Outcome, Sample
from loadgen.report.run import BLOCK_S, CellKey, RunReport, cell_of, interval, report, resampled_share
from loadgen.report.steady import warmup_warning
from loadgen.report.timeline import client_health, loads, timeline
from loadgen.report.times import Times, spread

REASON_CHARACTERS = 80
_Use = tuple[float, float, float, float, float | None]  # requests; tokens of prompts, cached, of answers; preemptions


def make(run: Run, rules: Rules) -> Report:
    """The report; `rules` judge whether the run can be trusted."""
    basis = run.basis
    slo_of = basis.slo_of()
    figures = report(run.samples, slo_of, basis.slo, run.window_s, (basis.seed, basis.schedule))
    seconds = timeline(run.samples, run.end_s)
    blocks = _blocks(run)
    cells = _cells(run, figures, blocks)
    ending = basis.ending
    endpoints = _endpoints(run)
    return Report(
        run=RunInfo(
            started=basis.started,
            finished=ending.finished if ending else None,
            took_s=ending.took_s if ending else None,
            interrupted=ending is None or ending.interrupted,
            seed=basis.seed,
            salt=basis.salt,
            length_control=basis.length_control,
        ),
        environment=basis.environment,
        target=basis.target,
        scenario=basis.scenario,
        schedule=basis.schedule,
        closed=basis.closed,
        window_s=figures.window_s,
        window_start_s=basis.window_start_s,
        attainment_target=basis.slo.target,
        validity=rules(run, figures),
        slo_met=_met(figures, cells, basis.slo.target),
        totals=figures.totals,
        attainment_95=interval([figures]),
        cells=cells,
        classes=figures.classes,
        ends=_ends(run.samples),
        outcomes=_outcomes(run.samples),
        in_flight=figures.balance,
        fairness=fairness(run.samples, basis.weights, run.window_s, _attainments(run), basis.cost),
        client=client_health(run),
        timeline=seconds,
        slo_curve=figures.slo_curve,
        blocks=blocks,
        curves=curves(run.samples),
        dots=dots(run.samples, slo_of),
        endpoints=endpoints,
        imbalance=_imbalance(endpoints),
        gateway=_gateway(run.samples),
        loads=loads(run.scrapes),
        probe=_probe(run.probes),
        search=ending.search if ending else (),
        warnings=tuple(_warnings(run, figures)),
    )


def _cells(run: Run, figures: RunReport, blocks: Sequence[CellBlocks]) -> tuple[Cell, ...]:
    lenient = {(goal.tenant, goal.cls) for goal in run.basis.goals if goal.expect_rejects}
    samples: dict[CellKey, list[Sample]] = defaultdict(list)
    for one in run.samples:
        samples[cell_of(one)].append(one)
    return tuple(
        Cell(
            cls=of.cls,
            tenant=of.tenant,
            priority=of.priority,
            target=figures.targets[key],
            judged=figures.cells[key].sufficient and (of.tenant, of.cls) not in lenient,
            attainment_95=resampled_share([(one.good, one.offered) for one in of.blocks]),
            figures=figures.cells[key],
            outcomes=_outcomes(samples[key]),
            ends=_ends(samples[key]),
        )
        for of in blocks
        if (key := (of.cls, of.tenant, of.priority)) in figures.cells
    )


def _met(figures: RunReport, cells: Sequence[Cell], target: float) -> bool:
    """Every target that binds: the total's unless some cell is let off, and those of the cells that can be judged."""
    let_off = any(cell.figures.sufficient and not cell.judged for cell in cells)
    groups = [(cell.figures, cell.target) for cell in cells if cell.judged]
    if figures.totals.sufficient and not let_off:
        groups.append((figures.totals, target))
    return all(group.attainment is not None and group.attainment >= least for group, least in groups)


def _attainments(run: Run) -> dict[str, float]:
    """Of tenants that have enough requests."""
    slo_of = run.basis.slo_of()
    good: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    for one in run.samples:
        if counts(one):
            offered[one.tenant] += 1
            good[one.tenant] += judge(one, slo_of(one)).good
    return {tenant: good[tenant] / number for tenant, number in offered.items() if number >= 100}


def _ends(samples: Sequence[Sample]) -> tuple[End, ...]:
    """Bad ends, the commonest first."""
    found = Counter(
        (one.outcome, one.status, one.reason[:REASON_CHARACTERS])
        for one in samples
        if counts(one) and one.outcome is not Outcome.OK
    )
    return tuple(
        End(outcome=outcome, status=status, reason=reason, count=count)
        for (outcome, status, reason), count in sorted(found.items(), key=lambda row: (-row[1], row[0]))
    )


def _outcomes(samples: Sequence[Sample]) -> dict[str, int]:
    """How often each came, among what was measured; those that the schedule had leave too."""
    return dict(sorted(Counter(one.outcome.value for one in samples if one.measured).items()))


def _blocks(run: Run) -> tuple[CellBlocks, ...]:
    start_s, end_s = run.window_s
    count = max(1, int((end_s - start_s) / BLOCK_S + 1e-9))  # what is left over belongs to the last
    slo_of = run.basis.slo_of()
    judged: dict[CellKey, list[list[Judged]]] = defaultdict(lambda: [[] for _ in range(count)])
    received: dict[CellKey, list[float]] = defaultdict(lambda: [0.0] * count)
    for one in run.samples:
        _receive(one, run.window_s, received[cell_of(one)])
        if counts(one):
            place = min(count - 1, max(0, int((one.sched_s - start_s) / BLOCK_S)))
            judged[cell_of(one)][place].append(judge(one, slo_of(one)))
    return tuple(
        CellBlocks(cls=key[0], tenant=key[1], priority=key[2], blocks=tuple(map(_block, groups, received[key])))
        for key, groups in sorted(judged.items())
    )


def _receive(sample: Sample, window_s: tuple[float, float], received: list[float]) -> None:
    """Add the tokens of an answer to the blocks in which they were read."""
    start_s, end_s = window_s
    if sample.reads:
        last = len(received) - 1
        first, final = (min(last, int((read - start_s) // BLOCK_S)) for read in (sample.reads[0], sample.reads[-1]))
        for place in range(max(0, first), final + 1):
            begins_s = start_s + place * BLOCK_S
            received[place] += sample.tokens_between(begins_s, end_s if place == last else begins_s + BLOCK_S)


def _block(judged: Sequence[Judged], received: float) -> Block:
    ok = [one.sample for one in judged if one.sample.outcome is Outcome.OK]
    return Block(
        offered=len(judged),
        good=sum(one.good for one in judged),
        rejected=sum(one.sample.outcome in REJECTED for one in judged),
        output_tokens=round(received, 2),
        prompt_tokens=sum(one.prompt_tokens or one.input_tokens for one in ok),
        cached_tokens=sum(one.cached_tokens or 0 for one in ok),
        ttft_ms=tuple(
            math.inf if one.ttft_ms is None else round(one.ttft_ms, 2) for one in judged if one.sample.streamed
        ),
        tpot_ms=tuple(round(one.tpot_ms, 3) for one in judged if one.tpot_ms is not None),
        stall_ms=tuple(round(one.stall_ms, 2) for one in judged if one.stall_ms is not None),
    )


def _endpoints(run: Run) -> tuple[EndpointUse, ...]:
    """By the headers of the answers; where they say nothing, by what engines counted during the run."""
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for one in run.samples:
        if one.endpoint:
            by_name[one.endpoint].append(one)
    engines: dict[str, list[Scrape]] = defaultdict(list)
    for look in run.scrapes:
        if not look.gateway:
            engines[look.name].append(look)
    counted: dict[str, _Use] = {
        name: (
            float(len(group)),
            float(sum(one.prompt_tokens or 0 for one in group)),
            float(sum(one.cached_tokens or 0 for one in group)),
            float(sum(one.tokens for one in group)),
            None,
        )
        for name, group in by_name.items()
    }
    found = counted or {name: _scraped(seen) for name, seen in engines.items()}
    total = sum(row[0] for row in found.values())
    return tuple(
        EndpointUse(
            name=name,
            requests=row[0],
            share=row[0] / total if total else 0.0,
            prompt_tokens=row[1],
            cached_tokens=row[2],
            output_tokens=row[3],
            preemptions=row[4],
            timeline=_sent_to(by_name[name]) if counted else _counted_by(engines[name]),
        )
        for name, row in sorted(found.items())
    )


def _sent_to(samples: Sequence[Sample]) -> tuple[int, ...]:
    """How many in each 10 s of the run."""
    found = Counter(int(one.sent_s / BLOCK_S) for one in samples)
    return tuple(found[place] for place in range(max(found, default=-1) + 1))


def _counted_by(seen: Sequence[Scrape]) -> tuple[int, ...]:
    """How many an engine counted in each 10 s of the run, by the last look in each."""
    counts = {max(0, int(one.t_s // BLOCK_S)): one.requests for one in seen if one.requests is not None}
    last, made = seen[0].requests or 0.0, []
    for place in range(max(counts, default=-1) + 1):
        before, last = last, counts.get(place, last)
        made.append(round(last - before))
    return tuple(made)


def _scraped(seen: Sequence[Scrape]) -> _Use:
    def grown(field: str) -> float | None:
        first, last = getattr(seen[0], field), getattr(seen[-1], field)
        return None if last is None else float(last - (first or 0.0))  # a series that begins late begins at 0

    return (
        grown("requests") or 0.0,
        grown("prompt_tokens") or 0.0,
        grown("cached_tokens") or 0.0,
        grown("output_tokens") or 0.0,
        grown("preemptions"),
    )


def _imbalance(endpoints: Sequence[EndpointUse]) -> float | None:
    """Largest number of requests over the mean."""
    total = sum(one.requests for one in endpoints)
    return max(one.requests for one in endpoints) * len(endpoints) / total if total else None


def _gateway(samples: Sequence[Sample]) -> tuple[GatewayUse, ...]:
    """By pool and class, of measured requests whose answers say so."""
    found: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for one in samples:
        if counts(one) and (one.pool or one.gateway_class):
            found[one.pool, one.gateway_class].append(one)
    return tuple(
        GatewayUse(
            pool=pool,
            cls=cls,
            requests=len(group),
            again=sum(one.attempts > 1 for one in group),
            queued=spread(one.queued_s * 1000 for one in group),
        )
        for (pool, cls), group in sorted(found.items())
    )


def _probe(probes: Sequence[Sample]) -> Times | None:
    if not probes:
        return None
    seen = [ms for one in probes if one.outcome is Outcome.OK and (ms := one.ttft_ms) is not None]
    return Times(completed=spread(seen), adjusted=spread(seen, len(probes) - len(seen)))


def _warnings(run: Run, figures: RunReport) -> Iterator[str]:
    basis, start_s = run.basis, run.basis.window_start_s
    yield from basis.warnings
    if basis.ending is None:
        yield "The run was killed: the report is made of what it had written, and the window ends where that does."
    else:
        yield from basis.ending.warnings
        if basis.ending.interrupted and basis.ending.search:
            yield "The search was interrupted: this is of the probes so far."
        elif basis.ending.interrupted:
            yield "The run was interrupted: the window ends where sending did."
    if run.end_s < basis.window_end_s:
        yield f"{run.end_s - start_s:.1f} s were measured instead of {basis.window_end_s - start_s:.1f} s."
    if run.lost:
        yield f"Due and left no line: {run.lost:,} of the requests; they count as unfinished."
    if basis.closed:
        yield "Closed loop: the rate follows the answers, so latency is no measure of load; compare it with no open loop."
    yield from warmup_warning(run.samples, run.window_s)
    if not figures.balance.stationary:
        yield (
            f"Overloaded: requests without a first token grew by {figures.balance.drift:,.0f} over the window "
            f"(mean {figures.balance.waiting:,.1f}). Latencies depend on how long the run was."
        )
    if any(one.token_events and one.output_tokens is None for one in run.samples if one.outcome is Outcome.OK):
        yield "Some answers came without `usage`: their tokens are taken to be as many as token-bearing events."
