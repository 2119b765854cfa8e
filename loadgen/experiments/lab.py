"""Results, from the shelf or to be got. Experiments ask for what they need; what is not there yet is noted.

So nobody plans: an experiment is judged again and again, each time it notes what it still lacks, and all that is
lacking is run at once, until nothing is. Every result lies in a file of its own as soon as it is there: a run that was
interrupted goes on where it was, and experiments share what they have in common.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import msgspec

from loadgen.experiments import tasks
from loadgen.experiments.tasks import Plain, Task
from loadgen.experiments.terms import BEST, Experiment, Load, Point, Setup
from loadgen.sim.arm import Arm
from loadgen.sim.processes import spread

A = TypeVar("A")
B = TypeVar("B")

HOPELESS = 0.9  # of the best rate under the first seed: an arm below it is not the best under all


class NotYet(Exception):
    """Something has to be run first; the lab has noted it."""


class Lab:
    """The results in `folder`, for runs under `seeds` with traces in `traces`."""

    def __init__(self, folder: Path, seeds: Sequence[int], traces: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.traces = traces
        self.lacking: dict[str, Task] = {}
        self._folder = folder
        self._seeds = tuple(seeds)
        self._known: dict[str, Plain] = {}
        self._arms: dict[tuple[Setup, Load], Arm] = {}  # files are read once, and asked for in every round

    def seeds(self, load: Load) -> tuple[int, ...]:
        """Of a load; chance has no part in some."""
        return self._seeds[: load.seeds]

    def runs(self, setup: Setup, load: Load, scale: float) -> list[Plain]:
        """One run for each seed. Raises NotYet."""
        arm = tasks.scaled(self._arm(setup, load), load, scale)
        return self._all([Task(arm=arm, seed=seed) for seed in self.seeds(load)])

    def rates(self, setup: Setup, load: Load, seeds: Sequence[int] | None = None) -> list[Plain]:
        """The highest rate under each seed. Raises NotYet."""
        arm = self._arm(setup, load)
        wanted = self.seeds(load) if seeds is None else seeds
        return self._all([Task(arm=arm, seed=seed, search=load.start, search_s=load.search_s) for seed in wanted])

    def contenders(self, experiment: Experiment, load: Load) -> list[Setup]:
        """Those of the field that are near the best under the first seed. Raises NotYet."""
        first = self.seeds(load)[:1]
        found = self.together(experiment.field, lambda setup: self.rates(setup, load, first))
        most = max(one["rate"] for (one,) in found)
        return [setup for setup, (one,) in zip(experiment.field, found, strict=True) if one["rate"] >= HOPELESS * most]

    def best(self, experiment: Experiment, load: Load) -> Setup:
        """The one of the field with the highest rate, on average over the seeds. Raises NotYet."""
        near = self.contenders(experiment, load)
        found = self.together(near, lambda setup: self.rates(setup, load))
        means = [fmean(one["rate"] for one in rates) for rates in found]
        return near[means.index(max(means))]

    def scale(self, experiment: Experiment, load: Load, point: Point) -> float:
        """The factor on a load's rate at a point. Raises NotYet."""
        if not point.of:
            return point.times
        setups = {setup.label: setup for setup in (*experiment.arms, *experiment.field)}
        of = self.best(experiment, load) if point.of == BEST else setups[point.of]
        return round(point.times * fmean(one["scale"] for one in self.rates(of, load)), 4)

    def together(self, things: Sequence[A], ask: Callable[[A], B]) -> list[B]:
        """`ask` of each, even if some lack something. Raises NotYet then."""
        got, lacks = [], False
        for thing in things:
            try:
                got.append(ask(thing))
            except NotYet:
                lacks = True
        if lacks:
            raise NotYet
        return got

    def work_off(self, jobs: int, told: Callable[[Task, Plain], None]) -> None:
        """Run what is lacking, the longest first; `told` hears of each."""
        waiting = sorted(self.lacking.items(), key=lambda entry: entry[1].search is None)
        self.lacking = {}
        each = spread(partial(_done, self._folder), waiting, jobs)
        for (key, task), result in zip(waiting, each, strict=True):
            self._known[key] = result
            told(task, result)

    def _arm(self, setup: Setup, load: Load) -> Arm:
        if (setup, load) not in self._arms:
            self._arms[setup, load] = tasks.unscaled(setup, load, self.traces)
        return self._arms[setup, load]

    def _all(self, wanted: Sequence[Task]) -> list[Plain]:
        found = {task.key(): task for task in wanted}
        absent = {key: task for key, task in found.items() if not self._has(key)}
        if absent:
            self.lacking |= absent
            raise NotYet
        return [self._known[key] for key in found]

    def _has(self, key: str) -> bool:
        if key not in self._known:
            file = self._folder / f"{key}.json"
            if not file.is_file():
                return False
            self._known[key] = msgspec.json.decode(file.read_bytes())
        return True


def _done(folder: Path, entry: tuple[str, Task]) -> Plain:
    """Run a task and put its result on the shelf."""
    key, task = entry
    result: Plain = msgspec.json.decode(msgspec.json.encode(tasks.work(task)))
    aside = folder / f"{key}.{os.getpid()}"
    aside.write_bytes(msgspec.json.encode(result))
    aside.replace(folder / f"{key}.json")
    return result
