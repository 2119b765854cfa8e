"""`forebay bench report DIR`, of a run, simulated or not, or a search, however it ended."""

import sys
from pathlib import Path

from rich.console import Console

from loadgen.bench import searching
from loadgen.bench.exits import Exit
from loadgen.bench.rules import rules as measured
from loadgen.report.command import report_command
from loadgen.report.document import Report, ReportError
from loadgen.report.folder import Run
from loadgen.report.parts import Validity
from loadgen.report.run import RunReport


def report_again(folder: Path, *, json: bool) -> int:
    """Make every report again; the exit code."""
    try:
        notes = searching.salvage(folder, measured) if searching.was_killed(folder) else ()
    except (ReportError, OSError) as error:
        sys.stderr.write(f"forebay bench report: {error}\n")
        return Exit.WRONG
    code = report_command(folder, _rules, json=json, more=_search)
    for note in notes:
        sys.stderr.write(note + "\n")
    return code


def _rules(run: Run, made: RunReport) -> Validity:
    """Those by which it was judged at first."""
    if run.basis.target.get("driver") == "sim":
        from loadgen.sim.left import rules as simulated

        return simulated(run, made)
    return measured(run, made)


def _search(report: Report, page: Console) -> None:
    if report.search:
        from loadgen.bench.find_rate import told_by  # only a search needs all that it takes
        from loadgen.bench.output import told

        told(told_by(report), page)
