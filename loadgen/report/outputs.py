"""Everything a run leaves to be read: `write_all` makes the files of a report, `rebuild` all of them from the folder."""

import csv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec

from loadgen.report import document
from loadgen.report.document import Report
from loadgen.report.folder import Rules, Run, read_run
from loadgen.report.lines import row
from loadgen.report.making import make

TABLE, TIMELINE = "requests.csv", "timeline.csv"
NO_PAGE = "report.html was left out: its plots need matplotlib (pip install 'forebay[bench]')."


def rebuild(folder: Path, rules: Rules, *, html: bool = True) -> tuple[Report, tuple[str, ...]]:
    """Make every report from what a run wrote as it went: the report, and what there is to tell of the files.

    Drawing the page (`html`) takes seconds. The way to end a run too: call `folder.end` first. Raises ReportError where the folder holds no run, OSError where
    it cannot be written to.
    """
    run = read_run(folder)
    report = make(run, rules)
    return report, write_all(folder, run, report, html=html)


def write_all(folder: Path, run: Run, report: Report, *, html: bool = True) -> tuple[str, ...]:
    """Write report.json, requests.csv, timeline.csv and report.html into `folder`; what there is to tell of them.

    Raises OSError. The page is left out where nothing can draw it.
    """
    (folder / document.NAME).write_bytes(report.to_json())
    _table(folder / TABLE, _requests(run))
    _table(folder / TIMELINE, _seconds(report))
    if not html:
        return ()
    if find_spec("matplotlib") is None:
        return (NO_PAGE,)
    from loadgen.report import page  # takes a second, and most of the program never needs it

    (folder / page.NAME).write_text(page.page(report), encoding="utf-8")
    return ()


def _requests(run: Run) -> Iterator[dict[str, object]]:
    """The lines, flat: pauses as their number, the largest is there already."""
    slo_of = run.basis.slo_of()
    for sample in run.samples:
        plain: dict[str, object] = msgspec.to_builtins(row(sample, slo_of(sample), run.basis.window_end_s))
        gaps = plain.pop("gaps_us")
        for nested in ("read_tokens", "earlier"):
            plain.pop(nested, None)
        yield plain | {"missed": " ".join(plain["missed"]), "pauses": len(gaps)}  # type: ignore[arg-type]


def _seconds(report: Report) -> Iterator[dict[str, object]]:
    """The timeline, flat: columns for what each tenant offered, sent and got, and one for each outcome that there was."""
    tenants = sorted({tenant for second in report.timeline for tenant in second.offered})
    outcomes = sorted({outcome for second in report.timeline for outcome in second.ended})
    health = {one.t_s: one for one in report.client.timeline}
    for second in report.timeline:
        plain: dict[str, object] = msgspec.to_builtins(second)
        for field, prefix, names in (
            ("offered", "offered_", tenants),
            ("ended", "ended_", outcomes),
            ("sent_of", "sent_", tenants),
            ("completed_of", "completed_", tenants),
        ):
            counts = plain.pop(field)
            plain |= {prefix + name: counts.get(name, 0) for name in names}  # type: ignore[attr-defined]
        of = health.get(second.t_s)
        plain |= {
            "send_lag_max_ms": of and of.lag_ms,
            "loop_lag_max_ms": of and of.loop_lag_ms,
            "cpu_max": of and of.cpu,
        }
        yield {name: round(one, 4) if isinstance(one, float) else one for name, one in plain.items()}


def _table(path: Path, rows: Iterator[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer: csv.DictWriter[str] | None = None
        for one in rows:
            if writer is None:
                writer = csv.DictWriter(file, one)
                writer.writeheader()
            writer.writerow(one)
