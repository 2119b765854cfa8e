"""The page of a comparison: what moved by how much, and the distributions on top of each other."""

from collections.abc import Iterator, Sequence

from loadgen.report import drawing as on
from loadgen.report import markup
from loadgen.report.compare import METRICS, Comparison, Row, Verdict
from loadgen.report.compare_table import between, cautions, changed, how, named, value
from loadgen.report.document import Report
from loadgen.report.drawing import BAD, FAINT, GOOD, INK, SERIES, drawn, legend
from loadgen.report.parts import Curve
from loadgen.report.plots import Plot

_COLOURS = {Verdict.BETTER: GOOD, Verdict.WORSE: BAD, Verdict.SAME: INK, Verdict.UNDECIDED: FAINT}
_MANY_ROWS = 60
_FAR = 1.0  # a change of more than that ends at the edge of the forest
_CURVES = {
    "ttft": "Time to first token, of all offered",
    "tpot": "Mean time per later token",
    "stall": "Largest pause of an answer",
    "itl": "Pauses between tokens",
}


def page(names: Sequence[str], reports: Sequence[Report], made: Sequence[Comparison]) -> str:
    """`names` are the files, the baseline first; `made` the comparisons of the others with it."""
    return markup.document(f"Compared: {reports[0].name}", _body(names, reports, made))


def _body(names: Sequence[str], reports: Sequence[Report], made: Sequence[Comparison]) -> Iterator[str]:
    yield f"<h1>{markup.escape(reports[0].name)}: {markup.escape(names[0])} is the measure</h1>"
    told = [f"<li>{markup.escape(one)}</li>" for one in cautions(names, reports)]
    if told:
        yield f"<ul>{''.join(told)}</ul>"
    for place, (name, comparison) in enumerate(zip(names[1:], made, strict=True)):
        yield f"<h2>{markup.escape(name)}</h2>"
        yield markup.paragraph(how(comparison), "soft")
        yield markup.figures(_forests(comparison, place))
        yield _table(comparison)
    yield "<h2>Distributions</h2>"
    yield markup.figures(_distributions(names, reports))


def _table(comparison: Comparison) -> str:
    rows = [
        (
            row.cell,
            named(row),
            value(METRICS[row.metric], row.before),
            value(METRICS[row.metric], row.after),
            changed(row),
            between(row),
            row.verdict.value,
        )
        for row in comparison.rows
    ]
    headings = ("", "metric", "before", "after", "change", "95 % interval", "verdict")
    return markup.table(headings, rows, texts=(0, 1, 6))


def _forests(comparison: Comparison, place: int) -> Iterator[Plot]:
    """Shares in points, the rest in parts of the first: two pictures."""
    for share, title in ((True, "Shares: change in points"), (False, "Times and rates: change in per cent")):
        rows = [row for row in comparison.rows if METRICS[row.metric].share is share and row.within is not None]
        if rows:
            caption = (
                "Estimate and 95 % interval; green: better, red: worse, plain: the same, grey: undecided; cut at 100."
            )
            yield Plot(title=title, caption=caption, svg=_forest(rows[:_MANY_ROWS], f"forest{place}{share:d}"))


def _forest(rows: Sequence[Row], name: str) -> str:
    with drawn(name, height_in=0.8 + 0.22 * len(rows)) as drawing:
        for place, row in enumerate(rows):
            low, high = (max(-_FAR, min(_FAR, bound)) for bound in row.within or (0.0, 0.0))
            colour = _COLOURS[row.verdict]
            drawing.ax.plot([low, high], [place, place], color=colour, linewidth=2)
            drawing.ax.plot([max(-_FAR, min(_FAR, row.change))], [place], color=colour, marker="o", markersize=4)
        drawing.ax.axvline(0, color=INK, linewidth=1)
        drawing.ax.set_yticks(range(len(rows)), [f"{row.cell}: {row.metric}" for row in rows])
        drawing.ax.grid(axis="y", visible=False)
        drawing.ax.invert_yaxis()
        on.signed_percents_across(drawing.ax)
    return drawing.text


def _distributions(names: Sequence[str], reports: Sequence[Report]) -> Iterator[Plot]:
    kinds = {(curve.of, curve.cls) for report in reports for curve in report.curves if curve.of in _CURVES}
    ordered = sorted(kinds, key=lambda kind: (list(_CURVES).index(kind[0]), kind[1]))
    for number, (of, cls) in enumerate(ordered):
        found = [(name, _curve(report, of, cls)) for name, report in zip(names, reports, strict=True)]
        title = _CURVES[of] + (f": {cls}" if cls else "")
        with drawn(f"curve{number}") as drawing:
            for colour, (name, curve) in zip(SERIES, found, strict=False):
                points = [(max(ms, 0.01), share) for ms, share in curve.points] if curve else []
                drawing.ax.step([x for x, _ in points], [y for _, y in points], where="post", color=colour, label=name)
            on.log_ms(drawing.ax)
            on.percents(drawing.ax)
            legend(drawing.ax, 2)
        yield Plot(title=title, caption="Share up to that time.", svg=drawing.text)


def _curve(report: Report, of: str, cls: str) -> Curve | None:
    return next((curve for curve in report.curves if (curve.of, curve.cls) == (of, cls)), None)
