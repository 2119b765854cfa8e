"""`forebay bench compare A.json B.json`: tables, verdicts, an exit code. The first report, or --baseline, is the measure."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from loadgen.report import document
from loadgen.report.compare import METRICS, Comparison, Row, compare, refusals
from loadgen.report.compare_table import cautions, changed, how, table
from loadgen.report.document import Report, ReportError
from loadgen.report.gates import DEFAULT, Gate, GateError, failures, gate

FINE, REGRESSION, WRONG, INCOMPARABLE = 0, 1, 2, 3
DIFFERENCES = ("SCENARIO", "FLEET")
_PLAIN_WIDTH = 120  # without a terminal


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says: report.json files or folders of runs, the first of them the baseline unless
    `baseline` names another. `min_effect` is like `2%`.
    """

    files: tuple[Path, ...]
    baseline: Path | None = None
    metrics: tuple[str, ...] = ()
    fail_on: tuple[str, ...] = ()
    min_effect: str = "2%"
    allow_different: tuple[str, ...] = ()
    html: Path | None = None
    json: bool = False


def compare_command(options: CompareOptions) -> int:
    """Compare; 0: no gate is broken, 1: one is, 3: the runs cannot be compared, 2: options or files cannot be used."""
    try:
        return _Command(options).run()
    except (ReportError, GateError, OSError) as error:
        sys.stderr.write(f"forebay bench compare: {error}\n")
        return WRONG


class _Command:
    def __init__(self, options: CompareOptions) -> None:
        """Raises ReportError, GateError."""
        self._options = options
        paths = list(options.files)
        if options.baseline is not None:
            paths.insert(0, options.baseline)
        if len(paths) < 2:
            raise GateError("two reports at least")
        self._least = _effect(options.min_effect)
        self._metrics = _metrics(options.metrics)
        self._gates = [gate(text) for text in options.fail_on or (DEFAULT,)]
        _check(options)
        self._names = [str(path) for path in paths]
        self._reports = [_read(path) for path in paths]

    def run(self) -> int:
        first, *others = self._reports
        if self._refused():
            return INCOMPARABLE
        wanted = [name for name in METRICS if name in self._metrics or any(name == one.metric for one in self._gates)]
        made = [compare(first, other, wanted, self._least) for other in others]
        failed = [failures(self._gates, one) for one in made]
        if self._options.html is not None:
            self._write_page(self._options.html, made)
        if self._options.json:
            self._print_json(made, failed)
        else:
            self._print(made, failed)
        return REGRESSION if any(failed) else FINE

    def _refused(self) -> bool:
        first, *others = self._reports
        told = [
            f"{self._names[0]} and {name}: {why}"
            for name, other in zip(self._names[1:], others, strict=True)
            for why in refusals(first, other, self._options.allow_different)
        ]
        for one in told:
            sys.stderr.write(f"forebay bench compare: {one}\n")
        return bool(told)

    def _write_page(self, path: Path, made: Sequence[Comparison]) -> None:
        if find_spec("matplotlib") is None:
            sys.stderr.write("--html was left out: its plots need matplotlib (pip install 'forebay[bench]').\n")
            return
        from loadgen.report.compare_page import page  # takes a second

        path.write_text(page(self._names, self._reports, made), encoding="utf-8")

    def _print(self, made: Sequence[Comparison], failed: Sequence[Sequence[tuple[Gate, Row]]]) -> None:
        page = Console()
        page = page if page.is_terminal else Console(width=_PLAIN_WIDTH)
        for name, comparison, broken in zip(self._names[1:], made, failed, strict=True):
            page.print(Text(f"{self._names[0]} -> {name}: {self._reports[0].name}"), style="bold")
            page.print(Text(how(comparison)))
            page.print(table(comparison))
            for one, row in broken:
                page.print(Text(f"FAILED {one.text}: {row.cell} {row.metric} {changed(row)}"), style="bold red")
            if not broken:
                page.print(Text(f"passed: {', '.join(one.text for one in self._gates)}"), style="green")
        for told in cautions(self._names, self._reports):
            page.print(Text(f"! {told}", style="yellow"), soft_wrap=True)

    def _print_json(self, made: Sequence[Comparison], failed: Sequence[Sequence[tuple[Gate, Row]]]) -> None:
        told = {
            "schema": "forebay.compare/1",
            "baseline": self._names[0],
            "warnings": list(cautions(self._names, self._reports)),
            "comparisons": [
                {
                    "file": name,
                    "paired": comparison.paired,
                    "rows": [_plain(row) for row in comparison.rows],
                    "failed": [
                        {"gate": one.text, "cell": row.cell, "metric": row.metric, "change": _number(row.change)}
                        for one, row in broken
                    ],
                }
                for name, comparison, broken in zip(self._names[1:], made, failed, strict=True)
            ],
        }
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")
        sys.stdout.buffer.flush()


def _plain(row: Row) -> dict[str, object]:
    within = None if row.within is None else [_number(bound) for bound in row.within]
    plain: dict[str, object] = msgspec.to_builtins(row)
    return plain | {
        "before": _number(row.before),
        "after": _number(row.after),
        "change": _number(row.change),
        "within": within,
    }


def _number(number: float) -> object:
    return "inf" if number == float("inf") else round(number, 6)


def _read(path: Path) -> Report:
    return document.read(path / document.NAME if path.is_dir() else path)


def _effect(text: str) -> float:
    try:
        number = float(text.removesuffix("%")) / 100
    except ValueError:
        number = -1.0
    if not text.endswith("%") or not 0 <= number < 1:
        raise GateError(f"--min-effect {text}: a percentage, like 2%")
    return number


def _metrics(names: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise GateError(f"--metric {unknown[0]}: there are {', '.join(METRICS)}")
    return tuple(names or METRICS)


def _check(options: CompareOptions) -> None:
    wrong = [one for one in options.allow_different if one not in DIFFERENCES]
    if wrong:
        raise GateError(f"--allow-different {wrong[0]}: one of {', '.join(DIFFERENCES)}")
