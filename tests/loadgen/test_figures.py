"""Figures of a run: what counts, what is good, what is stationary."""

import math
from array import array
from collections.abc import Sequence

import pytest

from loadgen.report.arms import engines, footnotes, table
from loadgen.report.figures import counts, curve, figures, judge, mean
from loadgen.report.record import Outcome, Sample, Slo, TtftLimit
from loadgen.report.run import RunReport, balance, difference, interval, report

SLO = Slo(ttft=TtftLimit(base_ms=400, per_token_ms=0.25, free_tokens=2048), tpot_ms=100, stall_ms=400)


def sample(number: int = 0, sched_s: float = 10.0, reads: Sequence[float] = (10.1, 10.2), **fields: object) -> Sample:
    values = {
        "id": number,
        "tenant": "a",
        "priority": "standard",
        "measured": True,
        "input_tokens": 100,
        "planned_output": len(reads),
        "leaves": False,
        "sched_s": sched_s,
        "end_s": max(reads, default=sched_s),
        "reads": array("d", reads),
        "outcome": Outcome.OK,
        "output_tokens": len(reads),
        "cls": "all",
    }
    return Sample(**(values | fields))  # type: ignore[arg-type]


def of(*samples: Sample, slo: Slo = SLO, window_s: tuple[float, float] = (0.0, 100.0)) -> RunReport:
    return report(samples, lambda one: slo, slo, window_s, (7, "x"))


@pytest.mark.parametrize(
    ("one", "missed"),
    [
        (sample(), ()),
        (sample(reads=[10.41]), ("ttft",)),
        (sample(reads=[10.89], input_tokens=4048), ()),
        (sample(reads=[10.1, 10.6]), ("tpot", "stall")),
        (sample(reads=[10.1, 10.45, 10.5, 10.5, 10.5, 10.5]), ()),
        (sample(reads=[90.0], streamed=False), ()),
        (sample(reads=[]), ("ttft",)),
    ],
)
def test_limits_of_a_good_answer(one: Sample, missed: tuple[str, ...]) -> None:
    assert judge(one, SLO).missed == missed
    assert SLO.missed(one) == missed


def test_attainment_is_told_of_each_limit_by_itself_and_of_all_offered() -> None:
    late, slow, fine = sample(reads=[10.5, 10.6]), sample(1, reads=[10.1, 10.6]), sample(2)
    refused = sample(3, outcome=Outcome.REJECTED_QUOTA, reads=[])
    totals = of(late, slow, fine, refused).totals
    assert totals.attainment == 0.25
    assert totals.attainment_by_limit == {"ttft": 0.5, "tpot": 0.5, "stall": 0.5, "e2e": 0.75}
    assert mean([totals, of(fine).totals]).attainment_by_limit["ttft"] == 0.75
    assert of().totals.attainment_by_limit["ttft"] is None


@pytest.mark.parametrize("streamed", [True, False])
def test_the_whole_answer_can_have_a_limit(streamed: bool) -> None:
    slo = Slo(ttft=TtftLimit(base_ms=400), tpot_ms=1e6, stall_ms=1e6, e2e_ms=5000)
    assert judge(sample(reads=[10.1, 15.0], streamed=streamed), slo).missed == ()
    assert judge(sample(reads=[10.1, 15.1], streamed=streamed), slo).missed == ("e2e",)


def test_whoever_got_no_answer_waits_for_ever() -> None:
    made = of(*[sample(number) for number in range(3)], sample(3, outcome=Outcome.REJECTED_CAPACITY, reads=[]))
    totals = made.totals
    assert (totals.offered, totals.ok, totals.rejected, totals.good) == (4, 3, 1, 3)
    assert totals.attainment == 0.75
    assert totals.ttft_p99_ms == math.inf
    assert totals.ttft_completed_p99_ms == pytest.approx(100)
    assert totals.as_json()["ttft_p99_ms"] == "inf"
    assert made.ends == {("rejected_capacity", ""): 1}


def test_quota_rejects_are_left_out_of_the_second_ratio_alone() -> None:
    totals = of(sample(), sample(1, outcome=Outcome.REJECTED_QUOTA, reads=[])).totals
    assert (totals.attainment, totals.attainment_admitted) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("one", "counted"),
    [
        (sample(), True),
        (sample(measured=False), False),
        (sample(leaves=True, outcome=Outcome.CANCELLED), False),
        (sample(leaves=True), False),
        (sample(leaves=True, outcome=Outcome.REJECTED_CAPACITY), True),
    ],
)
def test_who_is_offered(one: Sample, counted: bool) -> None:
    assert counts(one) is counted


def test_throughput_takes_tokens_of_the_window_from_everybody() -> None:
    before = sample(sched_s=0.0, reads=[9.0, 11.0], measured=False)
    made = of(before, sample(reads=[10.5, 25.0]), window_s=(10.0, 20.0))
    assert made.totals.output_tokens_per_s == pytest.approx(0.2)


def test_the_curve_scales_all_limits() -> None:
    judged = [judge(sample(reads=[10.0 + ms / 1000]), SLO) for ms in (100, 290, 490, 900)]
    assert curve(judged) == {"0.5": 0.25, "0.75": 0.5, "1": 0.5, "1.25": 0.75, "1.5": 0.75, "2": 0.75}


def test_the_mean_of_a_time_that_one_run_does_not_have_is_the_others() -> None:
    without = figures([judge(sample(reads=[10.1]), SLO)], 1, 10)
    having = figures([judge(sample(reads=[10.1, 10.2]), SLO)], 2, 10)
    assert without.tpot_p50_ms is None
    assert mean([without, having]).tpot_p50_ms == having.tpot_p50_ms
    assert mean([without, having]).offered == 1


def waiting(numbers: Sequence[int]) -> list[Sample]:
    """So many that wait for their first token in each second from 0 on."""
    made: list[Sample] = []
    for second, number in enumerate(numbers):
        made += [sample(sched_s=float(second), reads=[second + 0.999]) for _ in range(number)]
    return made


@pytest.mark.parametrize(
    ("numbers", "stationary"),
    [
        ([20] * 60, True),
        (range(60), False),  # one more each second
        (range(60, 0, -1), True),  # it recovers
        ([20 + second // 20 for second in range(60)], True),  # less than five more
        ([100 + 30 * (second % 20 < 10) for second in range(60)], True),  # bursts
        (range(20), True),  # too short to tell
    ],
)
def test_a_run_is_stationary_unless_requests_pile_up(numbers: Sequence[int], stationary: bool) -> None:
    assert balance(waiting(numbers), 0.0, float(len(numbers))).stationary is stationary


def test_a_window_of_a_few_seconds_has_its_mean_of_requests_in_flight_too() -> None:
    found = balance(waiting([3] * 6), 0.0, 6.0)
    assert (found.mean, found.waiting) == (3.0, 3.0)


def test_long_answers_that_begin_at_once_are_no_overload() -> None:
    more_and_more = [sample(sched_s=second / 2, reads=[second / 2 + 0.1, 500.0]) for second in range(120)]
    found = balance(more_and_more, 0.0, 60.0)
    assert (found.stationary, found.mean > 50) == (True, True)


def test_targets_bind_cells_that_can_be_judged() -> None:
    good = [sample(number) for number in range(300)]
    late = [sample(number, reads=[99.0], tenant="b") for number in range(10)]
    assert of(*good, *late).met, "ten requests say nothing"
    many = [sample(number, reads=[99.0], tenant="b") for number in range(100)]
    assert not of(*good * 9, *many).met
    assert of(*good * 9, *many).totals.attainment == pytest.approx(2700 / 2800)
    assert not of(*late).valid


def test_intervals_come_from_seeds_or_from_blocks() -> None:
    half = of(*[sample(number, sched_s=number % 100, reads=[number % 100 + 0.1 + number % 2]) for number in range(400)])
    low, high = interval([half]) or (0, 0)
    assert 0.4 < low < 0.5 < high < 0.6 or low == high == 0.5
    assert interval([half] * 5) == (0.5, 0.5)
    assert interval([of(sample())]) is None


def spread_over_time(late: int) -> RunReport:
    """400 requests, every `late`-th of them late."""
    reads = [[number / 4 + (9.0 if number % late == 0 else 0.1)] for number in range(400)]
    return of(*[sample(number, sched_s=number / 4, reads=reads[number]) for number in range(400)])


def test_arms_are_compared_in_pairs() -> None:
    better, worse = spread_over_time(20), spread_over_time(4)
    low, high = difference([better], [worse]) or (0, 0)
    assert low - 1e-9 <= 0.2 <= high + 1e-9
    assert high - low < 0.05, "the same blocks are drawn for both"
    assert difference([better] * 5, [worse] * 5) == pytest.approx((0.2, 0.2))
    assert difference([better], [better]) == (0, 0)
    notes = list(footnotes(SLO, {"a": [better], "b": [worse], "c": [better]}))
    assert any(note.startswith("a against b: +20.0 points") and "certain" not in note for note in notes)
    assert any(note.startswith("a against c: +0.0 points") and "certain" in note for note in notes)


def test_the_tables_print_every_arm_and_say_what_went_wrong() -> None:
    arms = {"core": [of(sample(), sample(1, tenant="b"))], "random": [of(sample(outcome=Outcome.TIMEOUT, reads=[]))]}
    assert table(arms).row_count == (1 + 2) + (1 + 2) + (1 + 1), "nobody in the other arm is tenant b"
    assert engines(arms).row_count == 2
    assert "random: 1 x timeout." in list(footnotes(SLO, arms))


def test_many_cells_are_shown_by_class() -> None:
    arms = {"core": [of(*[sample(number, tenant=f"t{number % 40}") for number in range(4000)])]}
    assert table(arms).row_count == 2 + 2
    assert any("40 cells" in note and "all t0 standard" in note for note in footnotes(SLO, arms))
