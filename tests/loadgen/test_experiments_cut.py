"""A cut of the experiments for every change: what the core is better at, it stays better at.

Windows of a minute under two seeds say much less than `make experiments`; the bounds leave room for any two seeds (tried
with 14). One that breaks says that a policy, a baseline or the engine model has changed for the worse.
"""

from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from loadgen.experiments import tasks
from loadgen.experiments.arms import B1, B2, B9, FCFS, OURS, STD, promised
from loadgen.experiments.figures import figure
from loadgen.experiments.tasks import Plain, Task
from loadgen.experiments.terms import Load, Setup

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SEEDS = (7, 8)
MIXED = Load(scenario="mixed-lengths", seconds=60.0, changes=STD)
TOOLS = Load(scenario="agent-tools", seconds=60.0, changes=STD)
OVERLOAD = Load(scenario="overload", seconds=40.0, changes=("warmup=20s", "tail=20s", *promised(30_000, "standard")))
BLIND = Setup(label="core, no metrics", poll_s=0.0)


@cache
def results(setup: Setup, load: Load, scale: float, seeds: tuple[int, ...] = SEEDS) -> tuple[Plain, ...]:
    arm = tasks.at(setup, load, scale, Path("traces"))
    return tuple(tasks.work(Task(arm=arm, seed=seed)) for seed in seeds)


def mean(name: str, setup: Setup, load: Load = MIXED, scale: float = 0.9, seeds: tuple[int, ...] = SEEDS) -> float:
    return fmean(figure(one, name) or 0.0 for one in results(setup, load, scale, seeds))


def test_on_mixed_lengths_the_core_serves_more_in_time_than_the_baselines() -> None:
    ours = mean("all.attainment", OURS)
    assert ours >= 0.90
    assert ours >= mean("all.attainment", B9) - 0.02
    assert ours >= mean("all.attainment", B2) + 0.01
    assert ours >= mean("all.attainment", B1) + 0.03


def test_and_loses_no_tokens_by_it() -> None:
    assert mean("all.output_tokens_per_s", OURS) >= 0.97 * mean("all.output_tokens_per_s", B9)


def test_and_neither_class_pays_for_the_other() -> None:
    for group in ("short", "long"):
        assert mean(f"{group}.attainment", OURS) >= mean(f"{group}.attainment", B9) - 0.06, group


def test_sorting_is_no_worse_than_first_come_first_served() -> None:
    assert mean("all.attainment", OURS) >= mean("all.attainment", FCFS) - 0.03


def test_it_stands_on_its_own_counts() -> None:
    assert mean("all.attainment", BLIND) >= mean("all.attainment", OURS) - 0.02


def test_prefixes_are_found_again() -> None:
    assert mean("all.cached_share", OURS, TOOLS, 0.8) >= 0.9


AT_CAPACITY, BEYOND = ((OURS, OVERLOAD, scale, SEEDS[:1]) for scale in (1.9, 2.8))


def test_an_overload_costs_no_good_answers() -> None:
    assert mean("all.goodput_per_s", *BEYOND) >= mean("all.goodput_per_s", *AT_CAPACITY)


def test_nor_critical_ones() -> None:
    assert mean("critical.attainment", *BEYOND) >= 0.93
