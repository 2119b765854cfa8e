"""`report.json`: what a run came to, as one value that is written and read again.

Within a version fields are only added; readers take this version and the one before (there is none yet). Times are ms
and end in `_ms`, an infinite one is the word "inf"; `_s` are seconds since the start of the run.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from loadgen.report.figures import Figures
from loadgen.report.parts import (
    Cell,
    CellBlocks,
    ClientHealth,
    Curve,
    Dot,
    End,
    EndpointUse,
    Fairness,
    GatewayUse,
    Interval,
    Load,
    Plain,
    Second,
)
from loadgen.report.parts import RateProbe as RateProbe
from loadgen.report.parts import Rule as Rule
from loadgen.report.parts import State as State
from loadgen.report.parts import Validity as Validity
from loadgen.report.run import Balance
from loadgen.report.times import Times

SCHEMA = "forebay.report/1"
READABLE = (SCHEMA,)
NAME = "report.json"

MET, MISSED, INVALID, INTERRUPTED = 0, 1, 3, 130  # exit codes (loadgen.md 1.1)


class ReportError(Exception):
    """A file is no report that this version reads; says which and why."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from run to run. `finished` None: killed, and made again from what was left."""

    started: str
    finished: str | None
    took_s: float | None
    interrupted: bool
    seed: int
    salt: str = ""
    length_control: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a schedule against a server: everything that is said of it. `schedule` is the sha256 of the schedule,
    `scenario` the resolved scenario, `window_s` how long was measured, `slo_met` whether every target that binds is met.
    """

    run: RunInfo
    environment: Plain
    target: Plain
    scenario: Plain
    schedule: str
    closed: bool
    window_s: float
    window_start_s: float
    attainment_target: float
    validity: Validity
    slo_met: bool
    totals: Figures
    attainment_95: Interval | None
    cells: tuple[Cell, ...]
    classes: dict[str, Figures]
    ends: tuple[End, ...]
    outcomes: dict[str, int] = {}
    in_flight: Balance
    fairness: Fairness
    client: ClientHealth
    timeline: tuple[Second, ...]
    slo_curve: dict[str, float | None]
    blocks: tuple[CellBlocks, ...]
    curves: tuple[Curve, ...] = ()
    dots: tuple[Dot, ...] = ()
    endpoints: tuple[EndpointUse, ...] = ()
    imbalance: float | None = None
    gateway: tuple[GatewayUse, ...] = ()
    loads: tuple[Load, ...] = ()
    probe: Times | None = None  # first tokens of the isolation probe
    search: tuple[RateProbe, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: str = SCHEMA

    @property
    def name(self) -> str:
        """The scenario's."""
        return str(self.scenario.get("name", ""))

    @property
    def exit_code(self) -> int:
        """Of `forebay bench` (loadgen.md 1.1)."""
        if self.run.interrupted:
            return INTERRUPTED
        if not self.validity.valid:
            return INVALID
        return MET if self.slo_met else MISSED

    def to_json(self) -> bytes:
        """The file: one line for each top-level field; floats to four digits."""
        plain = {"schema": self.schema} | _told(msgspec.to_builtins(self))
        lines = (msgspec.json.encode(key) + b": " + msgspec.json.encode(value) for key, value in plain.items())
        return b"{\n" + b",\n".join(lines) + b"\n}\n"


def read(path: Path) -> Report:
    """The report in that file; ReportError if there is none, or none that this version reads."""
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ReportError(f"{path}: {error}") from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema not in READABLE:
        told = f"schema {schema}" if schema else "no `schema`"
        raise ReportError(f"{path}: {told}; this version reads {', '.join(READABLE)}")
    try:
        return msgspec.convert(_heard(raw), Report)
    except msgspec.ValidationError as error:
        raise ReportError(f"{path}: {error}") from error


def _told(value: Any) -> Any:
    """Plain values of a file: infinity is a word, and nobody wants fifteen digits."""
    if isinstance(value, float):
        if value == math.inf:
            return "inf"
        short = round(value, 4)
        return int(short) if short == int(short) else short
    return _mapped(value, lambda key, one: _told(one))


def _heard(value: Any, ms: bool = False) -> Any:
    """The same way back: the word means infinity only where times are."""
    if ms and value == "inf":
        return math.inf
    return _mapped(value, lambda key, one: _heard(one, ms if key is None else str(key).endswith("_ms")))


def _mapped(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(key, one) for key, one in value.items()}
    return [change(None, one) for one in value] if isinstance(value, list | tuple) else value
