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
    for heading in ("simulated", "runs", "live", "runs", "apart", "at most", ""):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*_cells(row), style=None if row.agrees else "red")
    return made


def note(runs: Sequence[RunReport]) -> str:
    """Whether the load was one that the tolerances are meant for."""
    judged = "~ too few requests to be judged."
    if all(run.balance.stationary and (run.totals.attainment or 0.0) > LIGHT_LOAD for run in runs):
        return judged
    return f"{judged} The load saturates the engines: --saturated has the tolerances for that."


def _cells(row: Row) -> tuple[str, ...]:
    apart = None if row.seen is None or row.expected is None else row.seen - row.expected
    verdict = ("ok" if row.agrees else "OUT") if row.judged else "~"
    figures = (row.expected, row.seen, apart, row.most)
    expected, seen, difference, most = (_said(value, row.unit) for value in figures)
    return (
        row.name,
        expected,
        _range(row.simulated, row.unit),
        seen,
        _range(row.live, row.unit),
        difference,
        most if row.most else "equal",
        verdict,
    )


def _range(values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known or min(known) == max(known):
        return ""
    return f"{_number(min(known), unit)} - {_number(max(known), unit)}"


def _said(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{_number(value, unit)} {unit}".rstrip()


def _number(value: float, unit: str) -> str:
    if value == float("inf"):
        return "never"
    scaled = value * 100 if unit == "%" else value
    return f"{scaled:,.1f}" if unit else f"{scaled:,.0f}"
