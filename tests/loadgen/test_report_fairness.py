"""Between tenants, by hand: Jain's index, water-filled shares, who waited, who got how much."""

import math
from array import array

import pytest

from loadgen.report.fairness import fair_shares, fairness, jain
from loadgen.report.parts import Fairness
from loadgen.report.record import Outcome, Sample, TokenCost
from tests.loadgen.reported import sample

WINDOW = (10.0, 30.0)  # two slots


def of(*samples: Sample, weights: dict[str, float] | None = None) -> Fairness:
    return fairness(samples, weights or {}, WINDOW, {})


@pytest.mark.parametrize(
    ("values", "index"),
    [([], None), ([5.0], None), ([0.0, 0.0], None), ([3.0, 3.0, 3.0], 1.0), ([1.0, 0.0], 0.5), ([1.0, 3.0], 0.8), ([1.0, 0, 0, 0], 0.25)],
)  # fmt: skip
def test_jains_index(values: list[float], index: float | None) -> None:
    assert jain(values) == (index if index is None else pytest.approx(index))


@pytest.mark.parametrize(
    ("demands", "weights", "capacity", "shares"),
    [
        ({"a": 100, "b": 100}, {"a": 1, "b": 1}, 100, {"a": 50, "b": 50}),
        ({"a": 100, "b": 100}, {"a": 3, "b": 1}, 100, {"a": 75, "b": 25}),
        ({"a": 10, "b": 100, "c": 100}, {"a": 1, "b": 1, "c": 1}, 100, {"a": 10, "b": 45, "c": 45}),
        ({"a": 10, "b": 20}, {"a": 1, "b": 1}, 100, {"a": 10, "b": 20}),
        ({}, {}, 100, {}),
    ],
)
def test_what_somebody_does_not_need_is_the_others(
    demands: dict[str, float], weights: dict[str, float], capacity: float, shares: dict[str, float]
) -> None:
    assert fair_shares(demands, weights, capacity) == pytest.approx(shares)


def served(tenant: str, number: int, first: float, tokens: int, prompt: int = 100, t: float = 0.0) -> Sample:
    """Waits from `t` on and gets everything at `first`."""
    reads = array("d", [first] * tokens)
    return sample(
        number,
        t=t,
        tenant=tenant,
        reads=reads,
        output_tokens=tokens,
        end_s=first,
        prompt_tokens=prompt,
    )


def test_service_is_prompt_and_output_and_shares_are_of_those_that_waited_all_the_time() -> None:
    """a and b wait through both slots; c waits in none."""
    made = of(
        *[served("a", n, 12.0, 50) for n in range(2)],
        served("a", 2, 31.0, 1),
        served("b", 3, 15.0, 50),
        served("b", 4, 31.0, 1),
        served("c", 5, 12.5, 900, t=12.0),
    )
    first, second = made.slots
    assert first.service_tokens == {"a": 300, "b": 150, "c": 1000}
    assert first.backlogged == ("a", "b")
    assert first.j_share == pytest.approx(450**2 / (2 * (300**2 + 150**2)))
    assert (second.service_tokens, second.j_share) == ({}, None), "nobody was served"
    assert made.j_share_mean == made.j_share_worst == first.j_share
    assert made.service_gap_tokens == 150


def test_weights_make_unequal_shares_fair() -> None:
    rows = (
        *[served("a", n, 12.0, 50) for n in range(2)],
        served("a", 2, 31.0, 1),
        served("b", 3, 15.0, 50),
        served("b", 4, 31.0, 1),
    )
    assert of(*rows, weights={"a": 2.0, "b": 1.0}).j_share_mean == pytest.approx(1.0)
    assert of(*rows, weights={"a": 2.0, "b": 1.0}).service_gap_tokens == 0
    shares = {one.tenant: one.entitled_share for one in of(*rows, weights={"a": 2.0}).tenants}
    assert shares == pytest.approx({"a": 2 / 3, "b": 1 / 3})


def test_cost_takes_cached_prompts_for_little_and_answers_for_double() -> None:
    """a: 1,000 prompt tokens, 900 of them cached, 45 out: 100 + 90 + 90; b: 180 prompt tokens, 50 out: 180 + 100."""
    a, b = served("a", 0, 12.0, 45, prompt=1000), served("b", 1, 12.0, 50, prompt=180)
    a.cached_tokens = 900
    made = of(a, served("a", 2, 31.0, 1), b, served("b", 3, 31.0, 1))
    assert made.j_cost_mean == pytest.approx(1.0)
    assert made.j_share_mean == pytest.approx((1045 + 230) ** 2 / (2 * (1045**2 + 230**2)))
    assert {one.tenant: one.cost_share for one in made.tenants} == pytest.approx({"a": 0.5, "b": 0.5})


@pytest.mark.parametrize(
    ("cost", "of_a"),
    [
        (TokenCost(), 0.5),
        (TokenCost(input=0.0), 180 / 280),  # cached tokens still cost, others do not
        (TokenCost(input=1.0, cached=1.0, output=0.0), 1000 / 1180),
        (TokenCost(input=0.0, cached=0.0, output=1.0), 45 / 95),
    ],
)
def test_tokens_cost_what_the_run_says(cost: TokenCost, of_a: float) -> None:
    a, b = served("a", 0, 12.0, 45, prompt=1000), served("b", 1, 12.0, 50, prompt=180)
    a.cached_tokens = 900
    made = fairness([a, b], {}, WINDOW, {}, cost)
    assert {one.tenant: one.cost_share for one in made.tenants} == pytest.approx({"a": of_a, "b": 1 - of_a})


def test_small_needs_that_are_met_are_fair_whatever_the_others_get() -> None:
    made = of(served("big", 0, 12.0, 900, t=11.0), served("small", 1, 12.0, 20, t=11.0))
    assert made.slots[0].j_need == pytest.approx(1.0)
    starved = of(served("big", 0, 12.0, 900, t=11.0), served("small", 1, 40.0, 20, t=11.0))
    assert starved.slots[0].j_need == pytest.approx(0.5)
    assert starved.j_need_worst == pytest.approx(0.5)


def test_an_answer_that_goes_over_a_border_is_shared_out() -> None:
    reads = array("d", [18.0, 19.0, 20.0, 21.0])
    made = of(sample(t=15.0, reads=reads, output_tokens=8, prompt_tokens=100, end_s=21.0))
    assert [slot.service_tokens for slot in made.slots] == [{"chat": 104}, {"chat": 4}]


def test_whole_answers_and_those_without_an_end_are_served_what_they_got() -> None:
    whole = sample(0, t=12.0, streamed=False, reads=array("d"), output_tokens=30, end_s=25.0)
    lost = sample(1, t=12.0, tenant="b", outcome=Outcome.UNFINISHED, end_s=0.0)
    made = of(whole, lost)
    assert [slot.service_tokens for slot in made.slots] == [{}, {"chat": 130}]
    assert made.slots[1].backlogged == ("b",) or made.slots[1].backlogged == ("chat", "b")


def test_slowdown_is_told_of_who_was_alone_at_first() -> None:
    alone = [sample(n, t=10.0 + n / 20, tenant="victim") for n in range(200)]
    shared = [sample(200 + n, t=20.0 + n / 20, tenant="victim", first_s=0.15) for n in range(200)]
    noise = [sample(400 + n, t=20.0 + n / 50, tenant="noise") for n in range(400)]
    (found,) = fairness([*alone, *shared, *noise], {}, (10.0, 30.0), {}).slowdowns
    assert (found.tenant, found.ratio) == ("victim", pytest.approx(1.5))
    ended = [sample(200 + n, t=20.0 + n / 20, tenant="victim", outcome=Outcome.TIMEOUT) for n in range(200)]
    (never,) = fairness([*alone, *ended, *noise], {}, (10.0, 30.0), {}).slowdowns
    assert never.ratio == math.inf
    assert fairness([*alone[:50], *shared, *noise], {}, (10.0, 30.0), {}).slowdowns == ()


def test_cached_and_ideal_shares_are_of_each_tenants_prompts() -> None:
    made = of(
        sample(0, cached_tokens=50, ideal_tokens=60),
        sample(1, cached_tokens=0, ideal_tokens=60),
        sample(2, tenant="b"),
    )
    chat = next(one for one in made.tenants if one.tenant == "chat")
    assert (chat.prompt_tokens, chat.cached_share, chat.ideal_share) == (200, 0.25, 0.6)
    assert next(one for one in made.tenants if one.tenant == "b").cached_share is None, "not said"


def test_the_ideal_is_counted_by_the_servers_tokenizer() -> None:
    """It takes 5 tokens where 4 were planned: also for what is shared, or more would have come from a cache than could."""
    made = of(*(sample(n, input_tokens=100, prompt_tokens=125, cached_tokens=64, ideal_tokens=60) for n in range(9)))
    assert made.tenants[0].ideal_share == pytest.approx(0.6) and (made.tenants[0].cached_share or 0) < 0.6


def test_the_gap_is_between_tenants_with_enough_requests() -> None:
    rows = [sample(0), sample(1, tenant="b")]
    assert fairness(rows, {}, WINDOW, {"chat": 0.98, "b": 0.9}).attainment_gap == pytest.approx(0.08)
    assert fairness(rows, {}, WINDOW, {"chat": 0.98}).attainment_gap is None
    assert fairness((), {}, WINDOW, {}) == Fairness()
