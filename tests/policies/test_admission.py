"""May it wait at all: what is expected of a first token, who is refused, shed or dropped, and when to ask again."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import is_shed
from policies.decisions import Dispatch, Evict, Reject
from policies.events import Arrived, Finished, Outcome
from policies.state.drain import Drain
from policies.state.forecasts import PACE, Forecast
from policies.state.ledger import Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.types import Band, Pool
from tests.policies.given import World, endpoint, request, settings, told


def band(name: str = "standard", rank: int = 2, **facts: object) -> Band:
    plain: dict[str, object] = {"queue_timeout_s": 600.0, "max_queued": 5000, "slo_ttft_s": 1.0}
    return Band(name=name, rank=rank, **{**plain, **facts})  # type: ignore[arg-type]


def world(*bands: Band, speed: float = 1000.0, **more: object) -> World:
    """One endpoint with one place, that computes `speed` tokens a second."""
    return World(
        endpoint("x", seqs=1, prefill=100_000, speed=speed, step_tokens=100),
        settings=settings(bands=bands, ordering="by_length", **more),  # type: ignore[arg-type]
    )


# ---- expected first token


def test_a_first_token_is_expected_after_what_is_ahead_and_its_own_prefill() -> None:
    made = World(
        endpoint("x", speed=1000.0, prefill=1000, seqs=99, step_tokens=100),
        endpoint("y", speed=500.0, prefill=1000, seqs=99, step_tokens=100),
        settings=settings(bands=(band(), band("interactive", 1))),
    )
    assert made.why("a", tokens=300).ttft_s == pytest.approx(0.4 + 0.01)  # and a step
    assert made.why("b", tokens=100).ttft_s == pytest.approx(0.4 + 0.01)  # on y, or 0.5 s on x
    for number in range(4):
        made.arrive(f"c{number}", tokens=1000)  # the last ones wait
    assert made.core.totals().queued
    queue = made.core._books.models["llama"][0]
    ticket = made.core._assessing.ticket(request("e", tokens=100), [queue], 0.0)
    made.core._assessing.expect(ticket)
    ahead_s = queue.queued_tokens / 1500.0
    nearest_s = min((load.prefill_tokens + 200) / load.speed for load in queue.up)
    assert ticket.ttft_s == pytest.approx(ahead_s + nearest_s + 0.01)
    urgent = made.core._assessing.ticket(request("f", tokens=100, band="interactive"), [queue], 0.0)
    made.core._assessing.expect(urgent)
    assert urgent.ttft_s == pytest.approx(nearest_s + 0.01)  # what is less urgent is not ahead


def test_long_prompts_of_others_are_not_in_a_short_ones_way() -> None:
    made = World(
        endpoint("x", speed=1000.0, step_tokens=100),
        settings=settings(pools=(Pool(name="main", model="llama", long_prompt_tokens=3000),), bands=(band(),)),
    )
    made.arrive("l", tokens=10_000)
    assert made.why("s", tokens=100).ttft_s == pytest.approx(0.21)


@pytest.mark.parametrize(("seed", "spread"), [(1, 0.2), (2, 0.5), (3, 0.9)])
def test_the_margin_covers_nine_of_ten(seed: int, spread: float) -> None:
    random, forecast = Random(seed), Forecast(0.9)
    for _ in range(4000):
        expected_s = random.uniform(0.05, 2.0)
        forecast.learn(expected_s, expected_s * random.lognormvariate(0.0, spread))
    assert forecast.covered / forecast.seen == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("growth", [1.0, 1.002, 1.004])
def test_the_margin_of_a_first_token_covers_nine_of_ten_while_waits_grow_and_shrink(growth: float) -> None:
    random, last, led = Random(7), Forecast(0.9), Forecast(0.9, PACE)
    level = 1.0
    for number in range(6000):
        level *= growth if number // 300 % 2 == 0 else 1 / growth
        ratio = 0.6 * level * random.lognormvariate(0.0, 0.2)
        last.learn(1.0, ratio)
        led.learn(1.0, ratio)
    assert led.covered / led.seen == pytest.approx(0.9, abs=0.015)
    assert abs(led.covered / led.seen - 0.9) <= abs(last.covered / last.seen - 0.9) + 0.002


def test_a_margin_follows_a_change_within_its_samples() -> None:
    forecast = Forecast(0.9)
    for ratio in [1.0] * 600 + [3.0] * 600:
        forecast.learn(1.0, ratio)
    assert forecast.margin == 3.0


@pytest.mark.parametrize(("ratio", "margin"), [(0.01, 0.5), (100.0, 4.0), (1.3, 1.3)])
def test_a_margin_stays_within_its_bounds_and_is_not_trusted_before_fifty_samples(ratio: float, margin: float) -> None:
    forecast = Forecast(0.9)
    for seen in range(1, 100):
        assert forecast.margin == (1.5 if seen <= 50 else margin)
        forecast.learn(1.0, ratio)


def test_only_a_first_token_that_was_seen_teaches_the_margin_and_only_that_of_its_class() -> None:
    made = world(band("interactive", 1), band())
    for number in range(40):
        made.arrive(f"r{number}", float(number), streamed=number % 2 == 0)
        made.first_token(f"r{number}", number + 0.5)
        made.finish(f"r{number}", number + 0.6)
    shares = made.core._books.models["llama"][0].shares
    assert {name: share.forecasts[False].seen for name, share in shares.items()} == {"standard": 20, "interactive": 0}


# ---- on_late


@pytest.mark.parametrize(
    ("on_late", "ahead", "becomes"),
    [
        ("queue", 50_000, "queued"),
        ("reject", 2280, "queued"),  # expected after 2.49 s, of the 2.5 that are too late
        ("reject", 2300, "rejected"),
        ("downgrade", 450, "queued"),  # 1.5 times 0.66 s
        ("downgrade", 470, "downgraded"),
    ],
)
def test_what_becomes_of_a_request_that_would_be_late(on_late: str, ahead: int, becomes: str) -> None:
    made = world(band("interactive", 1, on_late=on_late), band("standard", 2))
    made.arrive("a", tokens=ahead)
    answer = made.arrive("b", tokens=100, band="interactive")
    assert answer == (["b!overloaded"] if becomes == "rejected" else [])
    flows = {view.band for view in made.core.flows()}
    assert flows == {"rejected": set(), "queued": {"interactive"}, "downgraded": {"standard"}}[becomes]


def test_whoever_finds_room_is_served_however_late_it_may_be() -> None:
    made = world(band("interactive", 1, on_late="reject"))
    assert made.arrive("a", tokens=90_000, band="interactive") == ["a>x"]


def test_what_makes_one_class_late_says_nothing_about_another() -> None:
    late, fast = band("standard", 2, on_late="reject"), band("interactive", 1, on_late="reject")
    made = world(late, fast)
    made.arrive("a", tokens=1500, band="interactive")
    for _ in range(100):
        made.core._books.models["llama"][0].shares["standard"].forecasts[False].learn(0.1, 1.0)
    assert made.arrive("b", tokens=100, band="interactive") == []  # 1.7 s expected, 1 s promised: less than 2.5 times
    assert made.arrive("c", tokens=100) == ["c!overloaded"]


def test_a_class_without_a_promise_is_never_late() -> None:
    made = world(band("standard", 2, slo_ttft_s=0.0, on_late="reject"))
    made.arrive("a", tokens=90_000)
    assert made.arrive("b", tokens=90_000) == []


def test_a_downgraded_one_has_the_promise_of_its_new_class_and_says_so() -> None:
    made = world(band("interactive", 1, on_late="downgrade"), band("standard", 2, slo_ttft_s=60.0))
    made.arrive("a", tokens=5000)
    made.arrive("b", 0.0, tokens=100, band="interactive")
    made.arrive("c", 1.0, tokens=100)
    assert told(decisions := made.happen(finished("a"), 2.0)) == ["b>x"]
    assert decisions[0].why.note == "downgraded"


def test_nobody_is_downgraded_into_a_full_class_nor_below_the_last() -> None:
    made = world(band("interactive", 1, on_late="downgrade"), band("standard", 2, max_queued=1))
    made.arrive("a", tokens=5000)
    made.arrive("q", tokens=10)
    assert made.arrive("b", tokens=100, band="interactive") == ["b!overloaded"]
    lone = world(band("standard", 2, on_late="downgrade"))
    lone.arrive("a", tokens=5000)
    assert lone.arrive("b", tokens=100) == []


def finished(name: str) -> Finished:
    return Finished(request_id=name, attempt=1, outcome=Outcome.COMPLETED)


# ---- shedding


def ticket_at(*, spent: float = 0.0, full: float = 0.0) -> Ticket:
    """Expected after a part of its ten minutes, in a pool that is so full."""
    queue = PoolQueue(Pool(name="main", model="llama"), 10.0)
    load = Load(endpoint("x", seqs=50))
    load.sequences = round(full * 50)
    queue.up = [load]
    ticket = Ticket(request("r"), queue, 1, band(sheddable=True))
    ticket.ttft_s = 600.0 * spent
    return ticket


def refused(ticket: Ticket, shed: str) -> float:
    draws = [number / 10_000 for number in range(10_000)]
    return sum(is_shed(ticket, settings(shed=shed), draw) for draw in draws) / len(draws)


@pytest.mark.parametrize(
    ("spent", "chance"), [(0.0, 0.0), (0.7, 0.0), (0.8, 1 / 9), (0.9, 4 / 9), (1.0, 1.0), (9.0, 1.0)]
)
def test_sheddable_ones_are_refused_the_more_of_their_patience_the_wait_will_take(spent: float, chance: float) -> None:
    assert refused(ticket_at(spent=spent, full=1.2), "auto") == pytest.approx(chance, abs=0.002)


@pytest.mark.parametrize(("full", "chance"), [(0.0, 0.0), (0.14, 0.0161), (0.2, 0.096), (0.34, 1.0)])
def test_llmds_curve_goes_by_how_full_the_pool_is(full: float, chance: float) -> None:
    assert refused(ticket_at(full=full), "llmd") == pytest.approx(chance, abs=0.002)


@pytest.mark.parametrize(
    ("shed", "sheddable", "sheds"), [("llmd", True, True), ("llmd", False, False), ("off", True, False)]
)
def test_only_sheddable_classes_are_shed_and_none_when_it_is_off(shed: str, sheddable: bool, sheds: bool) -> None:
    made = world(band(sheddable=sheddable), shed=shed)
    made.arrive("a")
    assert made.arrive("b") == (["b!overloaded"] if sheds else [])


def test_a_pool_without_an_endpoint_counts_as_full() -> None:
    ticket = ticket_at()
    ticket.pool.up = []
    assert refused(ticket, "llmd") == 1.0


def test_draws_are_the_cores_own_and_repeat_with_its_seed() -> None:
    def run(seed: int) -> list[str]:
        made = World(endpoint("x", seqs=50), settings=settings(bands=(band(sheddable=True),), seed=seed, shed="llmd"))
        made.arrive("wall", tokens=2048)
        return [answer for number in range(60) for answer in made.arrive(f"r{number}", tokens=1 + number)]

    assert run(1) == run(1)


# ---- CoDel


def impatient(**facts: object) -> Band:
    """A class that is not content to be late; nothing is less urgent, so none of it can be downgraded."""
    return band(on_late="downgrade", **facts)


def overloaded(*bands: Band, until: float, ordering: str = "by_length") -> World:
    """One place, more come than go: each waits longer than a quarter of its promise since about 0.5 s."""
    made = World(
        endpoint("x", seqs=1, prefill=100_000, speed=1000.0), settings=settings(bands=bands, ordering=ordering)
    )
    made.arrive("r0")
    at, number = 0.0, 0
    while at < until:
        at = round(at + 0.1, 3)
        made.arrive(f"a{at}", at, tokens=10)
        made.arrive(f"b{at}", at, tokens=10)
        flying = [name for name, ticket in made.core._books.tickets.items() if ticket.attempt is not None]
        number += 1
        made.finish(flying[0], at)
    return made


@pytest.mark.parametrize("ordering", ["by_length", "edf", "fcfs"])
def test_when_everybody_has_waited_too_long_for_a_second_those_who_will_be_late_are_dropped(ordering: str) -> None:
    calm, late = (overloaded(impatient(), until=until, ordering=ordering) for until in (1.2, 6.0))
    assert calm.core.totals().expired == 0
    assert late.core.totals().expired > 5
    assert late.core.totals().queued < 30  # and not 60


def test_the_reason_is_evicted_and_the_wait_is_what_the_queue_takes() -> None:
    made = world(impatient())
    made.arrive("a", tokens=10)
    for number in range(5):
        made.arrive(f"q{number}", tokens=3000)
    made.finish("a", 2.0)
    dropped = made.happen(finished("q0"), 3.5)
    assert told(dropped) == [f"q{number}!evicted" for number in range(1, 5)]
    waits = [decision.retry_after_s or 0.0 for decision in dropped if isinstance(decision, Evict)]
    assert waits == [16.0, 12.0, 8.0, 4.0]  # 3,010 tokens have left in four seconds


def test_thousands_can_be_dropped_at_once() -> None:
    made = world(impatient())
    made.core.check = lambda: None  # type: ignore[method-assign]
    made.arrive("a", tokens=10)
    for number in range(3000):
        made.arrive(f"q{number}", tokens=10)
    made.finish("a", 2.0)
    assert made.core.totals().queued == 2999
    assert len(made.finish("q0", 3.5)) == 2999


def test_classes_without_a_promise_wait_until_their_timeout() -> None:
    assert overloaded(impatient(slo_ttft_s=0.0), until=6.0).core.totals().expired == 0


def test_where_late_is_better_than_not_at_all_nobody_is_dropped() -> None:
    assert overloaded(band(on_late="queue"), until=6.0).core.totals().expired == 0


def test_an_overload_that_ended_is_forgotten() -> None:
    made = world(impatient())
    made.arrive("a")
    made.arrive("b")
    made.finish("a", 0.9)
    assert made.finish("b", 1.0) == []
    made.arrive("c", 500.0, tokens=10)  # placed at once: nobody waits too long any more
    made.arrive("d", 500.0, tokens=10)
    assert made.finish("c", 501.5) == ["d>x"]  # late, but the first to be


# ---- bounds, and when to ask again


@pytest.mark.parametrize(("ahead", "wait"), [(0, 1.0), (500, 1.0), (1000, 2.0), (12_000, 24.0), (900_000, 60.0)])
def test_a_refused_client_is_told_how_long_the_queue_takes_to_empty(ahead: int, wait: float) -> None:
    drain = Drain(10.0)
    for second in range(20):
        drain.add(500, float(second))
    assert drain.wait_s(ahead, 19.5) == wait


def test_where_nothing_has_left_lately_it_is_five_seconds() -> None:
    drain = Drain(10.0)
    assert drain.wait_s(1000, 0.0) == 5.0
    drain.add(500, 1.0)
    assert drain.wait_s(1000, 30.0) == 5.0


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 5000)), max_size=40), st.integers(0, 10**6))
def test_the_wait_is_always_between_one_second_and_a_minute(steps: list[tuple[float, int]], ahead: int) -> None:
    drain, now = Drain(10.0), 0.0
    for step, cost in steps:
        now += step
        drain.add(cost, now)
        assert 1.0 <= drain.wait_s(ahead, now) <= 60.0


@pytest.mark.parametrize("bound", ["max_queued", "max_queued_bytes", "band"])
def test_a_full_queue_refuses_and_says_when(bound: str) -> None:
    changes = {"max_queued": 2} if bound == "max_queued" else {"max_queued_bytes": 2500} if bound != "band" else {}
    made = world(band(max_queued=2 if bound == "band" else 99), **changes)
    made.arrive("a")
    answers = [made.arrive(f"q{number}", 0.1) for number in range(3)]
    assert answers == [[], [], ["q2!overloaded"]]
    [decision] = made.happen(Arrived(request=request("q3", at=0.1)), 0.1)
    assert isinstance(decision, Reject)
    assert decision.retry_after_s == 2.0  # 200 tokens wait, 100 have left in a second


def test_a_downgraded_request_goes_under_its_new_class() -> None:
    made = world(band("interactive", 1, on_late="downgrade"), band("standard", 2))
    made.arrive("a", tokens=500)
    assert made.arrive("b", tokens=100, band="interactive") == []
    done = Finished(request_id="a", attempt=1, outcome=Outcome.COMPLETED)
    [sent] = made.happen(done, 0.3)
    assert isinstance(sent, Dispatch)
    assert (sent.request_id, sent.why.band, sent.why.note) == ("b", "standard", "downgraded")
