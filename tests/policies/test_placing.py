"""Which endpoint, and when: bounds, late binding, order, choice."""

from collections import Counter

import pytest

from policies.decisions import Dispatch
from policies.events import Arrived
from policies.types import Pool
from tests.policies.given import World, endpoint, request, settings


@pytest.mark.parametrize(
    ("seqs", "places"), [(1, 1), (8, 8), (63, 63), (64, 60), (256, 252)], ids=lambda value: str(value)
)
def test_an_endpoint_takes_as_many_sequences_as_its_bound_less_the_margin(seqs: int, places: int) -> None:
    world = World(endpoint("x", seqs=seqs, prefill=1_000_000))
    answers = [world.arrive(f"r{number}") for number in range(places + 1)]
    assert [bool(answer) for answer in answers] == [True] * places + [False]


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [(1000, 1048, True), (2047, 5000, True), (2048, 1, False), (5000, 1, False), (0, 5000, True), (2048, 0, False)],
)
def test_prompts_share_an_endpoint_while_less_than_its_prefill_bound_is_outstanding(
    first: int, second: int, fits: bool
) -> None:
    world = World(endpoint("x", prefill=2048))
    assert world.arrive("a", tokens=first) == ["a>x"]
    assert world.arrive("b", tokens=second) == (["b>x"] if fits else [])


def test_a_first_token_makes_room_for_the_next_prompt() -> None:
    world = World(endpoint("x"))
    world.arrive("a", tokens=2048)
    assert world.arrive("b", tokens=2000) == []
    assert world.first_token("a", 1.0) == ["b>x"]
    assert world.load("x") == (2, 2000)


def test_an_idle_endpoint_takes_any_request_however_large() -> None:
    world = World(endpoint("x", seqs=4, prefill=512))
    assert world.arrive("a", tokens=100_000, sequences=16) == ["a>x"]
    assert world.arrive("b") == []
    assert world.finish("a", 1.0) == ["b>x"]


def test_sequences_of_one_request_count_as_many() -> None:
    world = World(endpoint("x", seqs=4))
    assert world.arrive("a", sequences=3) == ["a>x"]
    assert world.arrive("b", sequences=2) == []
    assert world.finish("a", 1.0) == ["b>x"]


def test_a_request_without_sequences_counts_as_one() -> None:
    world = World(endpoint("x", seqs=1))
    assert world.arrive("a", sequences=0) == ["a>x"]
    assert world.arrive("b", sequences=0) == []


def test_requests_of_a_tenant_and_band_leave_the_queue_in_the_order_they_came() -> None:
    world = World(endpoint("x", seqs=1))
    world.arrive("a")
    for place in range(3):
        assert world.arrive(f"q{place}", 1.0 + place) == []
    assert world.finish("a", 5.0) == ["q0>x"]
    assert world.finish("q0", 6.0) == ["q1>x"]
    assert world.finish("q1", 7.0) == ["q2>x"]


def test_a_large_head_is_not_overtaken_by_small_ones_behind_it() -> None:
    world = World(endpoint("x"))
    world.arrive("a", sequences=7)
    assert world.arrive("large", sequences=2) == []
    assert world.arrive("small") == []
    assert world.finish("a", 1.0) == ["large>x", "small>x"]


def test_the_endpoint_with_the_least_prefill_work_is_chosen_by_time_and_not_by_tokens() -> None:
    world = World(endpoint("fast", speed=4000.0), endpoint("slow", speed=1000.0))
    assert world.arrive("a", tokens=1000) == ["a>fast"]  # 0.25 s against 1 s
    assert world.arrive("b", tokens=300) == ["b>slow"]  # 0.325 s and two sequences against 0.3 s and one
    assert world.arrive("c", tokens=500) == ["c>fast"]


def test_equal_prefill_goes_to_the_endpoint_with_fewer_sequences() -> None:
    world = World(endpoint("x"))
    world.arrive("a")
    world.first_token("a", 1.0)
    world.up(endpoint("y"))
    assert world.arrive("b", 2.0) == ["b>y"]


def test_ties_are_drawn_and_do_not_herd_to_one_endpoint() -> None:
    world = World(*(endpoint(name) for name in "abcd"))
    chosen: Counter[str] = Counter()
    for number in range(400):
        [decision] = world.happen(Arrived(request=request(f"r{number}", at=float(number))), float(number))
        assert isinstance(decision, Dispatch)
        chosen[decision.endpoint] += 1
        world.finish(f"r{number}", number + 0.5)
    assert all(chosen[name] > 60 for name in "abcd")


def test_a_change_of_settings_does_not_repeat_the_draws() -> None:
    def drawn(change: bool) -> list[str]:
        world = World(*(endpoint(name) for name in "abcdefgh"))
        answers = []
        for number in range(8):
            answers += world.arrive(f"r{number}", float(number))
            world.finish(f"r{number}", number + 0.5)
            if change:
                world.change(settings(max_queued=number), number + 0.6)
        return answers

    assert drawn(change=True) == drawn(change=False)


def test_requests_go_only_to_endpoints_of_their_model() -> None:
    pools = (Pool(name="main", model="llama"), Pool(name="other", model="qwen"))
    world = World(endpoint("x"), endpoint("y", pools=("other",)), settings=settings(pools=pools))
    assert world.arrive("a", model="qwen") == ["a>y"]
    assert world.arrive("b", model="llama") == ["b>x"]
    assert world.arrive("c", model="gpt") == ["c!no_endpoint"]


def test_all_pools_of_a_model_are_used() -> None:
    pools = (Pool(name="short", model="llama"), Pool(name="long", model="llama"))
    world = World(
        endpoint("x", seqs=1, pools=("short",)), endpoint("y", seqs=1, pools=("long",)), settings=settings(pools=pools)
    )
    both = world.arrive("a") + world.arrive("b")
    assert sorted(text[2:] for text in both) == ["x", "y"]


def test_an_endpoint_of_two_models_serves_the_earlier_request_first() -> None:
    pools = (Pool(name="main", model="llama"), Pool(name="other", model="qwen"))
    world = World(endpoint("x", seqs=1, pools=("main", "other")), settings=settings(pools=pools))
    world.arrive("a")
    world.arrive("q1", 1.0, model="qwen")
    world.arrive("l1", 2.0, model="llama")
    world.arrive("q2", 3.0, model="qwen")
    assert world.finish("a", 4.0) == ["q1>x"]
    assert world.finish("q1", 5.0) == ["l1>x"]
    assert world.finish("l1", 6.0) == ["q2>x"]


def test_a_decision_says_the_numbers_it_was_taken_on() -> None:
    world = World(endpoint("x", seqs=2))
    world.arrive("a", tokens=2048)
    world.arrive("b", 1.0, tokens=1900)
    world.arrive("c", 1.5, tokens=1900)
    [decision] = world.happen(Arrived(request=request("d", at=2.0)), 2.0) or [None]  # type: ignore[list-item]
    assert decision is None
    assert world.first_token("a", 3.0) == ["b>x"]
    assert world.finish("a", 3.5) == ["c>x"]
    world.first_token("b", 4.0)
    [view] = world.core.flows()
    assert (view.pool, view.tenant, view.band, view.queued, view.queued_bytes) == (
        "main",
        "default",
        "standard",
        1,
        1000,
    )
    assert view.oldest_s == 2.0
