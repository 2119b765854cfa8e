"""Virtual time: what a run must keep true, whatever stands in front of the engines."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from loadgen.report.arms import as_json
from loadgen.report.record import Outcome
from loadgen.schedule import Planned, Schedule, build
from loadgen.sim import fleet as fleets
from loadgen.sim.arm import Arm, Ran, run, run_all
from loadgen.sim.loop import Floor, Timing
from loadgen.sim.policy import Policy, policy
from loadgen.sim.replay import Replay, replay
from loadgen.sim.routers import names as routers
from loadgen.sim.through_core import ThroughCore
from loadgen.workload.prompts import Block
from policies.core import Core
from policies.events import Arrived
from policies.types import InferenceRequest
from tests.loadgen.simulations import ToTheFirst, arm, floor, mini, run_to_the_first, scenario

CORE_AND_ALL = ("core", *routers())


def planned(number: int, t: float, **changes: object) -> Planned:
    values = {
        "id": number,
        "t": t,
        "tenant": "chat",
        "priority": "interactive",
        "cls": "short",
        "input_tokens": 102,
        "output_tokens": 5,
        "max_tokens": None,
        "cancel_after_s": None,
        "measured": True,
        "blocks": (Block(namespace="t", id=number, tokens=100),),
    }
    return Planned(**(values | changes))  # type: ignore[arg-type]


def schedule(*requests: Planned, end_s: float = 10.0) -> Schedule:
    return Schedule(name="made", seed=0, window_start_s=0.0, window_end_s=end_s, requests=requests)


@pytest.mark.parametrize("router", CORE_AND_ALL)
def test_every_request_ends_once_and_the_engines_forget_nobody(router: str) -> None:
    made = arm(router)
    ran = run(made, 3)
    totals = ran.report.totals
    plan = build(made.scenario, 3)
    leaving = sum(one.measured and one.cancel_after_s is not None for one in plan.requests)
    assert totals.offered == plan.measured - leaving
    assert totals.ok == totals.offered
    assert sum(one.requests for one in ran.report.endpoints) == ran.requests


@pytest.mark.parametrize("router", ["core", "lmetric"])
def test_a_cell_is_a_part_of_the_whole(router: str) -> None:
    report = run(arm(router), 3).report
    assert set(report.cells) == {
        ("short", "chat", "interactive"),
        ("long", "docs", "batch"),
    }
    for name in ("offered", "ok", "good", "prompt_tokens", "cached_tokens", "ideal_tokens", "missed_ttft"):
        parts = [getattr(cell, name) for cell in report.cells.values()]
        assert sum(parts) == getattr(report.totals, name)
        assert sum(getattr(group, name) for group in report.classes.values()) == getattr(report.totals, name)
    received = sum(cell.output_tokens_per_s for cell in report.cells.values())
    assert received == pytest.approx(report.totals.output_tokens_per_s)
    assert sum(offered for _, offered in report.blocks) == report.totals.offered


def test_tokens_that_engines_gave_are_the_tokens_that_were_planned() -> None:
    made = arm(plan=scenario(tenants=scenario().tenants[1:]))  # nobody leaves there
    ran = run(made, 3)
    given = sum(one.output_tokens for one in ran.report.endpoints)
    unfinished = 40 * 10  # of the tail, when the last measured one has ended
    whole = sum(one.output_tokens for one in build(made.scenario, 3).requests)
    assert whole - unfinished <= given <= whole


def test_a_lone_request_takes_the_net_its_prefill_and_its_steps() -> None:
    made = arm(fleet=mini(1))
    front, samples = run_to_the_first(made, schedule(planned(0, 1.0)))
    step = fleets.members(made.fleet)[0].profile.step
    prefill_s = step.prefill_s(102)
    assert samples[0].reads[0] == pytest.approx(1.0 + 0.0003 + prefill_s)
    decodes = [step.step_s(1, 102 + 1 + number, 0, 0.0) for number in range(4)]
    assert samples[0].end_s == pytest.approx(1.0003 + prefill_s + sum(decodes), rel=1e-9)
    assert samples[0].outcome is Outcome.OK
    assert [what for what, _, _ in front.told] == ["arrived", "first_token", "finished"]


def test_an_answer_that_comes_whole_has_no_first_token() -> None:
    front, samples = run_to_the_first(arm(), schedule(planned(0, 1.0, stream=False)))
    assert [what for what, _, _ in front.told] == ["arrived", "finished"]
    assert samples[0].ttft_ms is None
    assert list(samples[0].reads) == [samples[0].end_s]


def test_a_client_that_leaves_frees_its_place_and_is_not_offered() -> None:
    one = planned(0, 1.0, output_tokens=2000, cancel_after_s=0.5)
    front, samples = run_to_the_first(arm(), schedule(one, planned(1, 2.0)))
    assert ("left", "r0", 1.5) in front.told
    assert samples[0].outcome is Outcome.CANCELLED
    assert samples[1].outcome is Outcome.OK


def test_patience_ends() -> None:
    made = arm(timing=Timing(patience_s=0.1))
    _, samples = run_to_the_first(made, schedule(planned(0, 1.0, output_tokens=2000)))
    assert samples[0].outcome is Outcome.TIMEOUT
    assert samples[0].end_s == pytest.approx(1.1)


def test_a_turn_comes_after_the_answer_before() -> None:
    second = planned(1, 1.0, after=0, think_s=2.0)
    late = planned(2, 1.0, after=1, think_s=50.0)
    _, samples = run_to_the_first(arm(), schedule(planned(0, 1.0), second, late))
    assert [one.id for one in samples] == [0, 1], "a turn that is due after the load has ended is not sent"
    assert samples[1].sched_s == samples[0].end_s + 2.0


def test_what_no_engine_takes_is_told() -> None:
    long = planned(0, 1.0, input_tokens=20_000)
    front, samples = run_to_the_first(arm(), schedule(long))
    assert ("too_long", "r0", 1.0003) in front.told
    assert samples[0].outcome is Outcome.ERROR_STATUS


def test_engines_are_seen_as_they_were_at_the_look() -> None:
    made = arm(timing=Timing(poll_s=0.5, poll_delay_s=0.2))
    front, _ = run_to_the_first(made, schedule(planned(0, 0.4, output_tokens=100), end_s=2.0))
    assert front.seen[:3] == [(0.0, 0.2, 0), (0.5, 0.7, 1), (1.0, 1.2, 0)]


def test_ticks_come_when_they_are_due() -> None:
    fronts = []

    def front(place: Floor) -> object:
        fronts.append(ToTheFirst(place))
        fronts[0].due = [0.25, 1.75]
        return fronts[0]

    floor(arm(), front, schedule(planned(0, 1.0), end_s=2.0)).run()
    assert [now for what, _, now in fronts[0].told if what == "tick"] == [0.25, 1.75]


def test_a_journal_of_a_simulation_replays_with_equal_decisions(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    run(arm(journal=path, check=True), 3)
    result = Replay()
    replay(path, result)
    assert result.differences == []
    assert result.kinds["Dispatch"] > 250


def test_a_seed_decides_everything_and_processes_change_nothing() -> None:
    tasks = [(arm(router), seed) for router in ("core", "p2c") for seed in (3, 4)]
    told: list[str] = []
    apart = run_all(tasks, 2, lambda made, ran: told.append(made.router))
    together = run_all(tasks, 1, lambda made, ran: None)
    assert [ran.report for ran in apart] == [ran.report for ran in together]
    assert told == ["core", "core", "p2c", "p2c"]
    assert apart[0].report != apart[1].report


WRITES = """
import sys
from pathlib import Path
from tests.loadgen.simulations import arm
from loadgen.sim.arm import run
from loadgen.report.arms import as_json
import json
report = run(arm(journal=Path(sys.argv[1])), 3).report
print(json.dumps(as_json([report])))
"""


def test_output_is_the_same_under_any_hash_seed(tmp_path: Path) -> None:
    found = []
    for seed in ("0", "77"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        path = tmp_path / f"{seed}.jsonl"
        argv = [sys.executable, "-c", WRITES, str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True)
        found.append((done.stdout, path.read_bytes()))
    assert found[0] == found[1]
    assert json.loads(found[0][0])["totals"]["offered"] > 100


def test_seeds_are_averaged() -> None:
    reports = [run(arm(), seed).report for seed in (3, 4)]
    told = as_json(reports)
    offered = [report.totals.offered for report in reports]
    assert told["totals"]["offered"] == sum(offered) / 2  # type: ignore[index]
    assert [one["seed"] for one in told["runs"]] == [3, 4]  # type: ignore[index,attr-defined]


def test_pools_keep_long_requests_off_small_engines() -> None:
    fleet = fleets.load("pools22")
    members = fleets.members(fleet)
    made = policy({}, fleets.pools(fleet, "llama-70b"))
    assert [member.pools for member in members] == [("short",), ("short",), ("long",), ("long",)]
    assert made.settings.pools["short"].borrow == ("long",)
    assert Counter(member.endpoint().context_tokens for member in members) == {8192: 2, 32768: 2}


@pytest.mark.parametrize("name", fleets.names())
def test_shipped_fleets_read(name: str) -> None:
    for member in fleets.members(fleets.load(name)):
        known = member.endpoint()
        assert known.max_seqs == member.settings.max_num_seqs
        sglang = member.settings.variant == "sglang"
        step = member.settings.chunked_prefill_size if sglang else member.settings.max_num_batched_tokens
        assert known.max_prefill_tokens == known.step_tokens == step
        assert 5_000 < known.prefill_tokens_per_s < 100_000
        assert 0.004 < known.decode_s < 0.03


def test_a_fleet_may_be_of_sglang() -> None:
    fleet = mini(variant="sglang", chunked_prefill_size=4096)
    assert fleets.members(fleet)[0].endpoint().max_prefill_tokens == 4096
    totals = run(arm(fleet=fleet), 3).report.totals
    assert totals.ok == totals.offered > 200


def test_a_run_can_be_stopped_on_the_way() -> None:
    seen: list[int] = []

    def enough(sample: object) -> bool:
        seen.append(1)
        return len(seen) == 10

    ran: Ran = run(arm(), 3, enough)
    assert len(seen) == 10
    assert ran.requests < 100


@pytest.mark.parametrize(("router", "shared"), [("core", False), ("lmetric", True)])
def test_tenants_share_an_engines_cache_only_behind_routers(router: str, shared: bool) -> None:
    system = Block(namespace="sys", id=0, tokens=640, role="system")
    own = Block(namespace="t", id=0, tokens=100), Block(namespace="t", id=1, tokens=100)
    one = planned(0, 1.0, blocks=(system, own[0]), input_tokens=743)
    other = planned(1, 3.0, blocks=(system, own[1]), input_tokens=743, tenant="docs")
    report = run(arm(router, fleet=mini(1), schedule=schedule(one, other)), 3).report
    assert (report.totals.cached_tokens, report.totals.ideal_tokens) == ((640, 640) if shared else (0, 0))


@pytest.mark.parametrize("block_tokens", [16, 48, 64, 256])
def test_the_gateways_chain_is_taken_from_the_engines(block_tokens: int) -> None:
    fleet = mini(max_model_len=65536)
    made = arm(fleet=fleet)
    settings = policy({"affinity": {"block_tokens": block_tokens}}, fleets.pools(fleet, "llama-8b"))
    seen: list[InferenceRequest] = []
    long = planned(0, 1.0, input_tokens=20_002, blocks=(Block(namespace="t", id=0, tokens=20_000),))
    place = floor(made, lambda floor: begun(floor, made, settings, seen), schedule(long))
    place.run()
    ends = accumulate(size * block_tokens for size in (*[1] * 16, *[4] * 12, *[16] * 100))
    blocks = sum(end <= 20_002 for end in ends)
    assert len(seen[0].prefix) == len(set(seen[0].prefix)) == blocks


def begun(floor: Floor, made: Arm, settings: Policy, seen: list[InferenceRequest]) -> ThroughCore:
    front = ThroughCore(floor, Core(), fleets.members(made.fleet), settings)
    front.record = lambda now, event, decided: seen.append(event.request) if isinstance(event, Arrived) else None
    front.begin(())
    return front


def test_a_run_through_the_core_shows_its_pools() -> None:
    (pool,) = run(arm(), 3).pools
    assert (pool.name, pool.endpoints, pool.taking_long, pool.lane_moves) == ("main", 2, 2, 0)
    assert sum(one.seen for one in pool.forecasts) > 50
    assert all(0 <= one.covered <= one.seen for one in pool.forecasts)
    assert run(arm("random"), 3).pools == ()


def test_figures_of_engines_can_stand_still() -> None:
    plan = scenario(duration="5s")
    seen = run_to_the_first(arm(plan=plan, timing=Timing(frozen_s=4.0)))[0].seen
    assert len({running for observed_s, _, running in seen if observed_s < 4.0}) > 1
    assert len({running for observed_s, _, running in seen if observed_s >= 4.0}) == 1
    assert seen[-1][0] > 5.0, "with new times"
