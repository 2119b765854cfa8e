"""search.jsonl: what a search of the highest rate has tried, as it goes; and what that comes to, also after kill -9.

A probe has a line when it begins, with `KILLED` as its result, and one when it has ended: the last one counts.
"""

import math
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from loadgen.report import folder as files
from loadgen.report.document import ReportError
from loadgen.report.folder import Rules
from loadgen.report.outputs import rebuild
from loadgen.report.parts import RateProbe

NAME = "search.jsonl"
KILLED, INTERRUPTED = "killed", "interrupted"


class Tried(msgspec.Struct, frozen=True):
    """A probe and the name of its folder."""

    folder: str
    probe: RateProbe


def note(folder: Path, tried: Tried) -> None:
    """One more line."""
    with (folder / NAME).open("ab") as file:
        file.write(msgspec.json.encode(tried) + b"\n")


def was_killed(folder: Path) -> bool:
    """Whether a search was there that did not come to its end, and of which no report was made yet."""
    return (folder / NAME).exists() and not (folder / files.RUN).exists()


def known(probes: Iterable[RateProbe]) -> tuple[float, float]:
    """The highest scale that has passed and failed on no seed (0: none), and the lowest that has failed (infinity)."""
    ended = [one for one in probes if one.why not in (KILLED, INTERRUPTED)]
    failed = {one.scale for one in ended if not one.passed}
    passed = {one.scale for one in ended if one.passed} - failed
    return max(passed, default=0.0), min(failed, default=math.inf)


def keep(
    best: Path, folder: Path, probes: Sequence[RateProbe], *, interrupted: bool, warnings: Sequence[str] = ()
) -> None:
    """The files of that probe in the folder of the search, with all probes in its ending, if it has one."""
    for file in best.iterdir():
        shutil.copy2(file, folder / file.name)
    ending = files.read_basis(folder).ending
    if ending is not None:
        changed = msgspec.structs.replace(
            ending, search=tuple(probes), interrupted=interrupted, warnings=(*ending.warnings, *warnings)
        )
        files.end(folder, changed)


def salvage(folder: Path, rules: Rules) -> tuple[str, ...]:
    """Make of a search that was killed what can be made: the reports of its probes, and its own files, of the best one.

    What there is to be told of it. ReportError when there is nothing.
    """
    every = _tried(folder)
    ended: list[Tried] = []
    torn: list[Tried] = []
    notes: list[str] = []
    for one in every:
        try:
            rebuild(folder / one.folder, rules, html=False)
        except (ReportError, OSError) as error:
            notes.append(f"{_named(one)} is left out: {error}")
            continue
        (torn if one.probe.why == KILLED else ended).append(one)
    if not (ended or torn):
        raise ReportError("; ".join((f"{folder / NAME}: no probe has left anything to report", *notes)))
    notes += [f"{_named(one)} was killed: its own report is of what it had written." for one in torn]
    told = f"The search was killed: {len(ended)} of its {len(every)} probes had ended."
    scale, _ = known(one.probe for one in ended)
    passed = [one for one in ended if one.probe.passed and one.probe.scale == scale]
    best = folder / (passed[:1] or (ended or torn)[-1:])[0].folder
    keep(best, folder, [one.probe for one in every], interrupted=True, warnings=(told, *notes))
    return (told, *notes)


def _tried(folder: Path) -> list[Tried]:
    """In the order they began. A line that was torn by the kill is of a probe that has another one."""
    found: dict[str, Tried] = {}
    for line in (folder / NAME).read_bytes().splitlines():
        with suppress(msgspec.DecodeError):
            one = msgspec.json.decode(line, type=Tried)
            found[one.folder] = one
    return list(found.values())


def _named(one: Tried) -> str:
    return f"{one.folder} (x {one.probe.scale:.3g}, seed {one.probe.seed})"
