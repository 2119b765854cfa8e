"""The runner of experiments: what is run once, what a claim comes to, what the page says."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.experiments import code, command, lab, tasks
from loadgen.experiments.command import EXPERIMENTS, Options, experiments_command, renew, results, select
from loadgen.experiments.figures import Estimate, estimate, figure
from loadgen.experiments.judge import MET, MISSED, ON_AVERAGE, UNKNOWN, Measured, Verdict, compared, of_runs, outcome
from loadgen.experiments.lab import Lab, NotYet
from loadgen.experiments.page import page, verdict
from loadgen.experiments.section import Section, section
from loadgen.experiments.tasks import Task, highest
from loadgen.experiments.terms import BEST, Claim, Experiment, Load, Point, Setup
from loadgen.scenario import ScenarioError
from loadgen.sim import inputs
from loadgen.sim.search import Probe
from tests.loadgen.simulations import TEXT

OURS, OTHER = Setup(label="core"), Setup(label="round_robin", router="round_robin")
WORTH = Claim(
    says="as many in time",
    figure="all.attainment",
    ours="core",
    against=("round_robin",),
    how="difference",
    at_least=-0.5,
)
SMALL = Experiment(
    id="E3",
    title="Small",
    claim="It works.",
    loads=(Load(scenario="small.yaml", seconds=30.0),),
    arms=(OURS, OTHER),
    claims=(WORTH,),
)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.yaml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Task]]:
    """The tasks that were run, and not found."""
    done: list[Task] = []
    really = tasks.work

    def noted(task: Task) -> Any:
        done.append(task)
        return really(task)

    monkeypatch.setattr(lab.tasks, "work", noted)
    yield done


@pytest.fixture
def only_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "EXPERIMENTS", (SMALL,))


def small(setup: Setup = OURS, *changes: str, seed: int = 7) -> Task:
    load = msgspec.structs.replace(SMALL.loads[0], changes=changes)
    return Task(arm=tasks.at(setup, load, 1.0, Path("traces")), seed=seed)


# ---- what is run once


def test_a_task_is_known_by_all_it_stands_on() -> None:
    other = (
        small(seed=8),
        small(OTHER),
        small(OURS, "slo.tpot_ms=90"),
        small(OURS, "fleet.engines.e.count=3"),
        small(OURS, "config.admission.ordering=fcfs"),
        msgspec.structs.replace(small(), search=1.0),
        small(Setup(label="core", poll_s=0.1)),
        small(Setup(label="core", lengths="oracle")),
    )
    assert small().key() == small(Setup(label="another name")).key()
    assert len({small().key(), *(task.key() for task in other)}) == 1 + len(other)


def test_a_baseline_does_not_depend_on_the_policy_nor_on_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert small(OTHER).key() == small(OTHER, "config.admission.ordering=fcfs").key()
    ours, other = small().key(), small(OTHER).key()
    before = tasks.code
    monkeypatch.setattr(tasks, "code", lambda core: "changed" if core else before(core))
    assert small().key() != ours
    assert small(OTHER).key() == other


def test_a_change_of_code_or_of_a_profile_is_seen_and_one_of_a_table_is_not(tmp_path: Path) -> None:
    for name in ("loop.py", "small.yaml", "table.py", "policy.py"):
        (tmp_path / name).write_text("1")
    first = code.of([tmp_path], core=True), code.of([tmp_path], core=False)
    (tmp_path / "table.py").write_text("2")
    assert (code.of([tmp_path], core=True), code.of([tmp_path], core=False)) == first
    (tmp_path / "policy.py").write_text("2")
    assert code.of([tmp_path], core=True) != first[0]
    assert code.of([tmp_path], core=False) == first[1]
    (tmp_path / "small.yaml").write_text("2")
    assert code.of([tmp_path], core=False) != first[1]


def test_what_was_run_is_found_by_the_next(worked: list[Task], only_small: None) -> None:
    options = Options(seeds=2, jobs=1, page=Path("page.md"), results=Path("shelf"))
    assert experiments_command(options) == 0
    assert len(worked) == 4
    text = Path("page.md").read_text()
    assert "as many in time" in text
    assert "2 seeds" in text
    assert "simulated" in text
    assert experiments_command(options) == 0
    assert len(worked) == 4
    assert experiments_command(msgspec.structs.replace(options, seeds=3)) == 0
    assert len(worked) == 6


def test_what_was_run_before_an_interruption_is_kept(worked: list[Task]) -> None:
    first = Lab(Path("shelf"), (7, 8), Path("traces"))
    with pytest.raises(NotYet):
        section(SMALL, first, {})
    assert len(first.lacking) == 4, "both arms are asked for, though the first lacks something"

    def stop(task: Task, result: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.work_off(1, stop)
    assert len(worked) == 1
    again = Lab(Path("shelf"), (7, 8), Path("traces"))
    with pytest.raises(NotYet):
        section(SMALL, again, {})
    assert len(again.lacking) == 3


def test_files_are_read_once_however_often_an_experiment_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    really = inputs.read

    def noted(*given: Any) -> Any:
        read.append(given[0])
        return really(*given)

    monkeypatch.setattr(inputs, "read", noted)
    shelf = Lab(Path("shelf"), (7, 8), Path("traces"))
    for scale in (1.0, 1.0, 0.5):
        for setup in (OURS, OTHER):
            with pytest.raises(NotYet):
                shelf.runs(setup, SMALL.loads[0], scale)
    assert read == ["small.yaml"] * 2
    made = {task.key(): task for scale in (1.0, 0.5) for task in shelf_tasks(scale)}
    assert set(shelf.lacking) == set(made)


def shelf_tasks(scale: float) -> list[Task]:
    arms = [tasks.at(setup, SMALL.loads[0], scale, Path("traces")) for setup in (OURS, OTHER)]
    return [Task(arm=arm, seed=seed) for arm in arms for seed in (7, 8)]


def test_a_baseline_that_cannot_be_the_best_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"round_robin": 5.0, "least_requests": 10.0, "p2c": 9.5, "least_prefill": 8.0}
    monkeypatch.setattr(tasks, "work", lambda task: {"rate": rates[task.arm.router] + task.seed / 10, "scale": 2.0})
    field = tuple(Setup(label=name, router=name) for name in ("round_robin", "least_requests", "p2c"))
    experiment = msgspec.structs.replace(SMALL, field=field)
    shelf = Lab(Path("shelf"), (7, 8, 9), Path("traces"))
    asked: list[str] = []
    best = None
    while best is None:
        try:
            best = shelf.best(experiment, SMALL.loads[0])
        except NotYet:
            asked += [task.arm.router for task in shelf.lacking.values()]
            shelf.work_off(1, lambda task, result: None)
    assert best.label == "least_requests"
    assert sorted(asked) == ["least_requests"] * 3 + ["p2c"] * 3 + ["round_robin"]
    assert shelf.scale(experiment, SMALL.loads[0], Point(times=0.8, of=BEST)) == 1.6


@pytest.mark.parametrize("limit", [0.1, 0.9, 1.0, 1.3, 7.0])
def test_a_search_ends_within_four_percent_below_the_limit(limit: float) -> None:
    def at_scale(scale: float) -> Probe:
        why = "" if scale <= limit else "attainment"
        return Probe(
            scale=scale, rate=scale * 10, seed=7, why=why, attainment=1.0, tokens_per_s=1.0, requests=1, cut=False
        )

    found = highest(at_scale, 1.0)
    assert limit / tasks.CLOSE <= found["scale"] <= limit
    assert found["rate"] == found["scale"] * 10
    assert found["limited_by"] == "attainment"


def test_there_may_be_no_rate() -> None:
    def never(scale: float) -> Probe:
        return Probe(scale=scale, rate=scale, seed=7, why="x", attainment=0.0, tokens_per_s=1.0, requests=1, cut=True)

    assert highest(never, 1.0)["rate"] == 0.0


# ---- what a claim comes to


def test_an_interval_is_students() -> None:
    assert estimate([1.0]) == Estimate(mean=1.0)
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.low == pytest.approx(3 - 2.776 * math.sqrt(2.5 / 5))
    assert estimate([1.0, math.inf]).low is None


@pytest.mark.parametrize(
    ("claim", "found", "expected"),
    [
        ({"at_least": 1.0}, (1.2, 1.1, 1.3), MET),
        ({"at_least": 1.0}, (1.2, 0.9, 1.5), ON_AVERAGE),
        ({"at_least": 1.0}, (1.2, None, None), ON_AVERAGE),
        ({"at_least": 1.0}, (0.9, 0.5, 1.3), MISSED),
        ({"at_most": 1.0}, (0.9, 0.8, 0.95), MET),
        ({"at_most": 1.0}, (math.inf, None, None), MISSED),
        ({"at_least": 0.88, "at_most": 0.93}, (0.9, 0.89, 0.91), MET),
        ({"at_least": 0.88, "at_most": 0.93}, (0.9, 0.87, 0.93), ON_AVERAGE),
        ({"at_least": 0.88, "at_most": 0.93}, (0.95, 0.94, 0.96), MISSED),
    ],
)
def test_a_claim_is_met_when_its_whole_interval_is(
    claim: dict[str, float], found: tuple[Any, ...], expected: str
) -> None:
    mean, low, high = found
    told = Claim(says="", figure="rate", ours="core", **claim)  # type: ignore[arg-type]
    assert outcome(told, Estimate(mean=mean, low=low, high=high)) == expected


def test_arms_are_compared_in_pairs() -> None:
    found = compared("ratio", [2.0, 20.0], [1.0, 10.0])
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert compared("difference", [1.0, 3.0], [0.5, 2.5]) == Estimate(mean=0.5, low=0.5, high=0.5)
    assert compared("value", [0.5], []) == Estimate(mean=0.5)


def test_who_waits_for_ever_is_worse_and_two_of_them_cannot_be_told_apart() -> None:
    assert compared("ratio", [math.inf], [1.0]) == Estimate(mean=math.inf)
    assert compared("ratio", [1.0], [math.inf]) == Estimate(mean=0.0)
    assert compared("ratio", [math.inf], [math.inf]) is None
    assert compared("ratio", [0.0], [1.0]) is None


def run(attainment: float, **more: Any) -> dict[str, Any]:
    totals = {"attainment": attainment, "cached_tokens": 1, "ideal_tokens": 2, "ttft_p99_ms": "inf"}
    cell = {"class": "all", "tenant": "victim", "priority": "critical", "attainment": 0.25}
    return {"totals": totals, "classes": {"short": {"attainment": 0.5}}, "cells": [cell], "imbalance": 1.5, **more}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("all.attainment", 0.75),
        ("all.cached_share", 0.5),
        ("all.ttft_p99_ms", math.inf),
        ("short.attainment", 0.5),
        ("victim.attainment", 0.25),
        ("critical.attainment", 0.25),
        ("nobody.attainment", None),
        ("imbalance", 1.5),
        ("coverage", None),
    ],
)
def test_figures_have_names(name: str, value: float | None) -> None:
    assert figure(run(0.75, coverage=None), name) == value


def test_the_best_of_several_is_the_one_to_beat() -> None:
    measured = Measured(where="here", runs={"a": [run(0.9)], "b": [run(0.7)], "c": [run(0.8)]}, best="c")
    claim = Claim(says="", figure="all.attainment", ours="a", against=("b", BEST), how="difference", at_least=0.0)
    told = of_runs(claim, measured)
    assert told.theirs == "c"
    assert told.estimate is not None
    assert told.estimate.mean == pytest.approx(0.1)
    missing = of_runs(msgspec.structs.replace(claim, figure="nobody.attainment"), measured)
    assert (missing.outcome, missing.estimate) == (UNKNOWN, None)


# ---- what the page says


def told(**changes: Any) -> Verdict:
    values = {
        "says": "more",
        "where": "here",
        "figure": "rate",
        "how": "ratio",
        "at_least": 1.25,
        "at_most": None,
        "must_not": False,
        "theirs": "",
        "outcome": MISSED,
        "estimate": Estimate(mean=1.06, low=1.01, high=1.11),
    }
    return Verdict(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "**missed** by 0.19: 1.06 x (1.01 x to 1.11 x)"),
        ({"must_not": True}, "**broken** by 0.19: 1.06 x (1.01 x to 1.11 x)"),
        ({"outcome": MET}, "met: 1.06 x (1.01 x to 1.11 x)"),
        ({"outcome": MET, "must_not": True}, "kept: 1.06 x (1.01 x to 1.11 x)"),
        ({"outcome": ON_AVERAGE, "estimate": Estimate(mean=1.3)}, "met on average: 1.30 x (one seed)"),
        (
            {"estimate": Estimate(mean=math.inf), "at_least": None, "at_most": 1.1},
            "**missed** by far: without end (one seed)",
        ),
        (
            {"figure": "all.attainment", "how": "difference", "at_least": 0.02, "estimate": Estimate(mean=-0.01)},
            "**missed** by 3.0 points: -1.0 points (one seed)",
        ),
        ({"estimate": None, "outcome": UNKNOWN}, "cannot be judged: somebody waited for ever, or nothing happened"),
    ],
)
def test_a_verdict_says_by_how_much(changes: dict[str, Any], said: str) -> None:
    assert verdict(told(**changes)) == said


def made(number: str, **changes: Any) -> Section:
    values = {
        "id": number,
        "title": f"Title of {number}",
        "claim": "It is so.",
        "notes": (),
        "made": {"command": "make experiments", "commit": "abc", "day": "2026-01-01"},
        "verdicts": (told(),),
        "rates": (),
        "runs": (),
        "skipped": (),
        "curve": False,
    }
    return Section(**(values | changes))


def test_a_section_is_renewed_and_the_others_stay() -> None:
    place = Path("docs/page.md")
    renew(place, made("E3"))
    renew(place, made("E1", verdicts=(told(estimate=Estimate(mean=math.inf)),)))
    renew(place, made("E3", claim="It is otherwise."))
    text = place.read_text()
    assert text.index("## E1.") < text.index("## E3.")
    assert "It is otherwise." in text
    assert "1 missed<br>here: more: **missed** by 0.19: 1.06 x (1.01 x to 1.11 x)" in text
    assert text.count("## E3.") == 1
    assert text == page(results(place.with_suffix(".json"))), "it can be made again from the results alone"


def test_what_needs_a_trace_is_skipped_with_a_reason() -> None:
    experiment = msgspec.structs.replace(SMALL, loads=(Load(scenario="code-trace"),))
    got = section(experiment, Lab(Path("shelf"), (7,), Path("traces")), {"command": "", "commit": "", "day": ""})
    assert got.skipped == ("code-trace: needs azure2023_code.jsonl.gz",)
    assert "Not run: code-trace: needs azure2023_code.jsonl.gz" in page([got])


# ---- the experiments themselves


def test_they_are_chosen_by_id() -> None:
    assert [one.id for one in select(("E5", "E1"))] == ["E1", "E5a", "E5b"]
    assert select(()) == list(EXPERIMENTS)
    with pytest.raises(ScenarioError, match="E99"):
        select(("E99",))
    assert experiments_command(Options(ids=("E99",))) == command.WRONG


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.id)
def test_what_they_name_is_there(experiment: Experiment) -> None:
    labels = [setup.label for setup in (*experiment.arms, *experiment.field)]
    known = {*labels, BEST} if experiment.field else set(labels)
    assert len({setup.label for setup in experiment.arms}) == len(experiment.arms)
    for claim in experiment.claims:
        assert {claim.ours, *claim.against} <= known
        assert (claim.at_least, claim.at_most) != (None, None)
        assert (claim.how == "value") == (not claim.against)
    assert {point.of for point in experiment.points} <= known | {""}
    for load in experiment.loads:
        for setup in experiment.arms:
            inputs.read(load.scenario, load.fleet, None, (*load.changes, *setup.changes))
