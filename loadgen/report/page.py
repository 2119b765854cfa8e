"""report.html: the verdict, the tables and the plots of one run, to be sent to somebody."""

from collections.abc import Iterator

import msgspec

from loadgen.report import markup
from loadgen.report.console import (
    amount,
    between_tenants,
    broken,
    client,
    endpoints,
    gateway,
    ms,
    name_of,
    notes,
    percent,
    title,
    verdict,
)
from loadgen.report.document import Report
from loadgen.report.figures import Figures
from loadgen.report.parts import Cell, Interval
from loadgen.report.plots import plots
from loadgen.report.times import Spread, Times

NAME = "report.html"
_METRICS = {
    "ttfb": "first byte (TTFB)",
    "ttft": "first token (TTFT)",
    "ttfo": "first token of the answer itself (TTFO)",
    "e2e": "whole answer (E2E)",
    "tpot": "mean per later token (TPOT)",
    "itl": "between reads (ITL)",
    "itl_per_token": "the same per token",
    "stall": "largest pause of an answer",
    "queued": "waited in the gateway",
}
_MANY_CELLS = 200


def page(report: Report) -> str:
    """The page."""
    return markup.document(f"{report.name}: {verdict(report)}", _body(report))


def _body(report: Report) -> Iterator[str]:
    yield f"<h1>{markup.escape(title(report))}</h1>"
    started = f"Started {report.run.started}; " if report.run.started else ""  # nobody waited for a simulated one
    yield markup.paragraph(f"{started}schedule sha256 {report.schedule[:16]}", "soft")
    yield markup.paragraph(verdict(report), "verdict " + ("good" if report.exit_code == 0 else "bad"))
    yield from (markup.paragraph(told, "bad") for told in broken(report))
    yield markup.tiles(_first(report))
    if report.warnings:
        yield "<ul>" + "".join(f"<li>{markup.escape(told)}</li>" for told in report.warnings) + "</ul>"
    if report.search:
        yield "<h2>The search</h2>"
        yield _probes(report)
    yield "<h2>Tenants and classes</h2>"
    yield _cells(report)
    yield markup.paragraph(_by_limit(report.totals), "soft")
    yield from (markup.paragraph(told, "soft") for told in notes(report))
    if len(report.fairness.tenants) > 1:
        yield _tenants(report)
    told = (*between_tenants(report), *endpoints(report), *gateway(report), *client(report))
    yield from (markup.paragraph(one) for one in told)
    yield "<h2>Plots</h2>"
    yield markup.figures(plots(report))
    yield "<h2>Every time</h2>"
    yield _times(report.totals)
    if report.ends:
        yield "<h2>Bad ends</h2>"
        yield _ends(report)
    if report.validity.rules or report.validity.unjudged:
        yield "<h2>Can it be trusted?</h2>"
        yield _rules(report)
    yield "<h2>What was run</h2>"
    for name in ("target", "environment", "scenario"):
        plain = msgspec.json.format(msgspec.json.encode(getattr(report, name)), indent=2)
        yield markup.folded(name.capitalize(), plain.decode())


def _first(report: Report) -> Iterator[tuple[str, str]]:
    totals = report.totals
    first = totals.times["ttft"].adjusted or Spread()
    yield "within the SLO", percent(totals.attainment)
    yield "good per s", f"{totals.goodput_per_s:.2f}"
    yield "TTFT p50, p99", f"{ms(first.p50_ms)}, {ms(first.p99_ms)}"
    yield "TPOT p50", ms(totals.times["tpot"].completed.p50_ms, 1)
    yield "stall p99", ms(totals.times["stall"].completed.p99_ms)
    yield "tokens per s", f"{totals.output_tokens_per_s:,.0f}"
    yield "in flight", f"{report.in_flight.mean:,.1f}"
    if report.client.think_s is not None:
        yield "think time (s)", f"{report.client.think_s:,.1f}"


def _cells(report: Report) -> str:
    headings = (
        "", "offered", "ok", "refused", "failed", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "stall p99", "within SLO",
        "95 %", "target", "good per s", "tokens per s",
    )  # fmt: skip
    cells = sorted(report.cells, key=lambda one: (one.tenant, one.cls, one.priority))[:_MANY_CELLS]
    rows = [("all", report.totals, report.attainment_95, report.attainment_target)]
    rows += [(_label(cell, report), cell.figures, cell.attainment_95, cell.target) for cell in cells]
    return markup.table(headings, (_row(*row) for row in rows))


def _by_limit(group: Figures) -> str:
    names = {"ttft": "TTFT", "tpot": "TPOT", "stall": "stall", "e2e": "E2E"}
    shares = (f"{names[name]} {percent(share)}" for name, share in group.attainment_by_limit.items())
    return f"All, within one limit alone, of all offered: {', '.join(shares)}."


def _probes(report: Report) -> str:
    rows = [
        (
            f"{one.scale:.3f}",
            f"{one.rate:.2f}",
            str(one.seed),
            percent(one.attainment),
            "passed" if one.passed else one.why,
        )
        for one in report.search
    ]
    return markup.table(("x scenario", "requests/s", "seed", "within SLO", "result"), rows, texts=(4,))


def _tenants(report: Report) -> str:
    headings = (
        "", "weight", "tokens served", "share of tokens", "share of cost", "share of weight", "prompt tokens", "cached", "ideal",
    )  # fmt: skip
    rows = [
        (
            one.tenant,
            f"{one.weight:g}",
            f"{one.service_tokens:,.0f}",
            percent(one.service_share),
            percent(one.cost_share),
            percent(one.entitled_share),
            f"{one.prompt_tokens:,}",
            percent(one.cached_share),
            percent(one.ideal_share),
        )
        for one in sorted(report.fairness.tenants, key=lambda one: -one.service_share)[:_MANY_CELLS]
    ]
    return markup.table(headings, rows)


def _label(cell: Cell, report: Report) -> str:
    return name_of(cell, report.cells) + ("" if cell.judged else " (not judged)")


def _row(name: str, group: Figures, within: Interval | None, target: float) -> tuple[str, ...]:
    first, per_token = group.times["ttft"].adjusted or Spread(), group.times["tpot"].completed
    return (
        name,
        f"{group.offered:,.0f}",
        f"{group.ok:,.0f}",
        f"{group.rejected:,.0f}",
        f"{group.failed:,.0f}",
        ms(first.p50_ms),
        ms(first.p99_ms),
        ms(per_token.p50_ms, 1),
        ms(per_token.p99_ms, 1),
        ms(group.times["stall"].completed.p99_ms),
        percent(group.attainment),
        "-" if within is None else f"{within[0] * 100:.1f} to {within[1] * 100:.1f}",
        percent(target),
        f"{group.goodput_per_s:.2f}",
        f"{group.output_tokens_per_s:,.0f}",
    )


def _times(group: Figures) -> str:
    headings = ("", "of", "count", "mean", "p50", "p90", "p95", "p99", "p99.9", "max")
    rows = [row for name, title in _METRICS.items() for row in _families(title, group.times[name])]
    return markup.table(headings, rows, texts=(0, 1))


def _families(title: str, times: Times) -> Iterator[tuple[str, ...]]:
    families = (("completed", times.completed), ("all offered", times.adjusted), ("from the send", times.service))
    for label, spread in families:
        if spread is not None and spread.count and spread.max_ms:  # nobody waits where there is no gateway
            values = (spread.mean_ms, spread.p50_ms, spread.p90_ms, spread.p95_ms, spread.p99_ms, spread.p999_ms)
            yield (title, label, f"{spread.count:,.0f}", *(ms(value, 1) for value in (*values, spread.max_ms)))


def _ends(report: Report) -> str:
    """By tenant and class, the commonest first."""
    found = [(name_of(cell, report.cells), end) for cell in report.cells for end in cell.ends]
    found.sort(key=lambda one: -one[1].count)
    rows = [
        (name, f"{end.count:,}", end.outcome.value, str(end.status or "-"), end.reason)
        for name, end in found[:_MANY_CELLS]
    ]
    return markup.table(("", "requests", "bad end", "status", "what was said"), rows, texts=(0, 2, 4))


def _rules(report: Report) -> str:
    rows = [
        (
            rule.id,
            rule.state.value,
            amount(rule.value),
            amount(rule.limit),
            rule.words,
        )
        for rule in report.validity.rules
    ]
    rows += [(rule, "not judged", "-", "-", why) for rule, why in report.validity.unjudged.items()]
    return markup.table(("rule", "state", "found", "limit", "about"), rows, texts=(0, 1, 4))
