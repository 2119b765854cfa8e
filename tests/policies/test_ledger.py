"""What is held where: each attempt counts once, whatever is reported about it and however often."""

import pytest

from policies.core import Core, InvariantError
from policies.events import Cause, LoadObserved, Outcome, Tick
from policies.state.ledger import Load
from tests.policies.given import World, endpoint


def test_an_attempt_holds_its_sequence_until_its_end_and_its_prompt_until_the_first_token() -> None:
    world = World(endpoint("x"))
    world.arrive("a", tokens=700, sequences=2)
    assert world.load("x") == (2, 700)
    world.first_token("a", 1.0)
    assert world.load("x") == (2, 0)
    world.finish("a", 2.0)
    assert world.load("x") == (0, 0)


def test_prompt_and_predicted_answer_stay_in_the_kv_account_until_the_end() -> None:
    world = World(endpoint("x"))
    world.arrive(
        "a", tokens=700
    )  # and an answer of 256 tokens at most, of which nothing is known: many hold 80 each at most
    world.first_token("a", 1.0)
    assert world.core.endpoints()[0].kv_tokens == 700 + 80
    world.finish("a", 2.0)
    assert world.core.endpoints()[0].kv_tokens == 0


@pytest.mark.parametrize("ending", ["finish", "fail", "bounce", "cancel"])
def test_whatever_ends_an_attempt_frees_all_it_holds_once(ending: str) -> None:
    world = World(endpoint("x"))
    world.arrive("a")
    world.arrive("b")
    for at in (0.1, 0.2):  # the second time nothing happens
        match ending:
            case "finish":
                world.finish("a", at)
            case "fail":
                world.finish("a", at, outcome=Outcome.FAILED)
            case "bounce":
                world.bounce("a", at)
            case "cancel":
                world.cancel("a", at)
        assert world.load("x") == (1, 100)
    totals = world.core.totals()
    assert (totals.received, totals.inflight) == (2, 1)


def test_late_and_unknown_events_change_nothing() -> None:
    world = World(endpoint("x"), endpoint("y"))
    world.arrive("a")
    world.bounce("a", 1.8)
    before = (world.core.endpoints(), world.core.totals())
    assert world.first_token("a", 2.0, attempt=1) == []  # of the first attempt, which is over
    assert world.finish("a", 2.0, attempt=1) == []
    assert world.bounce("a", 2.0, attempt=1) == []
    assert world.finish("a", 2.0, attempt=3) == []
    assert world.finish("nobody", 2.0) == []
    assert world.first_token("nobody", 2.0) == []
    assert world.bounce("nobody", 2.0, Cause.RESET) == []
    assert world.cancel("nobody", 2.0) == []
    assert world.down("nowhere", 2.0) == []
    assert (world.core.endpoints(), world.core.totals()) == before


def test_a_cancelled_request_is_never_dispatched() -> None:
    world = World(endpoint("x", seqs=1))
    world.arrive("a")
    world.arrive("b")
    world.cancel("b", 1.0)
    assert world.finish("a", 2.0) == []
    assert world.core.totals().cancelled == 1


def test_a_cancelled_head_lets_the_next_one_through_in_the_same_event() -> None:
    world = World(endpoint("x"))
    world.arrive("a", tokens=1000)
    world.arrive("large", tokens=2000)
    world.arrive("small", tokens=10)
    assert world.cancel("large", 1.0) == ["small>x"]


def test_a_queued_request_is_not_ended_by_events_of_an_attempt() -> None:
    world = World(endpoint("x", seqs=1))
    world.arrive("a")
    world.arrive("b")
    assert world.finish("b", 1.0) == []
    assert world.core.totals().queued == 1


def test_an_endpoint_that_is_down_gets_nothing_and_keeps_what_it_holds() -> None:
    world = World(endpoint("x"))
    world.arrive("a")
    world.down("x", 1.0)
    assert world.load("x") == (1, 100)
    world.up(endpoint("y"), 2.0)
    assert world.arrive("b", 3.0) == ["b>y"]
    world.finish("a", 4.0)
    assert [view.name for view in world.core.endpoints()] == ["y"]  # empty and down: forgotten


def test_an_endpoint_that_comes_back_starts_from_what_is_really_open() -> None:
    world = World(endpoint("x", seqs=2))
    world.arrive("a")
    world.arrive("b")
    world.down("x", 1.0)
    world.finish("a", 2.0)
    world.up(endpoint("x", seqs=2), 3.0)
    assert world.load("x") == (1, 100)
    assert world.arrive("c", 4.0) == ["c>x"]
    assert world.arrive("d", 4.0) == []


def test_an_endpoint_goes_down_in_the_event_in_which_it_got_room() -> None:
    world = World(endpoint("x", speed=1000.0))
    world.arrive("a", tokens=1000, streamed=False)  # its estimated first token is due at 1.25
    world.arrive("b", tokens=2000, streamed=False)
    assert world.down("x", 2.0) == []


def test_bounds_may_shrink_below_what_is_open() -> None:
    world = World(endpoint("x", seqs=3))
    for name in "abc":
        world.arrive(name)
    world.arrive("d")
    world.up(endpoint("x", seqs=1), 1.0)
    assert world.finish("a", 2.0) == []
    assert world.finish("b", 2.0) == []
    assert world.finish("c", 2.0) == ["d>x"]


def test_larger_bounds_let_the_queue_move() -> None:
    world = World(endpoint("x", seqs=1))
    world.arrive("a")
    world.arrive("b")
    assert world.up(endpoint("x", seqs=2), 1.0) == ["b>x"]


def test_an_endpoint_that_changes_its_pools_serves_the_others() -> None:
    world = World(endpoint("x"))
    world.up(endpoint("x", pools=()), 1.0)
    assert world.arrive("a", 2.0) == ["a!no_endpoint"]


# ---- a first token that nobody sees: prompts here are computed at 1000 tokens/s


def test_an_answer_without_a_visible_first_token_frees_its_prompt_at_the_estimate() -> None:
    world = World(endpoint("x", speed=1000.0, prefill=2000))
    world.arrive("a", tokens=1000, streamed=False)
    assert world.core.next_wakeup() == 1.25
    world.arrive("b", tokens=1000, streamed=False)  # behind a
    world.arrive("c", tokens=1000)
    assert world.tick(1.24) == []
    assert world.tick(1.25) == ["c>x"]
    assert world.load("x") == (3, 2000)
    assert world.tick(2.5) == []
    assert world.load("x") == (3, 1000)


@pytest.mark.parametrize(
    ("tokens", "until_s"), [(1000, 30.0), (10_000, 50.0)], ids=["half a minute", "four times as long"]
)
def test_a_first_token_that_should_have_been_seen_is_given_up_much_later(tokens: int, until_s: float) -> None:
    world = World(endpoint("x", speed=1000.0))
    world.arrive("a", tokens=tokens)
    assert world.core.next_wakeup() == until_s
    world.tick(until_s)
    assert world.load("x") == (1, 0)
    assert world.first_token("a", 60.0) == []
    assert world.load("x") == (1, 0)


def test_an_engine_whose_first_tokens_are_late_draws_nobody() -> None:
    world = World(endpoint("stuck", speed=1000.0))
    world.arrive("a", tokens=1000)
    world.up(endpoint("well", speed=1000.0))
    for at in range(6, 26):  # a is later than was thought by then
        names = [f"b{at}", f"c{at}"]
        assert [told for name in names for told in world.arrive(name, at, tokens=200)] == [
            f"{name}>well" for name in names
        ]
        for name in names:
            world.first_token(name, at + 0.5)
            world.finish(name, at + 0.5)


def test_the_event_that_comes_late_finds_the_timers_done_first() -> None:
    world = World(endpoint("x", speed=1000.0))
    world.arrive("a", tokens=2048, streamed=False)
    world.arrive("b", tokens=2000, streamed=False)
    assert world.cancel("nobody", 3.0) == ["b>x"]


# ---- how fast an endpoint computes prompts


def load(speed: float = 1000.0) -> Load:
    return Load(endpoint("x", speed=speed))


def test_speed_is_learned_from_the_prompt_and_the_time_it_took() -> None:
    each = load()
    each.learn(2048, sent_s=10.0, now=11.0)
    assert each.speed == 1000.0 + (2048 - 1000) * 0.5
    each.learn(8192, sent_s=11.0, now=13.0)
    assert each.speed == 4096.0


def test_speed_counts_from_the_first_token_before_when_that_came_after_sending() -> None:
    each = load()
    each.learn(4096, sent_s=0.0, now=4.0)
    each.learn(4096, sent_s=1.0, now=6.0)
    assert each.speed == 2048.0


@pytest.mark.parametrize(
    ("tokens", "now"), [(511, 0.25), (4096, 0.0), (4096, -1.0), (8192, 1.0)], ids=["short", "no time", "back", "cached"]
)
def test_a_sample_that_says_nothing_about_speed_is_passed_over(tokens: int, now: float) -> None:
    each = load()
    each.learn(tokens, sent_s=0.0, now=now)
    assert each.speed == 1000.0


def test_after_a_stall_the_true_speed_is_learned_again() -> None:
    each = load()
    each.learn(4096, sent_s=0.0, now=4096.0)
    assert each.speed == 1.0
    each.learn(4096, sent_s=5000.0, now=5004.0)
    assert each.speed == 1024.0


def test_answers_without_a_stream_teach_nothing_and_repeated_bounds_forget_nothing() -> None:
    world = World(endpoint("x", prefill=8192, speed=1000.0))
    world.arrive("a", tokens=4096, streamed=False)
    world.first_token("a", 1.0)
    assert world.core.endpoints()[0].prefill_tokens_per_s == 1000.0
    world.arrive("b", 2.0, tokens=4096)
    world.first_token("b", 4.0)
    world.up(endpoint("x", seqs=3, speed=1000.0), 5.0)
    assert world.core.endpoints()[0].prefill_tokens_per_s == 2048.0


def test_a_first_token_that_is_told_twice_teaches_once() -> None:
    world = World(endpoint("x", speed=1000.0))
    world.arrive("a", tokens=2048)
    world.first_token("a", 1.0)
    learned = world.core.endpoints()[0].prefill_tokens_per_s
    world.first_token("a", 1.5)
    assert world.core.endpoints()[0].prefill_tokens_per_s == learned == 1524.0


def test_nothing_happens_before_the_settings_are_known() -> None:
    with pytest.raises(InvariantError, match="SettingsChanged"):
        Core().handle(Tick(), 0.0)


# ---- replicas: each has its part of every bound


@pytest.mark.parametrize(
    ("replicas", "seqs", "prefill", "lanes", "room", "most", "long"),
    [
        (1, 64, 8192, 2, 60, 8192, 2),
        (2, 64, 8192, 2, 30, 4096, 1),
        (3, 64, 8192, 1, 20, 2730, 1),
        (4, 8, 2048, 0, 2, 2048, 0),  # never less than a step of prefill
        (16, 8, 1024, 3, 1, 1024, 1),  # nor less than one sequence, nor a lane where there is one
    ],
)
def test_a_replica_uses_its_part_of_an_endpoints_bounds(
    replicas: int, seqs: int, prefill: int, lanes: int, room: int, most: int, long: int
) -> None:
    load = Load(endpoint("x", seqs=seqs, prefill=prefill, long_lanes=lanes, replicas=replicas, kv_tokens=10_000))
    assert (load.room_seqs, load.max_prefill_tokens, load.lanes) == (room, most, long)
    assert load.kv_bound == 10_000 // replicas


def test_what_other_replicas_may_have_there_is_not_foreign() -> None:
    load = Load(endpoint("x", seqs=40, replicas=2, kv_tokens=10_000))
    for at in range(1, 60):
        load.observe(LoadObserved(endpoint="x", observed_s=at, running=20, waiting=0, kv_usage=0.5), at)
    assert (load.foreign, load.kv_extra) == (0.0, 0)
    for at in range(60, 120):
        load.observe(LoadObserved(endpoint="x", observed_s=at, running=27, waiting=0, kv_usage=0.7), at)
    assert load.foreign == pytest.approx(7.0, abs=0.01)
    assert load.kv_extra == 2_000


def test_an_engine_that_presses_a_replica_gets_its_part_again_and_no_more() -> None:
    load = Load(endpoint("x", prefill=8192, step_tokens=2048, replicas=2))
    for at in range(1, 4):
        load.observe(LoadObserved(endpoint="x", observed_s=at, running=0, waiting=5), at)
    assert load.max_prefill_tokens < 4096
    for at in range(1, 60):
        load.observe(LoadObserved(endpoint="x", observed_s=20.0 * at, running=0, waiting=0), 20.0 * at)
    assert load.max_prefill_tokens == 4096
