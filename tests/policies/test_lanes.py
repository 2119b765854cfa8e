"""Long prompts in lanes of their own: nobody hides, lanes are bounded, and their number follows the work."""

from dataclasses import replace
from math import exp

import pytest

from policies import lanes
from policies.lanes import wanted
from policies.state.lanework import MEAN_S, TICK_S, LaneWork
from policies.state.ledger import Load
from policies.state.queues import PoolQueue
from policies.types import Affinity, Band, Endpoint, Fairness, Limits, Pool, Tenant
from tests.policies.given import World, endpoint, settings

AUTO = Pool(name="main", model="llama", long_prompt_tokens=4096)
PATIENT = (Band(name="standard", rank=2, queue_timeout_s=6000.0, max_queued=5000),)


def world(*endpoints: Endpoint, pool: Pool = AUTO) -> World:
    return World(*endpoints, settings=settings(pools=(pool,), bands=PATIENT))


def test_a_long_head_does_not_hide_the_short_ones_behind_it() -> None:
    made = world(endpoint("x"))
    assert made.arrive("l1", tokens=5000) == ["l1>x"]
    assert made.arrive("l2", tokens=5000) == []
    assert made.arrive("s", tokens=100) == ["s>x"]
    assert made.first_token("l1", 1.0) == ["l2>x"]


@pytest.mark.parametrize(("cap", "goes"), [(0, False), (512, True)])
def test_beside_a_long_prompt_there_is_room_where_the_engine_caps_it(cap: int, goes: bool) -> None:
    made = world(endpoint("x", long_prefill_cap=cap))
    made.arrive("l", tokens=5000)
    assert made.arrive("s", tokens=100) == (["s>x"] if goes else [])
    assert made.first_token("l", 1.0) == ([] if goes else ["s>x"])


def test_short_prompts_have_their_bound_for_themselves() -> None:
    made = world(endpoint("x", prefill=2048))
    made.arrive("l", tokens=50_000)
    assert made.arrive("s1", tokens=2000) == ["s1>x"]
    assert made.arrive("s2", tokens=49) == []
    assert made.first_token("s1", 1.0) == ["s2>x"]
    assert made.load("x") == (3, 50_049)


@pytest.mark.parametrize("held", [1, 2])
def test_an_endpoint_holds_as_many_long_prompts_as_it_has_lanes(held: int) -> None:
    made = world(endpoint("x", long_lanes=held))
    answers = [made.arrive(f"l{number}", tokens=5000) for number in range(held + 1)]
    assert [bool(answer) for answer in answers] == [True] * held + [False]


def conversation(blocks: int) -> tuple[int, ...]:
    """28 blocks are 4,096 tokens, each further one 1,024."""
    return tuple(range(1, 1 + blocks))


@pytest.mark.parametrize(("tokens", "goes"), [(15_000, True), (20_000, False)])
def test_where_half_of_it_is_cached_a_long_prompt_needs_no_lane(tokens: int, goes: bool) -> None:
    made = World(endpoint("x"), settings=settings(pools=(AUTO,), bands=PATIENT, affinity=Affinity()))
    assert made.arrive("turn", tokens=9216, prefix=conversation(33)) == ["turn>x"]
    made.first_token("turn", 1.0)
    made.finish("turn", 2.0)
    assert made.arrive("long", 3.0, tokens=30_000) == ["long>x"]
    assert made.arrive("next", 3.0, tokens=tokens, prefix=conversation(33)) == (["next>x"] if goes else [])


def test_an_endpoint_that_may_have_no_lanes_takes_no_long_prompt_of_which_it_has_half() -> None:
    made = World(endpoint("x", long_lanes=0), settings=settings(pools=(AUTO,), bands=PATIENT, affinity=Affinity()))
    for at, (tokens, blocks) in enumerate([(4000, 27), (7900, 30)]):
        name = f"turn {at}"
        assert made.arrive(name, at, tokens=tokens, prefix=conversation(blocks)) == [f"{name}>x"]
        made.first_token(name, at + 0.5)
        made.finish(name, at + 0.6)
    assert made.arrive("next", 3.0, tokens=12_000, prefix=conversation(30)) == []
    assert made.up(endpoint("y"), 3.5) == ["next>y"]
    # Nor does one that could go at once wait for it: no end of a prefill makes a lane there.
    made.first_token("next", 4.0)
    assert made.arrive("last", 5.0, tokens=12_000, prefix=(*conversation(29), 1001)) == ["last>y"]


def test_an_endpoint_without_lanes_takes_no_long_prompt_even_when_it_is_idle() -> None:
    made = world(endpoint("x", long_lanes=0), endpoint("y"))
    assert made.arrive("l1", tokens=5000) == ["l1>y"]
    assert made.arrive("l2", tokens=5000) == []


@pytest.mark.parametrize(("tokens", "lane"), [(4096, "short"), (4097, "long")])
def test_a_prompt_is_long_from_the_bound_of_its_pool_on(tokens: int, lane: str) -> None:
    assert world(endpoint("x")).why("a", tokens=tokens).lane == lane


@pytest.mark.parametrize(
    ("pool", "step", "bound"),
    [
        (Pool(name="main", model="llama"), 2048, 4096),
        (Pool(name="main", model="llama"), 512, 2048),
        (Pool(name="main", model="llama"), 0, 20_000),
        (Pool(name="main", model="llama", long_prompt_tokens=3000), 2048, 3000),
    ],
)
def test_by_default_a_prompt_of_two_steps_is_long(pool: Pool, step: int, bound: int) -> None:
    made = world(endpoint("x", step_tokens=step, prefill=10_000), pool=pool)
    assert made.why("a", tokens=bound).lane == "short"
    assert made.why("b", tokens=bound + 1).lane == "long"


def test_a_pool_with_lanes_off_knows_no_long_prompts() -> None:
    made = world(endpoint("x"), pool=Pool(name="main", model="llama", lanes="off"))
    assert made.why("a", tokens=100_000).lane == "short"
    assert made.arrive("b", tokens=1) == []


def test_the_lane_goes_by_what_has_to_be_computed_and_not_by_what_is_cached() -> None:
    made = World(
        endpoint("x"), settings=settings(pools=(AUTO,), bands=PATIENT, affinity=Affinity(), ordering="by_length")
    )
    prefix = tuple(range(1, 37))  # 36 blocks, of which the later are larger
    assert made.why("a", tokens=8000, prefix=prefix).lane == "long"
    made.first_token("a", 0.5)
    again = made.why("b", 1.0, tokens=8000, prefix=prefix)
    assert (again.lane, again.cached_tokens) == ("short", 7999)


# ---- and fair shares


def shared(**limits: Limits) -> World:
    """An endpoint on which `a` has a short and `b` a long prompt, twelve rounds of cost; a short one of `a` waits."""
    tenants = {name: Tenant(id=name, limits=limits.get(name, Limits())) for name in "ab"}
    made = World(endpoint("x"), settings=replace(settings(pools=(AUTO,), bands=PATIENT), tenants=tenants))
    assert made.arrive("a0", tokens=2048, tenant="a") == ["a0>x"]
    assert made.arrive("a1", tokens=2048, tenant="a") == []
    assert made.arrive("b1", tokens=100_000, tenant="b") == ["b1>x"]
    return made


def test_a_lane_is_not_for_one_tenant_while_a_short_prompt_of_another_waits_whose_turn_it_is() -> None:
    made = shared()
    assert made.arrive("a2", tokens=2048, tenant="a") == made.arrive("b2", tokens=5000, tenant="b") == []
    assert made.first_token("b1", 1.0) == []
    assert made.first_token("a0", 2.0) == ["a1>x"]
    assert made.cancel("a2", 3.0) == ["b2>x"]


def test_nor_is_it_for_one_that_comes_then() -> None:
    made = shared()
    made.first_token("b1", 1.0)
    assert made.arrive("b2", 1.5, tokens=5000, tenant="b") == []
    assert made.first_token("a0", 2.0) == ["a1>x", "b2>x"]


def test_in_its_turn_a_long_prompt_goes_before_short_ones() -> None:
    made = shared()
    assert made.arrive("c", tokens=5000, tenant="c") == []
    assert made.first_token("b1", 1.0) == ["c>x"]


def test_a_tenants_own_short_prompts_do_not_hold_up_its_long_ones() -> None:
    made = shared()
    assert made.arrive("a2", tokens=5000, tenant="a") == []
    assert made.first_token("b1", 1.0) == ["a2>x"]


def test_a_short_prompt_that_waits_for_a_slot_holds_up_no_long_one() -> None:
    made = shared(a=Limits(max_concurrency=1))
    assert made.arrive("b2", tokens=5000, tenant="b") == []
    assert made.first_token("b1", 1.0) == ["b2>x"]
    assert made.arrive("b3", 1.5, tokens=5000, tenant="b") == []
    assert made.finish("b2", 2.0) == ["b3>x"]


def beside_longs(*, takes_long: bool = True, long_lanes: int = 1) -> World:
    """`a` has a long prompt on every lane and one that waits; short ones of `b` wait behind two that are computed."""
    quick = Fairness(quantum=2048)
    two = endpoint("x"), endpoint("y", long_lanes=long_lanes)
    made = World(*two, settings=settings(pools=(AUTO,), bands=PATIENT, fairness=quick))
    made.core._books.loads["y"].let_take_long(takes_long)
    for number in range(2 + takes_long):
        made.arrive(f"l{number}", tokens=5000, tenant="a")
    for number in range(20):
        made.arrive(f"s{number}", tokens=2048, tenant="b")
    return made


def served_in_turn(made: World, first: str) -> list[str]:
    """Who goes when what went last has its first token, one after the other."""
    gone = [first]
    while next_one := made.first_token(gone[-1].partition(">")[0], 1.0 + len(gone)):
        gone += next_one
    return gone[1:]


def test_short_prompts_that_are_rounds_ahead_wait_for_a_long_one_that_finds_no_lane() -> None:
    made = beside_longs()
    assert served_in_turn(made, "s0") == ["s2>x", "s3>x", "s4>x"]
    assert made.first_token("s1", 9.0) == []
    assert made.first_token("l0", 10.0) == ["l2>x", "s5>y", "s6>x"]


def test_it_goes_where_no_long_one_is_without_a_lane() -> None:
    made = beside_longs(takes_long=False)
    assert served_in_turn(made, "s0")[:4] == ["s2>y", "s3>y", "s4>y", "l1>y"]


def test_but_nowhere_where_long_ones_are_forbidden() -> None:
    made = beside_longs(takes_long=False, long_lanes=0)
    assert served_in_turn(made, "s0") == ["s2>y", "s3>y", "s4>y"]
    assert made.first_token("l0", 9.0)[0] == "l1>x"


# ---- how many endpoints take long prompts


def queue_of(endpoints: int, *, pool: Pool = AUTO, speed: float = 1000.0, **facts: int) -> PoolQueue:
    made = PoolQueue(pool, 10.0)
    made.up = [Load(endpoint(f"e{number}", speed=speed, **facts)) for number in range(endpoints)]
    return made


def work_of(*, tokens_per_s: float, long_share: float, longs_per_s: float, hold_s: float) -> LaneWork:
    work = LaneWork()
    work.tokens_per_s, work.long_tokens_per_s = tokens_per_s, long_share * tokens_per_s
    work.longs_per_s, work.hold_s = longs_per_s, hold_s
    return work


BUSY = {"tokens_per_s": 3000.0, "long_share": 0.7, "longs_per_s": 0.5, "hold_s": 2.0}


@pytest.mark.parametrize(
    ("endpoints", "changes", "number"),
    [
        (4, {}, 3),  # one lane is held: one and a half more
        (4, {"longs_per_s": 0.125}, 1),  # a quarter, and three quarters more
        (4, {"longs_per_s": 0.126}, 2),
        (4, {"longs_per_s": 0.6}, 3),
        (4, {"longs_per_s": 0.7}, 4),
        (16, {"longs_per_s": 2.0, "tokens_per_s": 9000.0}, 7),
        (4, {"longs_per_s": 9.0}, 4),
        (4, {"longs_per_s": 0.0}, 1),
        (2, {}, 2),  # too few to split
        (4, {"tokens_per_s": 1999.0}, 4),  # half idle
        (4, {"long_share": 0.09}, 4),
        (4, {"long_share": 0.76}, 4),
    ],
)
def test_so_many_endpoints_take_long_prompts_as_their_work_keeps_busy(
    endpoints: int, changes: dict[str, float], number: int
) -> None:
    assert wanted(work_of(**{**BUSY, **changes}), queue_of(endpoints).up) == number


def test_engines_without_a_prefill_cap_are_split_at_low_load_too_and_by_the_same_rule() -> None:
    queue = queue_of(4, long_prefill_cap=0)
    few = {**BUSY, "tokens_per_s": 400.0}
    assert wanted(work_of(**few), queue.up) == 3
    assert wanted(work_of(**{**few, "longs_per_s": 0.7}), queue.up) == 4


def test_work_is_a_mean_over_a_minute_and_in_the_first_over_what_there_is_of_it() -> None:
    work = LaneWork()
    told = []
    for second in range(0, 131, 10):
        work.turn(float(second))
        told.append(work.longs_per_s)
        for _ in range(5 if second < 70 else 0):
            work.came(5000, long=True)
    assert told[1:8] == pytest.approx([0.5] * 7)
    assert told[13] == pytest.approx(0.5 * exp(-6 * TICK_S / MEAN_S), rel=0.01)


def looked_after(queue: PoolQueue, work: dict[str, float], seconds: range) -> list[int]:
    """How many take long prompts after each of these seconds, the work being the same all the time."""
    held = []
    for now in seconds:
        known = queue.work
        known.tokens_per_s, known.long_tokens_per_s = work["tokens_per_s"], work["tokens_per_s"] * work["long_share"]
        known.longs_per_s, known.hold_s = work["longs_per_s"], work["hold_s"]
        known._tokens = int(work["tokens_per_s"] * 10)
        known._long_tokens = int(work["tokens_per_s"] * work["long_share"] * 10)
        known._longs = int(work["longs_per_s"] * 10)
        lanes.look_after(queue, float(now))
        held.append(sum(load.takes_long for load in queue.up))
    return held


def test_one_lane_moves_when_two_ticks_have_asked_for_it_and_then_not_for_half_a_minute() -> None:
    queue = queue_of(4)
    held = looked_after(queue, {**BUSY, "longs_per_s": 0.25}, range(100))
    moves = [now for now in range(1, 100) if held[now] != held[now - 1]]
    assert moves == [20, 60]  # ticks at 10 and 20; none counts before 50
    assert held[-1] == 2


def test_a_lane_that_is_asked_for_once_does_not_move() -> None:
    queue = queue_of(4)
    for tick in range(1, 9):
        looked_after(queue, BUSY if tick % 2 else {**BUSY, "longs_per_s": 9.0}, range(tick * 10, tick * 10 + 1))
    assert all(load.takes_long for load in queue.up)


def test_a_lane_that_is_taken_away_lets_its_prompt_end() -> None:
    queue = queue_of(4)
    for load in queue.up[1:]:
        load.longs = 1
    looked_after(queue, {**BUSY, "longs_per_s": 0.125}, range(21))
    assert [load.takes_long for load in queue.up] == [False, True, True, True]
    assert [load.longs for load in queue.up] == [0, 1, 1, 1]


def test_a_split_that_hurts_for_a_minute_is_taken_back_for_five() -> None:
    queue = queue_of(4)
    queue.up[0].let_take_long(False)
    queue.queued_in_lane[True] = 1  # it waits while e0 is idle
    held = looked_after(queue, {**BUSY, "longs_per_s": 0.6}, range(1, 460))
    assert held[:69] == [3] * 69  # ticks at 11, 21 ... 71: a minute after the first that hurt
    assert set(held[71:371]) == {4}


def test_short_ones_that_wait_behind_long_ones_weigh_against_that() -> None:
    queue = queue_of(4)
    queue.up[0].let_take_long(False)
    queue.up[1].longs = 1
    queue.queued_in_lane[:] = [1, 1]
    held = looked_after(queue, {**BUSY, "longs_per_s": 0.6}, range(1, 200))
    assert set(held) == {3}


@pytest.mark.parametrize("kind", ["fixed", "off"])
def test_lanes_that_are_not_auto_are_everybodys(kind: str) -> None:
    queue = queue_of(4, pool=Pool(name="main", model="llama", lanes=kind))
    queue.up[0].let_take_long(False)
    assert looked_after(queue, BUSY, range(40))[-1] == 4


def test_when_the_last_endpoint_that_takes_long_prompts_goes_the_others_do() -> None:
    made = world(*(endpoint(name) for name in "xyz"))
    for name in "xy":
        made.core._books.loads[name].let_take_long(False)
    assert made.arrive("l1", 1.0, tokens=5000) == ["l1>z"]
    assert made.arrive("l2", 1.0, tokens=5000) == []
    assert made.down("z", 3.0) == []
    assert made.tick(4.0) in (["l2>x"], ["l2>y"])
