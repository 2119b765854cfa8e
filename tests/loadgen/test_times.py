"""Percentiles and pauses, by hand: nearest rank, nothing where too few lie beyond, buckets that are close enough."""

import math
from array import array
from itertools import pairwise
from random import Random

import pytest

from loadgen.report.figures import Figures, figures, judge
from loadgen.report.pauses import Pauses
from loadgen.report.record import Outcome, Sample
from loadgen.report.stats import percentile
from loadgen.report.times import EXACT, Gaps, Spread, bucket, mean_times, spread
from tests.loadgen.reported import STD, sample


def of(*samples: Sample) -> Figures:
    return figures([judge(one, STD) for one in samples], 0.0, 60.0)


# ---- percentiles


def test_a_spread_by_hand() -> None:
    made = spread(range(1000, 0, -1))
    assert (made.count, made.mean_ms, made.max_ms) == (1000, 500.5, 1000)
    assert (made.p50_ms, made.p90_ms, made.p95_ms, made.p99_ms) == (500, 900, 950, 990)
    assert made.p999_ms is None, "only one value lies beyond it"


@pytest.mark.parametrize(
    ("count", "told"),
    [(9, set()), (10, {"p50_ms"}), (50, {"p50_ms", "p90_ms"}), (100, {"p50_ms", "p90_ms", "p95_ms"}), (499, {"p50_ms", "p90_ms", "p95_ms"}),
     (500, {"p50_ms", "p90_ms", "p95_ms", "p99_ms"}), (5000, {"p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms"})],
)  # fmt: skip
def test_percentiles_are_told_from_five_values_beyond_them_on(count: int, told: set[str]) -> None:
    made, gaps = spread(range(count)), Gaps(range(count)).spread()
    for one in (made, gaps):
        assert {name for name in Spread.__slots__ if name.startswith("p") and getattr(one, name) is not None} == told


def test_what_never_ended_stands_at_the_end() -> None:
    made = spread([1.0] * 90, never=10)
    assert (made.count, made.p50_ms, made.p90_ms, made.p95_ms) == (100, 1.0, 1.0, math.inf)
    assert made.mean_ms == math.inf


def test_nothing_has_no_percentiles() -> None:
    assert spread(()) == Spread() == Gaps().spread()


def test_means_over_runs_leave_out_what_a_run_does_not_have() -> None:
    few, many = of(*[sample(n) for n in range(10)]), of(*[sample(n, first_s=0.3) for n in range(600)])
    made = mean_times([few.times["ttft"], many.times["ttft"]]).completed
    assert made.p50_ms == pytest.approx(200)
    assert made.p99_ms == pytest.approx(300), "the first has too few"


# ---- pauses


def test_pauses_are_counted_exactly_and_sums_are_as_good() -> None:
    random = Random(3)
    values = [round(random.lognormvariate(10, 1)) for _ in range(20_000)]
    whole, halves = Gaps(values), Gaps(values[:7000])
    halves.add(Gaps(values[7000:]))
    exact = [percentile(sorted(values), p) for p in (0.5, 0.9, 0.95, 0.99, 0.999)]
    for made in (whole.spread(), halves.spread()):
        found = [made.p50_ms, made.p90_ms, made.p95_ms, made.p99_ms, made.p999_ms]
        assert found == [one / 1000 for one in exact if one is not None]


def test_buckets_beyond_two_million_pauses_are_half_a_per_cent_off_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EXACT == 2_000_000
    assert all(bucket(value) == value for value in range(256))
    assert all(abs(bucket(value) - value) <= 0.005 * value for value in range(256, 100_000, 7))
    monkeypatch.setattr("loadgen.report.times.EXACT", 1000)
    monkeypatch.setattr("loadgen.report.times._COMPACTED", 500)
    random = Random(3)
    values = [round(random.lognormvariate(10, 1)) for _ in range(50_000)]
    made = Gaps()
    for start in range(0, len(values), 100):
        made.take(values[start : start + 100])
    assert len(made._counts) < 3000
    spread = made.spread()
    for p, found in ((0.5, spread.p50_ms), (0.99, spread.p99_ms), (0.999, spread.p999_ms)):
        assert found == pytest.approx((percentile(sorted(values), p) or 0) / 1000, rel=0.005)


def test_a_curve_of_pauses_has_few_points_and_both_ends() -> None:
    points = Gaps(range(1, 100_001)).curve(200)
    assert len(points) <= 201
    assert points[-1] == (100.0, 1.0)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(points))


def test_several_tokens_a_read_share_its_pause() -> None:
    four = sample(gaps_s=(0.2, 0.2), output_tokens=12, read_tokens=array("i", [4, 4, 4]), token_events=12)
    made = Pauses.of([four])
    assert made.reads.spread().mean_ms == pytest.approx(200)
    assert (made.tokens.spread().count, made.tokens.spread().mean_ms) == (8, pytest.approx(50))
    assert judge(four, STD).tpot_ms == pytest.approx(400 / 11)


def test_events_of_several_tokens_are_known_by_usage() -> None:
    """One event a read, four tokens each: only usage tells."""
    made = Pauses.of([sample(gaps_s=(0.2, 0.2), output_tokens=12)])
    assert made.tokens.spread().mean_ms == pytest.approx(50)
    assert Pauses.of([sample(gaps_s=(0.2, 0.2), output_tokens=None)]).tokens.spread().count == 0


@pytest.mark.parametrize("fields", [{"streamed": False}, {"outcome": Outcome.TRUNCATED}, {"gaps_s": ()}])
def test_who_has_no_pauses(fields: dict[str, object]) -> None:
    assert Pauses.of([sample(**fields)]).reads.spread().count == 0  # type: ignore[arg-type]


# ---- families


def test_every_metric_of_one_answer_by_hand() -> None:
    """Due at 12.0, sent at 12.1, first byte 12.2, thought from 12.3 on, said from 12.4 on, the last token at 12.7."""
    one = sample(
        t=12.0,
        sent_s=12.1,
        byte_s=12.2,
        content_s=12.4,
        reads=array("d", [12.3, 12.4, 12.7]),
        end_s=12.75,
        output_tokens=5,
    )
    times = of(*[one] * 10).times
    offered = {name: times[name].completed.p50_ms for name in ("ttfb", "ttft", "ttfo", "e2e", "tpot", "stall", "itl")}
    assert offered == pytest.approx(
        {"ttfb": 200, "ttft": 300, "ttfo": 400, "e2e": 700, "tpot": 100, "stall": 300, "itl": 100}
    )
    service = {name: family.p50_ms for name in ("ttfb", "ttft", "ttfo", "e2e") if (family := times[name].service)}
    assert service == pytest.approx({"ttfb": 100, "ttft": 200, "ttfo": 300, "e2e": 600})
    assert times["tpot"].service is None and times["itl"].adjusted is None


def test_whole_answers_have_an_end_and_no_first_token() -> None:
    times = of(*[sample(n, streamed=False) for n in range(10)]).times
    assert times["e2e"].completed.p50_ms == pytest.approx(140)
    assert [times[name].completed.count for name in ("ttft", "ttfo", "tpot", "itl", "stall")] == [0] * 5
    assert times["ttft"].adjusted == Spread()


def test_a_metric_that_no_good_answer_has_is_not_endless() -> None:
    """The simulator knows no bodies: failures must not make its first bytes late for ever."""
    made = of(*[sample(n, byte_s=0.0) for n in range(20)], sample(20, outcome=Outcome.TIMEOUT))
    assert made.times["ttfb"].adjusted is None
    assert made.times["ttft"].adjusted is not None and made.times["ttft"].adjusted.count == 21


def test_a_complete_answer_without_a_token_never_had_a_first_one() -> None:
    empty = sample(1, reads=array("d"), output_tokens=0)
    made = of(*[sample(n) for n in range(2, 11)], empty).times["ttft"]
    assert (made.completed.count, made.adjusted and made.adjusted.max_ms) == (9, math.inf)


# ---- complaints


def test_waiting_for_the_own_permit_is_in_the_offered_times_alone() -> None:
    """C105: 40/s meet a server for four at once that takes 190 ms; a client that waits for its turn is late, and says so."""
    free_s, made = [0.0] * 4, []
    for number in range(400):
        due_s = 10.0 + number / 40
        place = min(range(4), key=lambda at: free_s[at])
        sent_s = max(due_s, free_s[place])
        free_s[place] = sent_s + 0.19
        made.append(
            sample(
                number, t=due_s, sent_s=sent_s, reads=array("d", [sent_s + 0.19]), streamed=False, end_s=sent_s + 0.19
            )
        )
    times = of(*made).times["e2e"]
    assert times.service is not None
    assert times.service.mean_ms == pytest.approx(190)
    waits = [max(0.0, (number // 4) * 0.19 - number / 40) * 1000 for number in range(400)]
    assert times.completed.mean_ms == pytest.approx(190 + sum(waits) / 400, rel=0.05)
    assert times.completed.mean_ms is not None and times.completed.mean_ms > 600


def test_ninety_nine_failures_of_a_hundred_make_the_median_endless() -> None:
    made = of(sample(0), *[sample(n, outcome=Outcome.ERROR_CONNECT, status=0) for n in range(1, 100)])
    assert made.attainment == 0.01
    for name in ("ttft", "e2e", "tpot", "stall"):
        adjusted = made.times[name].adjusted
        assert adjusted is not None and adjusted.p50_ms == math.inf
    assert made.ttft_completed_p50_ms == pytest.approx(100), "and what was completed is still told"


def test_more_failures_never_make_adjusted_times_better() -> None:
    """C110: survivors alone look better the more fail."""
    slow = [sample(n, first_s=0.1 + n / 100) for n in range(100)]
    medians = []
    for failed in (0, 20, 40, 60):
        gone = [sample(n, outcome=Outcome.REJECTED_CAPACITY) for n in range(100 - failed, 100)]
        family = of(*slow[: 100 - failed], *gone).times["ttft"]
        assert family.adjusted is not None
        medians.append((family.adjusted.p50_ms or 0.0, family.completed.p50_ms or 0.0))
    assert [adjusted for adjusted, _ in medians] == sorted(adjusted for adjusted, _ in medians)
    assert medians[-1][0] == math.inf and medians[-1][1] < medians[0][1]
