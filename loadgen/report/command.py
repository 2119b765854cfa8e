"""`forebay bench report DIR`: every report of a run again, from what it wrote as it went."""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from loadgen.report.console import lines
from loadgen.report.document import Report, ReportError
from loadgen.report.folder import Rules
from loadgen.report.outputs import rebuild

WRONG = 2
_PLAIN_WIDTH = 140  # without a terminal


def report_command(
    folder: Path, rules: Rules, *, json: bool = False, more: Callable[[Report, Console], None] | None = None
) -> int:
    """Write the files, print the report and what `more` has to say of it (or its JSON); the exit code of the run, 2 where the
    folder holds none.
    """
    try:
        report, notes = rebuild(folder, rules)
    except (ReportError, OSError) as error:
        sys.stderr.write(f"forebay bench report: {error}\n")
        return WRONG
    if json:
        sys.stdout.buffer.write(report.to_json())
        sys.stdout.buffer.flush()
    else:
        page = Console()
        page = page if page.is_terminal else Console(width=_PLAIN_WIDTH)
        for one in lines(report):
            page.print(one, highlight=False)
        if more is not None:
            more(report, page)
    for note in notes:
        sys.stderr.write(note + "\n")
    return report.exit_code
