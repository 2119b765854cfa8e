"""`forebay sim --out DIR`: a simulated run leaves the same folder as a live one, with the same report made in the same way."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen import offer
from loadgen.report import folder as files
from loadgen.report.figures import SUFFICIENT
from loadgen.report.folder import Basis, Ending, Run
from loadgen.report.lines import NAME as REQUESTS
from loadgen.report.lines import line
from loadgen.report.outputs import rebuild
from loadgen.report.parts import Rule, State, Validity
from loadgen.report.record import Sample, Slo
from loadgen.report.run import RunReport
from loadgen.scenario import Scenario
from loadgen.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left of a run. `target` says what was simulated; `html`: report.html too, which takes seconds."""

    scenario: Scenario
    schedule: Schedule
    samples: Sequence[Sample]
    target: dict[str, object]
    html: bool = True


def leave(folder: Path, left: Left) -> None:
    """Write everything. Raises OSError."""
    schedule, samples = left.schedule, left.samples
    folder.mkdir(parents=True, exist_ok=True)
    schedule.write(folder / files.SCHEDULE)
    basis = _basis(left.scenario, schedule, samples, left.target)
    files.begin(folder, basis)
    _write(folder / REQUESTS, samples, basis.slo_of(), schedule.window_end_s)
    end_s = max([schedule.window_end_s, *(one.sent_s for one in samples)])
    files.end(folder, Ending(finished="", took_s=0.0, stopped_s=end_s))
    rebuild(folder, rules, html=left.html)


def _basis(scenario: Scenario, schedule: Schedule, samples: Sequence[Sample], target: dict[str, object]) -> Basis:
    """Virtual time has no date, and equal options give equal files."""
    return msgspec.structs.replace(
        offer.basis(scenario, schedule, {(one.tenant, one.cls) for one in samples}),
        target={"driver": "sim", "urls": [f"simulated {target['router']}"], **target},
        environment={"python": platform.python_version()},
    )


def _write(path: Path, samples: Sequence[Sample], slo_of: Callable[[Sample], Slo], window_end_s: float) -> None:
    with path.open("wb") as file:
        file.writelines(line(one, slo_of(one), window_end_s) for one in samples)


def rules(run: Run, made: RunReport) -> Validity:
    """Of all that can go wrong with a measurement only one is left: too few requests."""
    largest = max((cell.offered for cell in made.cells.values()), default=0.0)
    state = State.OK if made.valid else State.BREACH
    return Validity(
        rules=(Rule(id="V8", state=state, value=largest, limit=SUFFICIENT, words="requests of the largest cell"),)
    )
