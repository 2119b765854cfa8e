"""`make experiments`: run what is lacking, judge, write the page. Progress to standard error."""

import math
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.experiments import carrying, mechanisms
from loadgen.experiments.lab import Lab, NotYet
from loadgen.experiments.page import page
from loadgen.experiments.section import Section, section
from loadgen.experiments.tasks import Plain, Task
from loadgen.experiments.terms import Experiment
from loadgen.scenario import ScenarioError
from loadgen.sim import inputs

FIRST_SEED = 7  # scheduling.md 13: 7..11
WRONG, INTERRUPTED = 2, 130
EXPERIMENTS = (
    carrying.E1,
    carrying.E2,
    carrying.E3,
    carrying.E4,
    carrying.E5A,
    carrying.E5B,
    mechanisms.E6,
    mechanisms.E7,
    mechanisms.E8,
    mechanisms.E9,
    mechanisms.E13A,
    mechanisms.E13B,
    mechanisms.E14,
    mechanisms.E15,
    mechanisms.E18,
    mechanisms.E19,
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    ids: tuple[str, ...] = ()
    seeds: int = 5
    jobs: int = 2
    seconds: float | None = None
    traces: Path = Path("traces")
    results: Path = Path("runs/experiments")
    page: Path = Path("docs/experiments.md")


def experiments_command(options: Options) -> int:
    """Run it; the exit code."""
    console = Console(stderr=True)
    try:
        chosen = [shorter(one, options.seconds) for one in select(options.ids)]
        lab = Lab(options.results, range(FIRST_SEED, FIRST_SEED + options.seeds), options.traces)
        run(chosen, lab, options, console)
    except inputs.UNUSABLE as error:
        console.print(f"experiments: {error}", style="red", highlight=False)
        return WRONG
    except KeyboardInterrupt:
        console.print("interrupted; what has been run is kept")
        return INTERRUPTED
    return 0


def select(ids: Sequence[str]) -> list[Experiment]:
    """The experiments of these ids, `E5` being E5a and E5b; all without ids. Raises ScenarioError."""
    known = {one.id for one in EXPERIMENTS} | {one.id.rstrip("ab") for one in EXPERIMENTS}
    unknown = [name for name in ids if name not in known]
    if unknown:
        there = ", ".join(one.id for one in EXPERIMENTS)
        raise ScenarioError(f"no experiment is called {unknown[0]}; there are {there}")
    return [one for one in EXPERIMENTS if not ids or one.id in ids or one.id.rstrip("ab") in ids]


def shorter(experiment: Experiment, seconds: float | None) -> Experiment:
    """With windows of so many seconds, for a quick look."""
    if seconds is None:
        return experiment
    loads = tuple(
        msgspec.structs.replace(load, seconds=seconds, search_s=min(load.search_s, seconds))
        for load in experiment.loads
    )
    return msgspec.structs.replace(experiment, loads=loads)


def run(chosen: Sequence[Experiment], lab: Lab, options: Options, console: Console) -> None:
    """Judge what can be judged and run what is lacking for the rest, all of it at once, until nothing is."""
    made, left = _made(options), list(chosen)
    while left:
        done = [one for one in left if _judged(one, lab, made, options.page)]
        left = [one for one in left if one not in done]
        if left:
            _work_off(lab, options.jobs, console)


def _judged(experiment: Experiment, lab: Lab, made: dict[str, str], place: Path) -> bool:
    """Put it on the page, if everything it needs is there."""
    try:
        renew(place, section(experiment, lab, made))
    except NotYet:
        return False
    return True


def renew(place: Path, one: Section) -> None:
    """Put the section into the results file beside the page, in the order of ids, and write the page anew."""
    file = place.with_suffix(".json")
    known = results(file) if file.is_file() else []
    order = [each.id for each in EXPERIMENTS]
    kept = [each for each in known if each.id != one.id and each.id in order]
    sections = sorted([*kept, one], key=lambda each: order.index(each.id))
    place.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(_worded(msgspec.to_builtins(sections))), indent=1) + b"\n")
    place.write_text(page(sections), "utf-8")


def results(file: Path) -> list[Section]:
    """The results file; infinity is a word there."""
    return msgspec.convert(msgspec.json.decode(file.read_bytes()), list[Section], strict=False)


def _worded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _worded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_worded(one) for one in value]
    return "inf" if value == math.inf else value


def _work_off(lab: Lab, jobs: int, console: Console) -> None:
    total = len(lab.lacking)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("running", total=total)
        done = 0

        def told(task: Task, result: Plain) -> None:
            nonlocal done
            done += 1
            progress.update(bar, advance=1, description=_described(task))
            if not console.is_terminal:
                console.print(f"{done}/{total} {_described(task)}{_came_to(result)}", highlight=False, soft_wrap=True)

        lab.work_off(jobs, told)


def _described(task: Task) -> str:
    kind = "highest rate of" if task.search is not None else "run of"
    return f"{kind} {task.arm.router} at {task.arm.scenario.name}, seed {task.seed}"


def _came_to(result: Plain) -> str:
    if "rate" in result:
        return f": {result['rate']:.2f}/s in {result['probes']} probes"
    share = result["totals"]["attainment"]
    return "" if share is None else f": {share * 100:.1f} % within the SLO"


def _made(options: Options) -> dict[str, str]:
    args = [*options.ids, *(["--seeds", str(options.seeds)] if options.seeds != Options().seeds else [])]
    args += ["--seconds", f"{options.seconds:g}"] if options.seconds is not None else []
    command = "make experiments" + (f' ARGS="{" ".join(args)}"' if args else "")
    return {"command": command, "commit": _commit(), "day": time.strftime("%Y-%m-%d", time.gmtime())}


def _commit() -> str:
    """Of this checkout; a star says that it has been changed since."""
    try:
        told = [_git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", "policies", "loadgen")]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told[0] + ("*" if told[1] else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
