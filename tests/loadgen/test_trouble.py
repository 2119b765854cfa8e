"""Faults on the timeline of a simulated run: what becomes of requests, and what a gateway finds out."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.faults import FaultError
from loadgen.report.record import Outcome
from loadgen.schedule import Schedule, build
from loadgen.sim.arm import Arm, simulate
from loadgen.sim.loop import Timing
from loadgen.sim.timeline import read
from loadgen.workload.prompts import Block
from tests.loadgen.simulations import TEXT, arm, mini
from tests.loadgen.test_sim import planned, schedule
from tests.loadgen.test_sim_command import called

ENGINES = ("e0", "e1")
LOST = (Outcome.ERROR_STREAM, Outcome.ERROR_STATUS, Outcome.REJECTED_CAPACITY, Outcome.TIMEOUT)


class Ran:
    """The core through a small scenario of 24 s with faults, audited after each event, and its journal."""

    def __init__(self, where: Path, *faults: str, plan: Schedule | None = None, **fields: Any) -> None:
        made: Arm = arm(faults=faults, check=True, journal=where / "journal.jsonl", **fields)
        self.arm = msgspec.structs.replace(made, policy=msgspec.structs.replace(made.policy, first_byte_s=1.0))
        floor = simulate(self.arm, plan or build(self.arm.scenario, 3), 3)
        self.samples, self.engines = floor.samples, floor.engines
        told = (where / "journal.jsonl").read_text().splitlines()[1:]
        self.told: list[dict[str, Any]] = [json.loads(line) for line in told]

    def of(self, event: str, **fields: Any) -> list[float]:
        """When such an event came."""
        return [one["t"] for one in self._events(event, fields)]

    def observed(self, endpoint: str, field: str) -> list[tuple[float, Any]]:
        """What was seen of an engine: when, and that field."""
        return [(one["t"], one[field]) for one in self._events("LoadObserved", {"endpoint": endpoint})]

    def sent(self, endpoint: str, start_s: float, end_s: float) -> int:
        """How many requests went there meanwhile."""
        decisions = [one for each in self.told if start_s <= each["t"] < end_s for one in each["decisions"]]
        return sum(one.get("endpoint") == endpoint for one in decisions)

    def outcomes(self) -> Counter[Outcome]:
        return Counter(one.outcome for one in self.samples)

    def _events(self, event: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        return [one for one in self.told if one["event"] == event and fields.items() <= one.items()]


def asking(*times: float) -> Schedule:
    """One prompt, at these times."""
    block = Block(namespace="t", id=0, tokens=100)
    requests = (planned(number, at, blocks=(block,)) for number, at in enumerate(times))
    return schedule(*requests, end_s=20.0)


# ---- engines


def test_a_dead_engine_is_found_out_avoided_and_taken_back_with_an_empty_cache(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "crash:engine=e0@8-14")
    [down], [*ups] = ran.of("EndpointDown", name="e0"), ran.of("EndpointUp")
    assert 8 < down <= 8 + 2.2 + 3 * 0.25
    assert 14 <= ups[-1] <= 14 + 2.2
    assert ran.sent("e0", down + 0.001, ups[-1]) == 0
    assert ran.sent("e0", 2, 8) > 20 < ran.sent("e0", ups[-1], 22)
    assert ran.of("Bounced", cause="connect") and ran.of("Bounced", cause="reset")
    outcomes = ran.outcomes()
    assert 0 < outcomes[Outcome.ERROR_STREAM] < 40
    assert not outcomes[Outcome.REJECTED_CAPACITY] and outcomes[Outcome.OK] > 200
    assert {one.reason for one in ran.samples if one.outcome is Outcome.ERROR_STREAM} == {"backend_stream_interrupted"}


def test_a_process_that_comes_back_before_anybody_noticed_has_lost_its_cache(tmp_path: Path) -> None:
    for faults, cached in (((), 96), (("crash@4-4.01",), 0)):
        ran = Ran(tmp_path, *faults, fleet=mini(1), plan=asking(2.0, 6.0))
        assert not ran.of("EndpointDown")
        assert [(one.outcome, one.cached_tokens) for one in ran.samples] == [(Outcome.OK, 0), (Outcome.OK, cached)]


def test_who_refuses_new_connections_keeps_what_it_has(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "refuse:engine=e1@8-12")
    assert sum(ran.outcomes()[lost] for lost in LOST) == 0
    assert len(ran.of("Bounced")) == len(ran.of("Bounced", cause="connect")) > 0


def test_a_starting_engine_answers_503_and_is_down(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "startup:8,engine=e1@8-")
    assert ran.of("Bounced", cause="status_503")
    assert len(ran.of("EndpointDown", name="e1")) == 1
    assert ran.sent("e1", 18.3, 22) > 10


@pytest.mark.parametrize(
    ("fault", "cause", "most"),
    [
        ("status:503,p=0.5,engine=e0,retry_after=1@5-10", "status_503", 100),
        ("status:429,count=3,engine=e0@5-", "status_429", 3),
        ("hang:count=3,engine=e0@5-", "first_byte_timeout", 3),
        ("health_lie:count=2,engine=e0@5-", "first_byte_timeout", 2),
    ],
)
def test_who_is_struck_goes_again_elsewhere(tmp_path: Path, fault: str, cause: str, most: int) -> None:
    ran = Ran(tmp_path, fault)
    bounced = ran.of("Bounced")
    assert ran.of("Bounced", cause=cause) == bounced
    assert 0 < len(bounced) <= most
    assert len(bounced) == most or most == 100
    assert not ran.of("EndpointDown"), "its probes are answered well"
    assert sum(ran.outcomes()[lost] for lost in LOST) == 0


def test_what_an_engine_refuses_for_the_clients_sake_is_not_tried_again(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "status:400,count=4@5-")
    assert ran.outcomes()[Outcome.ERROR_STATUS] == 4 == len(ran.of("Finished", outcome="refused"))


@pytest.mark.parametrize(("fault", "prefill", "decode"), [("slow_prefill:4", 4, 1), ("slow_decode:3", 1, 3)])
def test_a_slow_engine_takes_so_many_times_as_long(tmp_path: Path, fault: str, prefill: float, decode: float) -> None:
    usual, ran = Ran(tmp_path, plan=asking(6.0)), Ran(tmp_path, f"{fault}@5-", plan=asking(6.0))
    late = Ran(tmp_path, f"{fault}@7-", plan=asking(6.0))
    first, slow = usual.samples[0], ran.samples[0]
    assert slow.reads[0] - 6.0003 == pytest.approx(prefill * (first.reads[0] - 6.0003))
    assert slow.reads[-1] - slow.reads[0] == pytest.approx(decode * (first.reads[-1] - first.reads[0]))
    assert late.samples[0].reads == first.reads


def test_a_cache_that_shrinks_is_smaller_for_that_time(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "kv_shrink:0.9,engine=e0@5-10")
    seen = ran.observed("e0", "kv_usage")
    assert all(0.89 < used <= 1 for at, used in seen if 6 < at < 10)
    assert all(used < 0.89 for at, used in seen if at < 5 or at > 10.2)
    for engine in ran.engines:
        engine.scheduler.check(None)
    assert sum(ran.outcomes()[lost] for lost in LOST) == 0


def test_an_engine_that_ignores_aborts_works_for_nobody(tmp_path: Path) -> None:
    usual, ran = Ran(tmp_path), Ran(tmp_path, "ignore_abort")
    assert usual.outcomes()[Outcome.CANCELLED] == ran.outcomes()[Outcome.CANCELLED] > 0
    assert sum(one.aborted for one in usual.engines) > sum(one.aborted for one in ran.engines) == 0


# ---- metrics


def test_metrics_that_are_not_there_are_not_seen(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "absent:engine=e0@5-10")
    assert not [at for at, _ in ran.observed("e0", "running") if 5.01 < at < 10]
    assert len([at for at, _ in ran.observed("e1", "running") if 5.01 < at < 10]) > 40


@pytest.mark.parametrize(("fault", "changes"), [("freeze:", 0), ("stale:2,", 2)])
def test_metrics_that_stand_still_are_seen_as_new(tmp_path: Path, fault: str, changes: int) -> None:
    ran = Ran(tmp_path, f"{fault}engine=e0@5-10", timing=Timing(poll_s=0.1))
    seen = [used for at, used in ran.observed("e0", "kv_usage") if 5.1 < at < 10]
    usual = [used for at, used in ran.observed("e1", "kv_usage") if 5.1 < at < 10]
    assert len(seen) == len(usual) > 40
    assert sum(a != b for a, b in pairwise(seen)) == changes
    assert sum(a != b for a, b in pairwise(usual)) > 20


def test_metrics_that_come_slowly_are_old_when_they_come(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "slow:500,engine=e0@5-10", timing=Timing(poll_s=0.1, poll_delay_s=0.005))
    ages = [at - observed for at, observed in ran.observed("e0", "observed_s") if 5.6 < at < 10]
    assert ages and all(age == pytest.approx(0.5) for age in ages)


# ---- what cannot be


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("zap", "no fault 'zap'"),
        ("half_chunk:chunk=2", "virtual time has no half_chunk, it has refuse, status"),
        ("slow_decode:3,p=0.5", "in virtual time slow_decode does not take p"),
        ("crash:chunk=3", "in virtual time crash does not take chunk"),
        ("hang:model=m", "in virtual time hang does not take model"),
        ("crash:engine=e7", "no engine is called e7; there are e0, e1"),
        ("status:404", "404 is not one of 400, 429, 500, 502, 503, 504"),
        ("kv_shrink:2", "2 is no share between 0 and 1"),
        ("slow_prefill:0", "0 is not more than 0"),
        ("slow_prefill:x", "'x' is not a number"),
        ("freeze@9-4", "it ends before it begins"),
    ],
)
def test_a_fault_that_virtual_time_cannot_have_is_named(spec: str, words: str) -> None:
    with pytest.raises(FaultError) as caught:
        read([spec], ENGINES)
    assert words in str(caught.value)


def test_the_command_takes_a_file_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    plan, file = tmp_path / "small.yaml", tmp_path / "faults"
    plan.write_text(TEXT)
    file.write_text("# a slow one\n\nslow_prefill:3,engine=e0@2-22\n")
    told = [
        called(str(plan), "--json", "--quiet", "--seeds", "1", "--router", "core,lmetric", *more)
        for more in ((), ("--faults", str(file)))
    ]
    assert [code for code, _, _ in told] == [0, 0]
    usual, slow = (json.loads(out)["arms"] for _, out, _ in told)
    for router in ("core", "lmetric"):
        assert slow[router]["totals"]["ttft_p99_ms"] > usual[router]["totals"]["ttft_p99_ms"]
    file.write_text("crash:engine=e0@5-9\n")
    code, _, err = called(str(plan), "--router", "core,lmetric", "--faults", str(file))
    assert code == 2 and "nobody looks after engines or retries in a baseline; --router core alone" in err
    assert called(str(plan), "--quiet", "--faults", str(tmp_path / "none"))[0] == 2


def test_faults_are_equal_each_time() -> None:
    runs = []
    for _ in range(2):
        made = arm(faults=("crash:engine=e0@8-14", "status:500,p=0.3@3-20"))
        runs.append([(one.outcome, one.end_s) for one in simulate(made, build(made.scenario, 3), 3).samples])
    assert runs[0] == runs[1]
