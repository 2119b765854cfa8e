"""Which code does a result depend on? What a run goes through: the simulator, and the policies if the core takes part."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

_SIMULATOR = (
    "sim",
    "workload",
    "report",
    "schedule.py",
    "scenario.py",
    "drafts.py",
    "profiles",
    "experiments/tasks.py",
)
_OF_THE_CORE = ("through_core.py", "policy.py", "foresight.py")
_PHYSICS = ("capacity.py", "types.py")  # of the policies, a baseline needs these
_ASIDE = ("command.py", "output.py", "table.py", "replay.py", "recorded.py", "journal_file.py", "processes.py")


@cache
def code(core: bool) -> str:
    """A digest of the code that a run goes through, the core's or a baseline's."""
    loadgen, policies = resources.files("loadgen"), resources.files("policies")
    places: list[Any] = [loadgen.joinpath(name) for name in _SIMULATOR]
    places += [policies] if core else [policies / name for name in _PHYSICS]
    return of(places, core=core)


def of(places: Sequence[Any], *, core: bool) -> str:
    """A digest of what counts in these files and folders."""
    found = hashlib.sha256()
    for name, text in sorted(one for place in places for one in _texts(place, place.name)):
        if core or Path(name).name not in _OF_THE_CORE:
            found.update(f"{name}\n".encode() + text)
    return found.hexdigest()


def _texts(place: Any, name: str) -> Iterator[tuple[str, bytes]]:
    if place.is_dir():
        for inner in place.iterdir():
            yield from _texts(inner, f"{name}/{inner.name}")
    elif place.suffix in (".py", ".yaml") and place.name not in _ASIDE:
        yield name, place.read_bytes()


@cache
def digest(path: Path) -> str:
    """Of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
