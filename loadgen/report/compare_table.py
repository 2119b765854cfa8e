"""A comparison for people: the table, and what stands in its cells."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from loadgen.report.compare import METRICS, Comparison, Metric, Row, Verdict, differences
from loadgen.report.console import ms
from loadgen.report.document import Report
from loadgen.report.run import BLOCK_S

FIRM_S = 120.0  # of 12 blocks the interval of a mean holds it 90 times in 100, of 6 85, of 3 73, of 2 49
_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "bold red", Verdict.UNDECIDED: "dim", Verdict.SAME: ""}


def how(comparison: Comparison) -> str:
    """In what way the runs were compared."""
    if comparison.paired:
        return "The same schedule: compared in pairs, 10 s by 10 s; 95 % intervals of the change."
    return "UNPAIRED: schedules differ, so do the requests; 95 % intervals of the change are wider for it."


def cautions(names: Sequence[str], reports: Sequence[Report]) -> Iterator[str]:
    """Short windows, differences that were let pass, and what each run warns of: rules it might break, a warm cache, overload."""
    shortest_s = min(report.window_s for report in reports)
    if shortest_s < FIRM_S:
        yield (
            f"{round(shortest_s, 1):g} s were measured: 95 % intervals of fewer than {FIRM_S / BLOCK_S:g} blocks of "
            f"{BLOCK_S:g} s are too narrow, and verdicts too certain"
        )
    for name, report in zip(names[1:], reports[1:], strict=True):
        yield from (f"{names[0]} and {name}: {what}" for _, what in differences(reports[0], report))
    for name, report in zip(names, reports, strict=True):
        yield from (f"{name}: {told}" for told in report.warnings)


def table(comparison: Comparison) -> Table:
    """A row for each metric of each cell."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column("", overflow="fold")
    made.add_column("metric", no_wrap=True)
    for heading in ("before", "after", "change", "95 % interval"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("verdict", no_wrap=True)
    cell = None
    for row in comparison.rows:
        if cell not in (None, row.cell):
            made.add_section()
        name, cell = ("" if row.cell == cell else row.cell), row.cell
        style = _STYLES[row.verdict]
        values = (value(METRICS[row.metric], row.before), value(METRICS[row.metric], row.after))
        verdict = Text(row.verdict.value, style=style)
        made.add_row(Text(name), named(row), *values, changed(row), between(row), verdict)
    return made


def value(metric: Metric, number: float) -> str:
    """For people."""
    if metric.share:
        return f"{number:.3f}" if metric.name == "j_share" else f"{number * 100:.1f} %"
    return ms(number, 1 if number < 100 else 0)


def between(row: Row) -> str:
    """The interval of the change."""
    return "-" if row.within is None else f"{_signed(row, row.within[0])} to {_signed(row, row.within[1])}"


def named(row: Row) -> str:
    """The metric and its unit."""
    metric = METRICS[row.metric]
    return row.metric if metric.share else f"{row.metric}, {metric.unit}"


def changed(row: Row) -> str:
    """The change and its unit."""
    unit = " points" if METRICS[row.metric].share else " %"
    return _signed(row, row.change) + unit


def _signed(row: Row, part: float) -> str:
    return f"{part * 100:+.1f}" if abs(part) < 1e6 else "never"
