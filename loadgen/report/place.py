"""Where the files of a run go: `runs/UTC-SCENARIO-XXXXXX`, or the folder that --out names."""

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from loadgen.report.folder import SCHEDULE

RUNS = Path("runs")


class PlaceError(ValueError):
    """A folder that cannot be made or written, or holds another run."""


@contextmanager
def folder(wanted: Path | None, scenario: str, began_s: float) -> Iterator[Path]:
    """Make it, for the time of the command: if no more than a schedule has come into it by then, nothing that was made
    is left, `runs` included.

    PlaceError when it cannot be made or written, or already holds a run: nothing is overwritten.
    """
    path = wanted or RUNS / name(scenario, began_s)
    try:
        made = [one for one in (path, *path.parents) if not one.exists()]  # the innermost first
        path.mkdir(parents=True, exist_ok=True)
        before = {one.name for one in path.iterdir()}
        test = path / f".{secrets.token_hex(4)}"
        test.touch()
        test.unlink()
    except OSError as error:
        raise PlaceError(f"--out {path}: {error.strerror}; name a folder that can be made and written") from error
    if taken := [one for one in ("requests.jsonl", "report.json", "search.jsonl") if one in before]:
        raise PlaceError(f"--out {path}: {taken[0]} of another run is there; name a new folder")
    try:
        yield path
    finally:
        if {one.name for one in path.iterdir()} - before <= {SCHEDULE}:
            _undo(path, made, keep=SCHEDULE in before)


def _undo(path: Path, made: Sequence[Path], *, keep: bool) -> None:
    if not keep:
        (path / SCHEDULE).unlink(missing_ok=True)
    with suppress(OSError):  # another run has come into `runs` meanwhile
        for one in made:
            one.rmdir()


def name(scenario: str, began_s: float) -> str:
    """By time, so that they sort; the hex keeps two of the same second apart."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began_s))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", scenario)
    return f"{stamp}-{plain}-{secrets.token_hex(3)}"
