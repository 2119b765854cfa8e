"""Where the files of a run go: `runs/UTC-SCENARIO-XXXXXX`, or the folder that --out names."""

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.bench.exits import BenchError
from loadgen.report.folder import SCHEDULE

RUNS = Path("runs")


def folder(wanted: Path | None, scenario: str, began_s: float) -> Path:
    """Make it. BenchError when it cannot be made or written, or already holds a run: nothing is overwritten."""
    path = wanted or RUNS / name(scenario, began_s)
    try:
        path.mkdir(parents=True, exist_ok=True)
        taken = next((one for one in ("requests.jsonl", "report.json") if (path / one).exists()), None)
        test = path / f".{secrets.token_hex(4)}"
        test.touch()
        test.unlink()
    except OSError as error:
        raise BenchError(f"--out {path}: {error.strerror}; name a folder that can be made and written") from error
    if taken:
        raise BenchError(f"--out {path}: {taken} of another run is there; name a new folder")
    return path


@contextmanager
def kept(path: Path) -> Iterator[Path]:
    """The folder for a while; gone afterwards if nothing but a schedule has come into it."""
    try:
        yield path
    finally:
        if {one.name for one in path.iterdir()} <= {SCHEDULE}:
            (path / SCHEDULE).unlink(missing_ok=True)
            path.rmdir()


def name(scenario: str, began_s: float) -> str:
    """By time, so that they sort; the hex keeps two of the same second apart."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began_s))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", scenario)
    return f"{stamp}-{plain}-{secrets.token_hex(3)}"
