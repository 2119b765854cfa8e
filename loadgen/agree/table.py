"""The comparison for people."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from loadgen.agree.compare import Row
from loadgen.report.run import RunReport

LIGHT_LOAD = 0.9  # attainment; the tolerances hold above it (loadgen.md 10)


def table(title: str, rows: Sequence[Row]) -> Table:
    """One row for each figure."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column(title, no_wrap=True)
    for heading in ("simulated", "live, median", "live, each", "apart", "at most", ""):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*_cells(row), style=None if row.agrees else "red")
    return made


def note(simulated: RunReport, live: Sequence[RunReport]) -> str:
    """Whether the load was one that the tolerances are meant for."""
    runs = (simulated, *live)
    if all(run.balance.stationary and (run.totals.attainment or 0.0) > LIGHT_LOAD for run in runs):
        return "~ too few requests to be judged."
    return "~ too few requests to be judged. Saturated: the tolerances are meant for less load; --slack 2 doubles them."


def _cells(row: Row) -> tuple[str, ...]:
    each = " ".join(_said(value, row.unit) for value in row.live)
    apart = None if row.middle is None or row.simulated is None else row.middle - row.simulated
    verdict = ("ok" if row.agrees else "OUT") if row.judged else "~"
    most = _said(row.most, row.unit) if row.most else "equal"
    return (
        row.name,
        _said(row.simulated, row.unit),
        _said(row.middle, row.unit),
        each,
        _said(apart, row.unit),
        most,
        verdict,
    )


def _said(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if value == float("inf"):
        return "never"
    if unit == "%":
        return f"{value * 100:.1f} %"
    return f"{value:,.1f} ms" if unit == "ms" else f"{value:,.0f}"
