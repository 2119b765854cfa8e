"""Which pool: by what is known of the prompt and thought of the answer; and who may use whose idle room."""

from dataclasses import replace

import pytest

from policies.length import Lengths
from policies.types import Band, InferenceRequest, Pool
from tests.policies.given import BANDS, World, endpoint, settings

SHORT = Pool(name="short", model="llama", max_total_tokens=4096, lanes="off")
LONG = Pool(name="long", model="llama", lanes="off")


class Always(Lengths):
    """Thinks that every answer is longer than anything asked about with this chance."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def over(self, request: InferenceRequest, tokens: float) -> float:
        return self.chance


def world(chance: float = 0.0, *, short: Pool = SHORT, long: Pool = LONG, context: int = 0, **more: int) -> World:
    """`x` serves short ones, `y` long ones."""
    made = World(
        endpoint("x", pools=("short",), context_tokens=context, **more),
        endpoint("y", pools=("long",), **more),
        settings=settings(pools=(long, short)),
    )
    made.core._assessing.lengths = Always(chance)
    return made


@pytest.mark.parametrize(
    ("chance", "context", "place"), [(0.5, 0, "x"), (0.51, 0, "y"), (0.2, 8192, "x"), (0.21, 8192, "y")]
)
def test_a_request_that_is_probably_too_long_goes_to_the_long_pool_the_sooner_the_worse_a_mistake_is(
    chance: float, context: int, place: str
) -> None:
    assert world(chance, context=context).arrive("a") == [f"a>{place}"]


@pytest.mark.parametrize(("tokens", "place"), [(4095, "x"), (4096, "y"), (9000, "y")])
def test_a_prompt_that_leaves_no_room_for_an_answer_is_long_whatever_is_predicted(tokens: int, place: str) -> None:
    assert world().arrive("a", tokens=tokens) == [f"a>{place}"]


@pytest.mark.parametrize(("max_output", "place"), [(7192, "x"), (7193, "y")])
def test_what_could_overrun_a_hard_context_is_long_whatever_is_predicted(max_output: int, place: str) -> None:
    assert world(context=8192).arrive("a", tokens=1000, max_output=max_output) == [f"a>{place}"]


def test_a_pool_without_endpoints_is_chosen_by_nobody() -> None:
    made = world()
    made.down("x", 1.0)
    assert made.arrive("a", 2.0) == ["a>y"]
    made.up(endpoint("x", pools=("short",)), 3.0)
    made.down("y", 3.0)
    assert made.arrive("b", 4.0, tokens=9000) == ["b>x"]  # nobody else is there


def test_who_waits_in_a_pool_that_loses_its_engines_goes_to_another_of_its_model() -> None:
    made = world(seqs=1)
    assert [made.arrive(name) for name in "ab"] == [["a>x"], []]
    assert made.arrive("c", tokens=9000) == ["c>y"]
    assert made.arrive("d", tokens=9000) == []
    made.down("x", 1.0)
    assert made.finish("c", 2.0) == ["b>y"], "it came before d, and is shorter"
    assert made.finish("b", 3.0) == ["d>y"]
    made.finish("a", 3.5)
    made.up(endpoint("x", pools=("short",), seqs=1), 4.0)
    assert made.arrive("e", 5.0) == ["e>x"]


def test_who_waits_for_nobody_goes_to_the_first_pool_of_its_model_that_has_an_engine_again() -> None:
    made = world(seqs=1)
    assert [made.arrive(name) for name in "ab"] == [["a>x"], []]
    made.down("y", 1.0)
    made.down("x", 1.0)
    assert made.up(endpoint("y", pools=("long",), seqs=1), 2.0) == ["b>y"]


def test_pools_with_one_bound_are_one_under_the_name_of_the_first() -> None:
    made = World(
        endpoint("x", pools=("a",), seqs=1),
        endpoint("y", pools=("b",), seqs=1),
        settings=settings(pools=(Pool(name="a", model="llama"), Pool(name="b", model="llama"))),
    )
    assert {made.why("p").pool, made.why("q").pool} == {"a"}


def test_an_endpoint_in_two_pools_serves_both_and_is_counted_once() -> None:
    made = World(endpoint("x", pools=("short", "long"), seqs=2), settings=settings(pools=(SHORT, LONG)))
    assert made.arrive("a") == ["a>x"]
    assert made.arrive("b", tokens=5000, sequences=2) == []
    assert made.arrive("c") == ["c>x"]
    assert made.load("x")[0] == 2
    assert made.finish("a", 1.0) == []
    assert made.finish("c", 2.0) == ["b>x"]


def test_of_two_pools_on_one_endpoint_the_more_urgent_and_then_the_earlier_is_served_first() -> None:
    made = World(endpoint("x", pools=("short", "long"), seqs=1), settings=settings(pools=(SHORT, LONG)))
    made.arrive("a")
    made.arrive("l", 1.0, tokens=5000)
    made.arrive("s", 2.0)
    made.arrive("u", 3.0, band="interactive", tokens=5000)
    assert made.finish("a", 4.0) == ["u>x"]
    assert made.finish("u", 5.0) == ["l>x"]
    assert made.finish("l", 6.0) == ["s>x"]


def test_who_waits_in_a_class_and_a_pool_that_are_both_gone_goes_on_as_one_of_the_least_urgent_class() -> None:
    made = world(seqs=1)
    made.arrive("a")
    made.arrive("b", band="interactive")
    made.change(settings(pools=(replace(SHORT, name="new", max_total_tokens=8192),), bands=BANDS[1:]), 1.0)
    assert made.up(endpoint("z", pools=("new",)), 2.0) == ["b>z"]


# ---- borrowing

BORROWER = Pool(name="short", model="llama", max_total_tokens=4096, lanes="off", borrow=("long",))


def test_a_short_one_borrows_an_idle_endpoint_of_the_long_pool() -> None:
    made = world(short=BORROWER, seqs=1)
    made.arrive("a")
    why = made.why("b")
    assert (why.pool, why.note) == ("short", "borrowed")
    assert made.load("y") == (1, 100)


@pytest.mark.parametrize(("step", "tokens", "lends"), [(2048, 2047, True), (2048, 2048, False), (512, 600, False)])
def test_an_endpoint_is_lent_while_less_than_one_step_of_prompt_is_outstanding(
    step: int, tokens: int, lends: bool
) -> None:
    made = world(short=BORROWER, step_tokens=step, prefill=10_000)
    made.core._assessing.lengths = Always(1.0)
    made.arrive("l", tokens=tokens)
    made.core._assessing.lengths = Always(0.0)
    made.arrive("a", sequences=8)
    assert made.arrive("b") == (["b>y"] if lends else [])


@pytest.mark.parametrize(("taken", "lends"), [(17, True), (18, False)])
def test_the_last_tenth_of_the_places_is_not_lent(taken: int, lends: bool) -> None:
    made = world(short=BORROWER, seqs=20)
    made.core._assessing.lengths = Always(1.0)
    made.arrive("l", sequences=taken)
    made.core._assessing.lengths = Always(0.0)
    made.first_token("l", 0.5)
    made.arrive("a", 1.0, sequences=20)
    assert made.arrive("b", 2.0) == (["b>y"] if lends else [])


def test_lending_stops_when_the_owner_queues_and_goes_on_when_nobody_of_its_own_waits_any_more() -> None:
    made = World(
        endpoint("x", pools=("short",), seqs=1),
        endpoint("y", pools=("long",), seqs=4),
        settings=settings(pools=(BORROWER, LONG)),
    )
    made.arrive("a")
    made.arrive("l1", tokens=5000)
    made.arrive("l2", tokens=5000, sequences=4)
    made.first_token("l1", 1.0)
    assert made.arrive("b", 2.0) == []  # there is room on y for it, not for l2
    assert made.cancel("l2", 3.0) == ["b>y"]


@pytest.mark.parametrize(("at", "borrows"), [(4.9, False), (5.1, True)])
def test_a_long_one_borrows_from_the_short_pool_after_half_of_its_time(at: float, borrows: bool) -> None:
    band = Band(name="standard", rank=2, queue_timeout_s=60.0, max_queued=9, slo_ttft_s=10.0)
    long = Pool(name="long", model="llama", lanes="off", borrow=("short",))
    made = World(
        endpoint("x", pools=("short",), seqs=2),
        endpoint("y", pools=("long",), seqs=1),
        settings=settings(pools=(SHORT, long), bands=(band,)),
    )
    made.arrive("l1", tokens=5000, max_output=1)
    assert made.arrive("l2", tokens=2048, max_output=4096) == ["l2>x"]  # it counts as short: its answer will be
    made.first_token("l2", 0.1)
    made.arrive("l3", 0.1, tokens=5000)  # due in 10 s and 0.7 s for its length
    assert made.tick(0.1 + at * 1.0738) == (["l3>x"] if borrows else [])


@pytest.mark.parametrize(("context", "fits"), [(5256, True), (5255, False), (0, True)])
def test_a_long_one_never_goes_where_the_context_is_too_small(context: int, fits: bool) -> None:
    long = Pool(name="long", model="llama", lanes="off", borrow=("short",))
    made = world(long=long, context=context)
    made.arrive("l1", tokens=5000, sequences=8)
    made.arrive("l2", tokens=5000, sequences=8)
    assert made.tick(31.0) == (["l2>x"] if fits else [])


def test_whoever_has_borrowed_once_may_be_sent_to_its_own_endpoints_after_a_bounce() -> None:
    made = world(short=BORROWER, seqs=1)
    made.arrive("a")
    made.arrive("b")
    made.finish("a", 1.0)
    assert made.bounce("b", 2.0) == ["b>x#2"]
