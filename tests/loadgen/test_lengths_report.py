"""Figures of predictions against what came: by hand on small tables, and against counting every pair."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.lengths import accuracy, tau_a
from policies.length import Prediction


def guess(p50: float, p90: float) -> Prediction:
    return Prediction(p25=p50, p50=p50, p90=p90, p99=p90, mean=p50, held=p50)


def test_every_figure_of_a_small_table() -> None:
    pairs = [
        (guess(10, 20), 10),
        (guess(50, 100), 60),
        (guess(100, 200), 400),
        (guess(600, 900), 300),
        (guess(700, 900), 1000),
    ]
    report = accuracy(pairs, 256)
    assert report is not None
    assert report.as_json() == {
        "count": 5,
        "tau_a": 0.8,  # one of ten pairs is the wrong way round
        "buckets": {"accuracy": 0.8, "majority": 0.4},
        "pinball_tokens": {"p50": 91.0, "p90": 67.0},
        "p90_coverage": 0.6,
        "pools": {
            "boundary_tokens": 256,
            "accuracy": 0.8,
            "majority": 0.6,
            "short_as_short": 2,
            "short_as_long": 0,
            "long_as_short": 1,
            "long_as_long": 2,
        },
    }


def test_nothing_is_said_of_nothing() -> None:
    assert accuracy([], 256) is None


def test_one_answer_has_no_order() -> None:
    report = accuracy([(guess(10, 20), 10)], 256)
    assert report is not None
    assert (report.tau_a, report.pools.accuracy, report.pools.majority) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 1), (2, 2), (3, 3)], 1.0),
        ([(1, 3), (2, 2), (3, 1)], -1.0),
        ([(5, 1), (5, 2), (5, 3)], 0.0),
        ([(1, 7), (2, 7), (3, 7)], 0.0),
        ([(1, 1)], 0.0),
    ],
)
def test_order_is_1_when_kept_and_minus_1_when_reversed_and_ties_count_for_nothing(
    pairs: list[tuple[float, float]], expected: float
) -> None:
    assert tau_a(pairs) == expected


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=40))
def test_order_is_what_counting_every_pair_gives(pairs: list[tuple[float, float]]) -> None:
    def sign(value: float) -> int:
        return (value > 0) - (value < 0)

    balance = sum(sign(a[0] - b[0]) * sign(a[1] - b[1]) for a, b in combinations(pairs, 2))
    assert tau_a(pairs) == pytest.approx(balance / (len(pairs) * (len(pairs) - 1) / 2))
