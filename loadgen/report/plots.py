"""The plots of a report (loadgen.md 7.2), each from what the report holds; one that would be empty is left out."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from matplotlib.axes import Axes

from loadgen.report import drawing as on
from loadgen.report.console import name_of
from loadgen.report.document import Report
from loadgen.report.drawing import BAD, FAINT, GOOD, INK, SERIES, drawn, legend
from loadgen.report.parts import Curve
from loadgen.report.plots_of_tenants import cached, client, endpoints, fairness
from loadgen.report.run import BLOCK_S
from loadgen.report.times import spread

MANY = 7  # series with a colour of their own; the rest is drawn as one
MANY_BARS = 24
_SMOOTH_S, _LEAST_POINTS = 5, 8  # rates are means of so long, and so many at least where there are as many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure of the page."""

    title: str
    caption: str
    svg: str


def plots(report: Report) -> Iterator[Plot]:
    """All of them, in the order of the page."""
    for name, title, caption, draw in _ALL:
        svg = draw(report, name)
        if svg:
            yield Plot(title=title, caption=caption, svg=svg)


def _rates(report: Report, name: str) -> str:
    if not report.timeline:
        return ""
    totals: Counter[str] = Counter()
    for second in report.timeline:
        totals.update(second.offered)
    own = [tenant for tenant, _ in totals.most_common(MANY if len(totals) <= MANY else MANY - 1)]
    with drawn(name) as made:
        times = _smooth([float(second.t_s) for second in report.timeline])
        for colour, tenant in zip(SERIES, own, strict=False):
            for field, style, width in (("offered", "-", 1.5), ("sent_of", "--", 1.0), ("completed_of", ":", 1.5)):
                found = [float(getattr(second, field).get(tenant, 0)) for second in report.timeline]
                label = tenant if field == "offered" else None
                made.ax.plot(times, _smooth(found), color=colour, label=label, linestyle=style, linewidth=width)
        if len(totals) > len(own):
            others = [
                float(sum(count for tenant, count in second.offered.items() if tenant not in own))
                for second in report.timeline
            ]
            made.ax.plot(times, _smooth(others), color=FAINT, label=f"{len(totals) - len(own)} others")
        sent = _smooth([float(second.sent) for second in report.timeline])
        ended = _smooth([float(second.ended.get("ok", 0)) for second in report.timeline])
        made.ax.plot(times, sent, color=INK, linestyle="--", linewidth=1, label="all sent")
        made.ax.plot(times, ended, color=INK, linestyle=":", label="all completed")
        made.ax.set_ylabel("requests per s")
        on.counts(made.ax)
        on.seconds(made.ax)
        _window(report, made.axes)
        legend(made.ax)
    return made.text


def _first_tokens(report: Report, name: str) -> str:
    offered = [curve for curve in report.curves if curve.of == "ttft"]
    if not offered:
        return ""
    service = {curve.cls: curve for curve in report.curves if curve.of == "ttft_service"}
    with drawn(name) as made:
        for colour, curve in zip(SERIES, offered, strict=False):
            _curve(made.ax, curve, colour, curve.cls or "all")
            if curve.cls in service:
                _curve(made.ax, service[curve.cls], colour, None, dashed=True)
        made.ax.plot([], [], color=INK, linestyle="--", label="from the send")
        on.log_ms(made.ax)
        on.percents(made.ax)
        legend(made.ax)
    return made.text


def _bands(report: Report, name: str) -> str:
    together = [_pooled(at) for at in zip_longest(*([b.ttft_ms for b in cell.blocks] for cell in report.blocks))]
    if not any(together):
        return ""
    times = [report.window_start_s + BLOCK_S * (place + 0.5) for place in range(len(together))]
    spreads = [spread(block) for block in together]
    lines = (
        ("p50_ms", SERIES[0], "p50"),
        ("p90_ms", SERIES[1], "p90"),
        ("p99_ms", SERIES[2], "p99"),
        ("max_ms", FAINT, "largest"),
    )
    with drawn(name) as made:
        for field, colour, label in lines:
            line = on.finite([getattr(one, field) for one in spreads])
            if not all(map(math.isnan, line)):
                made.ax.plot(times, line, color=colour, label=label, marker=".", markersize=4)
        on.log_height(made.ax, "ms")
        on.seconds(made.ax)
        legend(made.ax)
    return made.text


def _pauses(report: Report, name: str) -> str:
    found = [curve for curve in report.curves if curve.of in ("itl", "stall", "tpot")]
    if not found:
        return ""
    labels = {"itl": "pause (ITL)", "stall": "largest of an answer", "tpot": "mean per token (TPOT)"}
    with drawn(name) as made:
        for colour, curve in zip(SERIES, found, strict=False):
            _curve(made.ax, curve, colour, labels[curve.of])
        on.log_ms(made.ax)
        on.percents(made.ax)
        legend(made.ax)
    return made.text


def _by_length(report: Report, name: str) -> str:
    if not report.dots:
        return ""
    with drawn(name) as made:
        for good, colour, label in ((True, GOOD, "within its SLO"), (False, BAD, "outside")):
            some = [dot for dot in report.dots if dot.good is good]
            made.ax.scatter(
                [dot.input_tokens for dot in some],
                [max(dot.ttft_ms, 0.1) for dot in some],
                s=5, color=colour, alpha=0.55, linewidths=0, label=label,
            )  # fmt: skip
        lengths, limits = zip(*sorted({(dot.input_tokens, dot.limit_ms) for dot in report.dots}), strict=True)
        # No line: tenants and classes have limits of their own, and it would jump between them.
        made.ax.scatter(lengths, limits, s=12, color=INK, marker="_", linewidths=1, label="limit")
        on.log_numbers(made.ax)
        on.log_height(made.ax, "TTFT, ms")
        legend(made.ax)
    return made.text


def _depth(report: Report, name: str) -> str:
    if not report.timeline:
        return ""
    with drawn(name, rows=2 if report.loads else 1) as made:
        times = [second.t_s + 0.5 for second in report.timeline]
        made.ax.plot(times, [second.in_flight for second in report.timeline], color=SERIES[0], label="in flight")
        made.ax.plot(times, [second.waiting for second in report.timeline], color=SERIES[1], label="no first token")
        on.counts(made.ax)
        made.ax.set_ylabel("requests")
        legend(made.ax)
        for colour, load in zip(SERIES, report.loads, strict=False):
            made.axes[1].plot(load.t_s, on.finite(load.waiting), color=colour, label=f"waiting at {load.name}")
            made.axes[1].plot(load.t_s, on.finite(load.running), color=colour, linestyle=":", linewidth=1)
        if report.loads:
            on.counts(made.axes[1])
            made.axes[1].set_ylabel("as scraped")
            legend(made.axes[1], 3)
        on.seconds(made.axes[-1])
        _window(report, made.axes)
    return made.text


def _outcomes(report: Report, name: str) -> str:
    kinds = sorted({kind for second in report.timeline for kind in second.ended}, key=lambda kind: (kind != "ok", kind))
    if not kinds:
        return ""
    times = _smooth([float(second.t_s) for second in report.timeline])
    rows = [_smooth([float(second.ended.get(kind, 0)) for second in report.timeline]) for kind in kinds]
    colours = [GOOD if kind == "ok" else SERIES[(place + 1) % len(SERIES)] for place, kind in enumerate(kinds)]
    with drawn(name) as made:
        made.ax.stackplot(times, rows, colors=colours, labels=kinds, alpha=0.85, linewidth=0)
        made.ax.set_ylabel("ended per s")
        on.counts(made.ax)
        on.seconds(made.ax)
        legend(made.ax)
    return made.text


def _attainment(report: Report, name: str) -> str:
    cells = sorted(report.cells, key=lambda cell: cell.figures.attainment or 0.0)[:MANY_BARS]
    if not cells:
        return ""
    with drawn(name, height_in=0.9 + 0.26 * len(cells)) as made:
        for place, cell in enumerate(cells):
            share = cell.figures.attainment or 0.0
            colour = FAINT if not cell.judged else GOOD if share >= cell.target else BAD
            made.ax.barh(place, share, color=colour, height=0.6)
            made.ax.plot([cell.target] * 2, [place - 0.4, place + 0.4], color=INK, linewidth=1.5)
            if cell.attainment_95 is not None:
                made.ax.plot(cell.attainment_95, [place, place], color=INK, linewidth=1, marker="|", markersize=5)
        made.ax.set_yticks(range(len(cells)), [name_of(cell, report.cells) for cell in cells])
        on.percents_across(made.ax)
        made.ax.grid(axis="y", visible=False)
        made.ax.invert_yaxis()
    return made.text


def _slo_curve(report: Report, name: str) -> str:
    points = [(float(factor), share) for factor, share in report.slo_curve.items() if share is not None]
    if not points:
        return ""
    with drawn(name) as made:
        made.ax.plot(*zip(*points, strict=True), color=SERIES[0], marker="o", markersize=4)
        made.ax.axhline(report.attainment_target, color=INK, linewidth=1, linestyle=":")
        made.ax.axvline(1.0, color=INK, linewidth=1, linestyle=":")
        made.ax.set_xlabel("all limits times")
        on.percents(made.ax, high=1.02)
    return made.text


def _search(report: Report, name: str) -> str:
    if not report.search:
        return ""
    passed = [probe for probe in report.search if probe.passed]
    cut = [probe for probe in report.search if probe.attainment is None]
    failed = [probe for probe in report.search if probe not in passed and probe not in cut]
    with drawn(name) as made:
        for some, colour, label, mark in (
            (passed, GOOD, "passed", "o"), (failed, BAD, "failed", "o"), (cut, BAD, "cut", "x"),
        ):  # fmt: skip
            if some:
                shares = [probe.attainment or 0.0 for probe in some]
                made.ax.scatter(
                    [probe.rate for probe in some], shares, color=colour, label=label, marker=mark, clip_on=False
                )
        made.ax.axhline(report.attainment_target, color=INK, linewidth=1, linestyle=":")
        made.ax.set_xlabel("requests per s")
        on.percents(made.ax, high=1.02)
        legend(made.ax)
    return made.text


def _curve(axes: Axes, curve: Curve, colour: str, label: str | None, dashed: bool = False) -> None:
    made = [(max(ms, 0.01), share) for ms, share in curve.points]
    axes.step(
        *zip(*made, strict=True), where="post", color=colour, label=label, linestyle="--" if dashed else "-",
        linewidth=1 if dashed else 1.5,
    )  # fmt: skip


def _window(report: Report, axes: Sequence[Axes]) -> None:
    """Shade what is not measured."""
    end_s = report.window_start_s + report.window_s
    last_s = report.timeline[-1].t_s + 1
    for one in axes:
        for begin, end in ((0.0, report.window_start_s), (end_s, last_s)):
            if end > begin:
                one.axvspan(begin, end, color=FAINT, alpha=0.15, linewidth=0)


def _smooth(values: Sequence[float]) -> list[float]:
    """Means of 5 s, of less where the run is so short that too few points would be left."""
    count = min(_SMOOTH_S, max(1, len(values) // _LEAST_POINTS))
    groups = [values[first : first + count] for first in range(0, len(values), count)]
    return [sum(group) / len(group) for group in groups]


def _pooled(blocks: Sequence[Sequence[float] | None]) -> list[float]:
    return [ms for block in blocks for ms in block or ()]


Draw = Callable[[Report, str], str]
_ALL: tuple[tuple[str, str, str, Draw], ...] = (
    ("attain", "Within the SLO", "Share of all offered requests of each cell, its 95 % interval, and its target.", _attainment),
    ("slo", "If the limits were others", "Attainment with all limits scaled; steep at 1 means the limit cuts through the crowd.", _slo_curve),
    ("search", "Attainment against rate", "Every probe of the search. One that was cut when it could not pass any more stands at the bottom.", _search),
    ("ttft", "Time to first token", "Share of all offered requests; who got no token is missing at the top. Dashed: from the send.", _first_tokens),
    ("bands", "Time to first token over time", "Percentiles of the requests that arrived in each 10 s; a gap is one that never came, or of too few.", _bands),
    ("length", "First token against prompt length", "At most 1,500 requests, evenly taken; the strokes are their limits.", _by_length),
    ("pauses", "Pauses", "Between tokens, the largest of each answer, and the mean.", _pauses),
    ("rates", "Rates", "Of each tenant offered, dashed sent, dotted completed; of all sent and completed. Means of up to 5 s; shaded: not measured.", _rates),
    ("depth", "Requests in flight", "From the intended arrival on; as the servers say below it, dotted: running.", _depth),
    ("outcomes", "How requests ended", "Stacked, by the second of their end, means of up to 5 s.", _outcomes),
    ("fair", "Tenants", "Tokens served of each tenant beside its share by weight, and Jain's index in each 10 s.", fairness),
    ("cached", "Cache", "Prompt tokens found in a cache, of those asked, beside what an unlimited cache would have held.", cached),
    ("endpoints", "Endpoints", "Requests of each engine in each 10 s, as headers say it or as it counts itself.", endpoints),
    ("client", "The client", "Worst lag of a send and of the event loop in each second, CPU of the busiest worker.", client),
)  # fmt: skip
