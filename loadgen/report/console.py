"""A report for a terminal: the verdict first, then what it stands on. Fits 80 columns, says more in wider ones."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from loadgen.report.document import Report
from loadgen.report.figures import Figures
from loadgen.report.parts import Cell, Interval, State

MANY_CELLS = 12
MANY_TENANTS = 12
MOST_GROUPS = 10  # of errors
_WIDE = 110
_NARROW = 100


def lines(report: Report) -> Iterator[RenderableType]:
    """Everything, from top to bottom. What servers said is shown as it is, never taken for markup."""
    yield Text(title(report))
    yield Text(verdict(report), style="bold green" if report.exit_code == 0 else "bold red")
    for told in broken(report):
        yield Text(told, style="red")
    yield _Cells(report)
    for told in notes(report):
        yield Text(told)
    if len(report.fairness.tenants) > 1 or any(one.cached_share is not None for one in report.fairness.tenants):
        yield tenants_table(report)
    for told in (*between_tenants(report), *endpoints(report), *gateway(report), *client(report)):
        yield Text(told)
    if report.ends:
        yield _ends(report)
    for told in report.warnings:
        yield Text(f"! {told}", style="yellow")


def title(report: Report) -> str:
    """What was run against what."""
    urls = report.target.get("urls") or [report.target.get("url", "")]
    model = report.target.get("model")
    where = " ".join(part for part in (f"{model} at" if model else "", ", ".join(map(str, urls))) if part)
    loop = "closed loop, " if report.closed else ""
    return (
        f"{report.name} on {where}: {report.client.offered_per_s:.2f} requests/s for {round(report.window_s, 1):g} s, "
        f"{loop}seed {report.run.seed}"
    )


def verdict(report: Report) -> str:
    """VALID or INVALID, and whether the SLO was met."""
    totals = report.totals
    if totals.attainment is None:
        return f"{_trust(report)}: nothing was measured"
    judged = totals.sufficient or any(cell.judged for cell in report.cells)
    met = ("SLO met" if report.slo_met else "SLO missed") if judged else "SLO not judged"
    share = f"{percent(totals.attainment)} of {totals.offered:,.0f} requests within it{_between(report.attainment_95)}"
    return f"{_trust(report)}, {met}: {share}; {_asked(report)}"


def _trust(report: Report) -> str:
    cut = "INTERRUPTED, " if report.run.interrupted else ""
    return cut + ("VALID" if report.validity.valid else "INVALID")


def _asked(report: Report) -> str:
    """The target, and which cell misses its own."""
    asked = f"target {percent(report.attainment_target)}"
    worst = [cell for cell in report.cells if cell.judged and (cell.figures.attainment or 0.0) < cell.target]
    if not worst:
        return asked
    cell = min(worst, key=lambda one: (one.figures.attainment or 0.0) - one.target)
    more = f" and {len(worst) - 1} more" if len(worst) > 1 else ""
    return f"{asked}; {name_of(cell, report.cells)} has {percent(cell.figures.attainment)}{more}"


def broken(report: Report) -> list[str]:
    """The rules of validity that are not kept, one sentence each."""
    told = []
    for rule in report.validity.rules:
        if rule.state is not State.OK:
            numbers = "" if rule.value is None else f": {amount(rule.value)}"
            limit = "" if rule.limit is None else f" (limit {amount(rule.limit)})"
            allowed = ", allowed by name" if rule.state is State.ALLOWED else ""
            told.append(f"{rule.id} broken{allowed}: {rule.words}{numbers}{limit}")
    return told


@dataclass
class _Cells:
    """The table of tenants and classes: as many columns as there is room for."""

    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield cells_table(self.report, options.max_width)


def cells_table(report: Report, width: int) -> Table:
    """A row for everything, then one for each cell, or for each class and the worst cells where there are many."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column("times in ms", no_wrap=width >= _NARROW, overflow="fold")
    headings = ["offered", "refused", "failed", "TTFT\np50", "TTFT\np99", "TPOT\np50", "stall\np99", "within SLO"]
    if width >= _NARROW:
        headings[1:1] = ["ok"]
        headings += ["good\nper s"]
    if width >= _WIDE:
        headings[-1:-1] = ["ITL\np99"]
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    for name, group, within in _rows(report):
        cells = _row(group, within)
        made.add_row(name, *(cells[heading] for heading in headings))
    return made


def _rows(report: Report) -> Iterator[tuple[str, Figures, Interval | None]]:
    yield "all", report.totals, report.attainment_95
    cells: Sequence[Cell] = report.cells
    if len(cells) > MANY_CELLS:
        for name, group in report.classes.items():
            yield f"all {name}", group, None
        judged = [cell for cell in cells if cell.judged] or list(cells)
        cells = sorted(judged, key=lambda cell: cell.figures.attainment or 0.0)[: MANY_CELLS - len(report.classes)]
    elif len(cells) == 1:
        return
    for cell in sorted(cells, key=lambda one: (one.tenant, one.cls, one.priority)):
        yield name_of(cell, report.cells), cell.figures, cell.attainment_95


def name_of(cell: Cell, cells: Sequence[Cell]) -> str:
    """Its tenant, and what else tells it from the others."""
    classes = {one.cls for one in cells}
    pairs = [(one.tenant, one.cls) for one in cells]
    cls = cell.cls if len(classes) > 1 else ""
    priority = cell.priority if len(set(pairs)) < len(pairs) else ""
    return " ".join(part for part in (cell.tenant, cls, priority) if part)


def _row(group: Figures, within: Interval | None) -> dict[str, str]:
    times = group.times
    adjusted = times["ttft"].adjusted
    return {
        "offered": f"{group.offered:,.0f}",
        "ok": f"{group.ok:,.0f}",
        "refused": f"{group.rejected:,.0f}",
        "failed": f"{group.failed:,.0f}",
        "TTFT\np50": ms(adjusted.p50_ms if adjusted else None),
        "TTFT\np99": ms(adjusted.p99_ms if adjusted else None),
        "TPOT\np50": ms(times["tpot"].completed.p50_ms, 1),
        "ITL\np99": ms(times["itl"].completed.p99_ms),
        "stall\np99": ms(times["stall"].completed.p99_ms),
        "within SLO": percent(group.attainment) + _range(within),
        "good\nper s": f"{group.goodput_per_s:.2f}",
    }


def notes(report: Report) -> Iterator[str]:
    """What the table of cells needs beside it: what its words mean, rates and depth."""
    few = not report.totals.firm(0.99) or any(not cell.figures.firm(0.99) for cell in report.cells)
    yield (
        "TTFT counts from the intended arrival; who got no answer waits for ever (never)."
        + (" A percentile with fewer than five requests beyond it is not shown (-)." if few else "")
    )
    first, service = report.totals.times["ttft"].completed, report.totals.times["ttft"].service
    if first.mean_ms is not None and service and service.mean_ms is not None:
        yield f"TTFT of completed, mean: {ms(first.mean_ms)} ms offered, {ms(service.mean_ms)} ms from the send."
    if report.totals.attainment_admitted != report.totals.attainment:
        yield f"Of those not refused by quota, {percent(report.totals.attainment_admitted)} were within the SLO."
    unjudged = [name_of(cell, report.cells) for cell in report.cells if not cell.judged]
    if unjudged:
        some = ", ".join(unjudged[:4]) + (f" and {len(unjudged) - 4} more" if len(unjudged) > 4 else "")
        yield f"Not judged, for fewer than 100 requests or by the scenario: {some}."
    depth, client = report.in_flight, report.client
    think = f" Think time {client.think_s:,.1f} s on average." if client.think_s is not None else ""
    yield (
        f"Rates per s: {client.offered_per_s:.2f} offered, {client.sent_per_s:.2f} sent, "
        f"{client.completed_per_s:.2f} completed, {report.totals.output_tokens_per_s:,.0f} output tokens. "
        f"In flight: {depth.mean:,.1f} on average, {client.in_flight_max:,} at most; {depth.waiting:,.1f} of them "
        f"without a first token.{think}"
    )
    if report.probe is not None:
        seen, all_ = report.probe.completed, report.probe.adjusted
        yield f"Probe: TTFT p50 {ms(seen.p50_ms)} ms, p99 {ms(all_.p99_ms if all_ else None)} ms, {seen.count:,} answers."


def tenants_table(report: Report) -> Table:
    """Who got how much, and what of it came from a cache."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column("tenants", overflow="fold")
    for heading in ("weight", "service\nshare", "share of\nweight", "prompt\ntokens", "cached", "ideal"):
        made.add_column(heading, justify="right", no_wrap=True)
    tenants = sorted(report.fairness.tenants, key=lambda one: -one.service_share)
    for one in tenants[:MANY_TENANTS]:
        made.add_row(
            one.tenant,
            f"{one.weight:g}",
            percent(one.service_share),
            percent(one.entitled_share),
            f"{one.prompt_tokens:,}",
            percent(one.cached_share),
            percent(one.ideal_share),
        )
    if len(tenants) > MANY_TENANTS:
        made.add_row(f"and {len(tenants) - MANY_TENANTS} more", *[""] * 6)
    return made


def between_tenants(report: Report) -> Iterator[str]:
    fair = report.fairness
    told = []
    if fair.j_share_mean is not None:
        told.append(f"J_share {fair.j_share_mean:.3f} (worst 10 s {fair.j_share_worst:.3f})")
    if fair.j_cost_mean is not None:
        told.append(f"in cost {fair.j_cost_mean:.3f} (worst {fair.j_cost_worst:.3f})")
    if fair.j_need_mean is not None:
        told.append(f"J_need {fair.j_need_mean:.3f} (worst {fair.j_need_worst:.3f})")
    if fair.attainment_gap is not None:
        told.append(f"attainment {fair.attainment_gap * 100:.1f} points apart")
    if fair.service_gap_tokens is not None:
        told.append(f"two that waited got up to {fair.service_gap_tokens:,.0f} tokens apart in 10 s")
    if told:
        yield f"Between tenants: {', '.join(told)}."
    for one in fair.slowdowns:
        yield (
            f"{one.tenant}: TTFT p99 {ms(one.alone_p99_ms)} ms alone, {ms(one.shared_p99_ms)} ms beside others: "
            f"{one.ratio:.2f} times."
        )


def endpoints(report: Report) -> Iterator[str]:
    """How requests were spread over engines."""
    if report.endpoints:
        shares = ", ".join(f"{one.name} {percent(one.share)}" for one in report.endpoints[:8])
        more = f" and {len(report.endpoints) - 8} more" if len(report.endpoints) > 8 else ""
        most = "" if report.imbalance is None else f"; busiest / mean {report.imbalance:.2f}"
        yield f"Endpoints, of requests: {shares}{more}{most}."
    asked, found = (sum(getattr(one, f"{kind}_tokens") for one in report.endpoints) for kind in ("prompt", "cached"))
    if asked and found and not report.totals.cached_tokens:  # answers do not say it
        yield f"Cached, as engines count it over the whole run: {percent(found / asked)} of prompt tokens."


def gateway(report: Report) -> Iterator[str]:
    """What the gateway itself says of what it answered."""
    told = [
        f"{one.requests:,} in {'/'.join(filter(None, (one.pool, one.cls)))} (in queue p50 {ms(one.queued.p50_ms)} ms, "
        f"p99 {ms(one.queued.p99_ms)} ms{f', {one.again:,} placed again' if one.again else ''})"
        for one in report.gateway[:MOST_GROUPS]
    ]
    if told:
        more = f" and {len(report.gateway) - MOST_GROUPS} more" if len(report.gateway) > MOST_GROUPS else ""
        yield f"By the gateway's headers: {', '.join(told)}{more}."


def client(report: Report) -> Iterator[str]:
    """How the client kept up, and the rules."""
    client = report.client
    cpu = "" if client.cpu_max is None else f", CPU {client.cpu_max * 100:.0f} % of a core at most"
    loop = "" if client.loop_lag_p99_ms is None else f", loop lag p99 {ms(client.loop_lag_p99_ms, 1)} ms"
    lag = client.lag
    known = (("p50", lag.p50_ms), ("p99", lag.p99_ms), ("at most", lag.max_ms))
    lags = "send lag " + (", ".join(f"{name} {ms(value, 2)} ms" for name, value in known if value is not None) or "-")
    rules = " ".join(f"{rule.id} {rule.state.value}" for rule in report.validity.rules)
    yield f"Client: {lags}{loop}{cpu}." + (f" Rules: {rules}." if rules else "")
    for rule, why in report.validity.unjudged.items():
        yield f"{rule} could not be judged: {why}."


def _ends(report: Report) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column("requests", justify="right", no_wrap=True)
    made.add_column("bad end", no_wrap=True)
    made.add_column("status", justify="right", no_wrap=True)
    made.add_column("what was said", overflow="fold")
    for end in report.ends[:MOST_GROUPS]:
        made.add_row(f"{end.count:,}", end.outcome.value, f"{end.status or '-'}", Text(end.reason))
    left = report.ends[MOST_GROUPS:]
    if left:
        made.add_row(f"{sum(end.count for end in left):,}", f"{len(left)} more kinds", "", "")
    return made


def ms(value: float | None, digits: int = 0) -> str:
    """A time in ms for people."""
    if value is None:
        return "-"
    return "never" if value == math.inf else f"{value:,.{digits}f}"


def amount(value: float | None) -> str:
    """What a rule has found, or its limit, for people: a share of 1, ms, or tokens by the million."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(value: float | None) -> str:
    """A share for people."""
    return "-" if value is None else f"{value * 100:.1f} %"


def _between(within: Interval | None) -> str:
    return "" if within is None else f" (95 %: {within[0] * 100:.1f} to {within[1] * 100:.1f})"


def _range(within: Interval | None) -> str:
    return "" if within is None else f" ({within[0] * 100:.0f}-{within[1] * 100:.0f})"
