"""Stand-ins for the length predictor: what each says, and that only the oracle is right."""

import pytest

from loadgen.schedule import Planned, Schedule
from loadgen.sim.foresight import Foresight, foresight
from policies.length import Prediction
from policies.types import InferenceRequest
from tests.loadgen.test_sim import planned, schedule

LENGTHS = [10, 500, 40, 3000, 200]


def plan() -> Schedule:
    return schedule(*(planned(number, 1.0, output_tokens=length) for number, length in enumerate(LENGTHS)))


def request(number: int, cap: int = 8192) -> InferenceRequest:
    return InferenceRequest(
        id=f"r{number}",
        tenant="t",
        model="m",
        band="standard",
        route="chat",
        streamed=True,
        arrived_s=0.0,
        deadline_s=10.0,
        prompt_tokens=100,
        max_output_tokens=cap,
        sequences=1,
        body_bytes=400,
    )


def said(kind: str) -> list[float]:
    made = foresight(kind, plan(), 7)
    return [made.predict(request(number)).p50 for number in range(len(LENGTHS))]


def test_the_oracle_is_right() -> None:
    assert said("oracle") == LENGTHS


def test_the_shuffled_one_has_the_same_lengths_in_another_order() -> None:
    assert sorted(said("shuffled")) == sorted(LENGTHS)
    assert said("shuffled") != LENGTHS
    assert said("shuffled") == said("shuffled")


def test_the_adversary_turns_the_ranks_round() -> None:
    assert said("adversarial") == [3000, 40, 500, 10, 200]


def test_a_cap_is_a_bound_and_every_quantile_is_the_same() -> None:
    made = foresight("oracle", plan(), 7)
    assert made.predict(request(3, cap=100)) == Prediction(p25=100, p50=100, p90=100, p99=100, mean=100, held=100)
    assert (made.over(request(3), 2999), made.over(request(3), 3000)) == (1.0, 0.0)


@pytest.mark.parametrize(("generated", "then"), [(100, 500), (500, 625), (600, 750)])
def test_an_answer_that_outlives_what_was_said_goes_on_a_little(generated: int, then: float) -> None:
    assert foresight("oracle", plan(), 7).given(request(1), generated).p50 == then


def test_it_learns_bytes_per_token_and_no_lengths() -> None:
    made: Foresight = foresight("oracle", plan(), 7)
    made.learn(request(0), 9999, True)
    assert made.predict(request(0)).p50 == LENGTHS[0]
    assert isinstance(plan().requests[0], Planned)
