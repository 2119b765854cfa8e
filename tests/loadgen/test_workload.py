"""Arrivals, lengths and prompts: exact rates, kept bounds, planned token counts, bytes that are shared or not."""

import math
import statistics
from itertools import pairwise
from random import Random

import pytest

from loadgen.engine_server.tokens import TOKEN_BYTES as ENGINE_TOKEN_BYTES
from loadgen.workload.arrivals import Arrivals, Constant, Gamma, Poisson, Ramp, Spike, Stage, Step, Weibull
from loadgen.workload.dialog import marker
from loadgen.workload.fields import duration, seconds
from loadgen.workload.lengths import Fixed, Length, Lognormal, Normal, Quantiles, Uniform, mean, tokens
from loadgen.workload.prompts import TOKEN_BYTES, Block, Prose

STAGES = (Stage(at="0s", rate=5), Stage(at="20s", rate=10))
PROCESSES = [
    Constant(rate=7.5),
    Poisson(rate=7.5),
    Gamma(rate=7.5, cv=1.5),
    Gamma(rate=7.5, cv=6),
    Weibull(rate=7.5, cv=2),
    Step(stages=STAGES),
    Step(stages=STAGES, cv=3),
    Ramp(stages=(Stage(at="0s", rate=0), Stage(at="40s", rate=15))),
    Spike(rate=5, peak=15, at="5s", lasts="10s"),
]


@pytest.mark.parametrize("process", PROCESSES, ids=str)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_process_offers_its_exact_rate_inside_the_time(process: Arrivals, seed: int) -> None:
    times = list(process.times(Random(seed), 40))
    assert len(times) == 300
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] < 40


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_no_request_is_a_legal_draw(process: Arrivals) -> None:
    assert list(process.times(Random(1), 0.01)) == []


@pytest.mark.parametrize(
    ("process", "cv"),
    [
        (Constant(rate=50), 0),
        (Poisson(rate=50), 1),
        (Gamma(rate=50, cv=2), 2),
        (Weibull(rate=50, cv=0.5), 0.5),
        (Weibull(rate=50, cv=1.5), 1.5),
    ],
    ids=str,
)
def test_gaps_vary_as_much_as_the_process_says(process: Arrivals, cv: float) -> None:
    gaps = [b - a for a, b in pairwise(process.times(Random(5), 400))]
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(cv, abs=0.08)


@pytest.mark.parametrize(
    ("length", "low", "high"),
    [
        (Fixed(value=12), 12, 12),
        (Uniform(min=3, max=9), 3, 9),
        (Lognormal(median=600, sigma=2, min=30, max=3999), 30, 3999),
        (Lognormal(median=2, sigma=3), 1, float("inf")),
        (Normal(mean=100, sd=80, min=20, max=150), 20, 150),
        (Quantiles(points=((0, 10), (0.5, 20), (1, 1000))), 10, 1000),
        (Fixed(value=0), 1, 1),
    ],
    ids=str,
)
def test_lengths_are_whole_tokens_inside_their_bounds(length: Length, low: float, high: float) -> None:
    stream = Random(1)
    drawn = [tokens(length, stream) for _ in range(2000)]
    assert min(drawn) >= low and max(drawn) <= high
    assert all(isinstance(one, int) for one in drawn)


def test_a_lognormal_has_its_median() -> None:
    stream = Random(1)
    drawn = [Lognormal(median=600, sigma=0.8).draw(stream) for _ in range(20000)]
    assert statistics.median(drawn) == pytest.approx(600, rel=0.03)


def test_a_table_of_quantiles_is_followed() -> None:
    stream = Random(1)
    table = Quantiles(points=((0, 10), (0.5, 100), (0.9, 400), (1, 4000)))
    drawn = sorted(table.draw(stream) for _ in range(20000))
    assert drawn[10000] == pytest.approx(100, rel=0.05)
    assert sum(value < 400 for value in drawn) == pytest.approx(18000, abs=150)
    assert mean(table) == pytest.approx(statistics.fmean(drawn), rel=0.05)


@pytest.mark.parametrize("points", [((0.1, 1), (1, 2)), ((0, 1), (0.9, 2)), ((0, 2), (1, 1)), ((0, 1), (0, 2), (1, 3))])
def test_a_table_that_is_no_distribution_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="quantiles"):
        Quantiles(points=points)


def test_at_another_rate_the_same_requests_come_closer_together() -> None:
    for process in (Poisson(rate=5), Gamma(rate=5, cv=1.5), Weibull(rate=5, cv=1.5)):
        slow = list(process.times(Random(3), 200))
        fast = list(process.scaled(2).times(Random(3), 200))
        ratios = [a / b for a, b in zip(slow[100:], fast[100:], strict=False)]
        assert max(ratios) == pytest.approx(min(ratios))  # one factor for all gaps
        assert statistics.fmean(ratios) == pytest.approx(2, rel=0.1)


def test_a_step_and_a_spike_come_when_they_are_due() -> None:
    step = list(Step(stages=STAGES).times(Random(1), 40))
    assert sum(t < 20 for t in step) == pytest.approx(100, abs=20)
    spike = Spike(rate=8, peak=45, at="60s", lasts="20s")
    times = list(spike.times(Random(1), 200))
    assert sum(60 <= t < 80 for t in times) == pytest.approx(900, abs=60)
    assert spike.mean_rate(200) == pytest.approx((180 * 8 + 20 * 45) / 200)
    assert len(times) == round(200 * spike.mean_rate(200))


def test_a_ramp_is_straight_and_stays_at_its_end() -> None:
    ramp = Ramp(stages=(Stage(at="0s", rate=0), Stage(at="100s", rate=20)))
    times = list(ramp.times(Random(1), 200))
    assert len(times) == 3000
    assert sum(t < 50 for t in times) == pytest.approx(250, abs=40)
    assert sum(t >= 100 for t in times) == pytest.approx(2000, abs=90)


def test_an_exponential_ramp_grows_by_equal_factors() -> None:
    ramp = Ramp(stages=(Stage(at="0s", rate=1), Stage(at="100s", rate=100)), curve="exponential")
    times = list(ramp.times(Random(1), 100))
    assert len(times) == round(99 / math.log(100) * 100) == round(100 * ramp.mean_rate(100))
    assert sum(t < 50 for t in times) / len(times) == pytest.approx(1 / 11, abs=0.03)
    cut = list(ramp.times(Random(1), 50))
    assert len(cut) == round(9 / math.log(100) * 100)
    assert max(cut) < 50
    with pytest.raises(ValueError, match="rates above 0"):
        Ramp(stages=(Stage(at="0s", rate=0), Stage(at="9s", rate=2)), curve="exponential")


def test_before_the_first_stage_nobody_comes() -> None:
    assert min(Step(stages=(Stage(at="150s", rate=40),)).times(Random(1), 470)) >= 150


def test_stages_that_go_back_are_refused() -> None:
    with pytest.raises(ValueError, match="later than the one before"):
        Step(stages=(Stage(at="5s", rate=1), Stage(at="2s", rate=2)))


@pytest.mark.parametrize("value", [0.5, 1 / 3, 60, 12.25, 600, 0])
def test_durations_survive_being_written(value: float) -> None:
    assert seconds(duration(value)) == pytest.approx(value, abs=1e-9)


def test_a_shorter_block_of_an_id_is_the_head_of_a_longer_one() -> None:
    prose = Prose("salt")
    for number in range(50):
        long, short = (Block(namespace="trace", id=number, tokens=tokens) for tokens in (512, 300))
        assert prose.text(long).startswith(prose.text(short))


@pytest.mark.parametrize("length", [1, 2, 4, 5, 17, 4000, 131072, 300000])
def test_a_block_has_exactly_its_tokens(length: int) -> None:
    text = Prose("salt").text(Block(namespace="a", id=1, tokens=length))
    assert len(text.encode("ascii")) == length * TOKEN_BYTES


def test_equal_blocks_have_equal_bytes_and_others_differ_from_the_first_engine_block_on() -> None:
    prose = Prose("salt")
    blocks = [Block(namespace=namespace, id=number, tokens=64) for namespace in ("a", "b") for number in range(50)]
    heads = {prose.text(block)[: 16 * TOKEN_BYTES] for block in blocks}
    assert len(heads) == len(blocks)
    assert Prose("salt").text(blocks[7]) == prose.text(blocks[7])


def test_another_run_shares_nothing_with_this_one() -> None:
    block = Block(namespace="prefix/sys", id=3, tokens=400)
    assert Prose("run 1").text(block)[:64] != Prose("run 2").text(block)[:64]


def test_a_marker_is_whole_tokens() -> None:
    assert TOKEN_BYTES == ENGINE_TOKEN_BYTES
    assert [len(marker(10**n)) % TOKEN_BYTES for n in range(6)] == [0] * 6
