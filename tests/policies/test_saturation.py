"""Is there room: bounds, what is not ours, KV cache, engines that queue, and sights that are too old."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.events import LoadObserved
from policies.saturation import holds, pool_saturation, saturation
from policies.state.ledger import Attempt, Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.types import Band, Pool, Prediction
from tests.policies.given import BANDS, World, endpoint, request, settings


def ticket_of(*, tokens: int = 100, answer: float = 0.0, sequences: int = 1) -> Ticket:
    queue = PoolQueue(Pool(name="main", model="llama"), 10.0)
    ticket = Ticket(request("r", tokens=tokens, sequences=sequences), queue, 1, BANDS[1])
    ticket.output = Prediction(p25=0.0, p50=0.0, p90=0.0, p99=0.0, mean=0.0, held=answer)
    return ticket


def seen(
    at: float, *, running: int = 0, waiting: int = 0, kv_usage: float | None = None, kv_tokens: int = 0
) -> LoadObserved:
    return LoadObserved(
        endpoint="x", observed_s=at, running=running, waiting=waiting, kv_usage=kv_usage, kv_tokens=kv_tokens
    )


# ---- what is not ours


def test_what_an_engine_runs_beyond_ours_takes_places() -> None:
    load = Load(endpoint("x", seqs=8))
    for at in range(30):
        load.observe(seen(float(at), running=6, waiting=1), float(at))
    assert load.foreign == pytest.approx(7.0, abs=0.01)
    assert holds(load, ticket_of())
    assert not holds(load, ticket_of(sequences=2))


def test_our_own_are_never_counted_twice_however_old_the_sight_is() -> None:
    load = Load(endpoint("x", seqs=8))
    attempts = [Attempt(load, 1, 10, 1, 0.0) for _ in range(5)]
    load.observe(seen(1.0, running=5), 1.0)
    for attempt in attempts:
        attempt.close()
    load.observe(seen(2.0, running=5), 2.0)  # seen while they were still there
    assert load.foreign == 0.0
    load.observe(seen(3.0, running=5), 3.0)
    assert load.foreign > 0.0


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=30), st.integers(0, 20))
def test_foreign_load_is_never_negative_and_fades(pages: list[tuple[int, int]], ours: int) -> None:
    load = Load(endpoint("x"))
    for _ in range(ours):
        Attempt(load, 1, 10, 1, 0.0)
    for at, (running, waiting) in enumerate(pages):
        load.observe(seen(float(at), running=running, waiting=waiting), float(at))
        assert 0.0 <= load.foreign <= 1000.0
    for at in range(100, 140):
        load.observe(seen(float(at)), float(at))
    assert load.foreign < 0.01


def test_an_endpoint_where_we_have_nothing_is_never_full_whatever_it_says() -> None:
    made = World(endpoint("x", seqs=2, kv_tokens=10_000))
    for at in range(1, 30):
        made.observe("x", float(at), running=500, waiting=500, kv_usage=1.0)
    assert made.arrive("a", 30.0) == ["a>x"]
    assert made.arrive("b", 30.0) == []


# ---- sights that are too old


def test_an_old_sight_makes_an_endpoint_neither_full_nor_empty() -> None:
    made = World(endpoint("x", seqs=4, kv_tokens=100_000))
    for at in range(1, 30):
        made.observe("x", float(at), running=100, kv_usage=1.0)
    made.arrive("a", 30.0)
    assert made.arrive("b", 30.5) == []
    assert made.tick(33.0) == []
    assert made.tick(34.1) == ["b>x"]  # four periods after the last
    assert [made.arrive(name, 34.2) for name in "cde"] == [["c>x"], ["d>x"], []]  # our own four are four


@pytest.mark.parametrize(("period", "until"), [(1.0, 4.0), (5.0, 20.0), (0.1, 2.0)])
def test_a_sight_is_old_after_four_periods(period: float, until: float) -> None:
    load, at = Load(endpoint("x")), 0.0
    for _ in range(10):
        at += period
        load.observe(seen(at, running=9), at)
    load.forget_stale_sight(at + until - 0.01)
    assert load.foreign > 0.0
    load.forget_stale_sight(at + until + 0.01)
    assert load.foreign == load.kv_extra == 0


def test_a_pause_of_an_hour_is_no_new_period() -> None:
    load = Load(endpoint("x"))
    for at in (1.0, 2.0, 3.0, 3600.0, 3601.0):
        load.observe(seen(at, running=9), at)
    load.forget_stale_sight(3605.1)
    assert load.foreign == 0.0


# ---- KV cache


@pytest.mark.parametrize(
    ("answer", "sequences", "fits"), [(450.0, 1, True), (451.0, 1, False), (225.0, 2, True), (226.0, 2, False)]
)
def test_all_of_the_kv_cache_is_given_out_for_prompts_and_what_answers_come_to_hold(
    answer: float, sequences: int, fits: bool
) -> None:
    load = Load(endpoint("x", kv_tokens=1000))
    Attempt(load, 1, 10, 1, 0.0).reserve(450)
    assert holds(load, ticket_of(tokens=100, answer=answer, sequences=sequences)) is fits


def test_a_fuller_kv_cache_than_ours_counts_until_it_is_seen_again() -> None:
    load = Load(endpoint("x", kv_tokens=1000))
    Attempt(load, 1, 10, 1, 0.0).reserve(100)
    load.observe(seen(1.0, kv_usage=0.8), 1.0)
    assert load.kv_extra == 700
    assert not holds(load, ticket_of(tokens=201))
    assert holds(load, ticket_of(tokens=200))
    load.observe(seen(2.0, kv_usage=0.05), 2.0)
    assert load.kv_extra == 0


def test_a_size_of_the_kv_cache_that_was_unknown_is_learned_from_the_engine() -> None:
    load = Load(endpoint("x"))
    Attempt(load, 1, 10, 1, 0.0).reserve(5000)
    assert holds(load, ticket_of(tokens=10**6))
    load.observe(seen(1.0, kv_usage=0.0, kv_tokens=10_000), 1.0)
    assert holds(load, ticket_of(tokens=5000))
    assert not holds(load, ticket_of(tokens=5001))


def test_what_was_reserved_is_raised_while_an_answer_outgrows_it_and_comes_back_with_its_end() -> None:
    made = World(endpoint("x", kv_tokens=100_000))
    made.arrive("a", tokens=500, max_output=9000)
    first = made.core._books.loads["x"].kv_tokens
    made.first_token("a", 1.0)
    held = []
    for _ in range(6):
        due = made.core.next_wakeup()
        if due is None:
            break
        made.tick(due)
        held.append(made.core._books.loads["x"].kv_tokens)
    assert held == sorted(held)
    assert first < held[-1] <= 500 + 9000
    assert len(held) <= 5
    made.finish("a", 500.0)
    assert made.core._books.loads["x"].kv_tokens == 0


# ---- engines that queue although we hold back


def test_three_sights_of_a_queue_under_the_bound_make_it_smaller_down_to_one_step() -> None:
    load = Load(endpoint("x", prefill=4096, step_tokens=2048))
    bounds = []
    for at in range(30):
        load.observe(seen(float(at), running=1, waiting=2), float(at))
        bounds.append(load.max_prefill_tokens)
    assert bounds[:9] == [4096, 4096, 3276, 3276, 3276, 2620, 2620, 2620, 2096]
    assert bounds[-1] == 2048


def test_a_queue_while_the_endpoint_holds_more_than_its_bound_is_no_sign() -> None:
    load = Load(endpoint("x", prefill=4096, step_tokens=2048))
    Attempt(load, 1, 9000, 1, 0.0)
    for at in range(30):
        load.observe(seen(float(at), running=1, waiting=2), float(at))
    assert load.max_prefill_tokens == 4096


def test_a_smaller_bound_grows_back_by_a_twentieth_in_ten_seconds() -> None:
    load = Load(endpoint("x", prefill=4096, step_tokens=2048))
    for at in range(3):
        load.observe(seen(float(at), waiting=1), float(at))
    bounds = []
    for at in range(3, 200):
        load.observe(seen(float(at)), float(at))
        bounds.append(load.max_prefill_tokens)
    assert [bounds.index(bound) + 3 for bound in sorted(set(bounds))[1:3]] == [12, 22]
    assert bounds[-1] == 4096


# ---- how full


def test_the_fullest_bound_says_how_full_an_endpoint_is() -> None:
    load = Load(endpoint("x", seqs=10, prefill=1000, kv_tokens=1000))
    assert saturation(load) == 0.0
    attempt = Attempt(load, 1, 500, 2, 0.0)
    assert saturation(load) == 0.5
    attempt.reserve(900)
    assert saturation(load) == 0.9
    attempt.make_long()  # one bound of short prompts more beside it
    attempt.reserve(0)
    assert saturation(load) == pytest.approx(500 / 1500)
    load.foreign = 7.0
    assert saturation(load) == 0.9


def test_a_pool_is_as_full_as_its_endpoints_by_what_they_can_hold() -> None:
    small, large = Load(endpoint("x", seqs=10)), Load(endpoint("y", seqs=30))
    small.sequences = 10
    assert pool_saturation([small, large]) == 0.25
    assert pool_saturation([]) == 1.0


# ---- nobody waits in vain


def test_room_for_prompts_that_comes_back_after_an_estimate_is_used() -> None:
    band = (Band(name="standard", rank=2, queue_timeout_s=60.0, max_queued=9),)
    made = World(endpoint("x", speed=1000.0), settings=settings(bands=band))
    made.arrive("a", tokens=2048, streamed=False)
    assert made.arrive("b", tokens=2000) == []
    due = made.core.next_wakeup()
    assert due == 2.56  # 1.25 times its prefill
    assert made.tick(due) == ["b>x"]
    assert made.core.next_wakeup() == 2.56 + 30.0  # much later where a first token should have been seen


def test_a_pool_is_told_as_full_as_it_is_also_while_somebody_waits_in_one_of_its_name_that_is_gone() -> None:
    made = World(endpoint("x", seqs=1), settings=settings())
    made.arrive("a")
    made.arrive("b")
    assert made.core.saturations() == {"main": 1.0}
    made.down("x", 1.0)
    made.change(settings(pools=(Pool(name="main", model="other", lanes="off"),)), 1.0)
    made.up(endpoint("y", seqs=4), 1.0)
    assert made.core.totals().queued == 1
    assert made.core.saturations() == {"main": 0.0}
