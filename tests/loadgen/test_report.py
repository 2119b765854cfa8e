"""Figures and table: every request offered counts, and the sentence at the end is never kinder than the numbers."""

import json
import math
from array import array

import pytest
from rich.console import Console

from loadgen.report.lines import line
from loadgen.report.record import Outcome, Sample, Slo, TtftLimit
from loadgen.report.run import RunReport, report
from loadgen.report.stats import percentile
from loadgen.report.table import footnotes, groups, table, verdict
from loadgen.report.times import firm

STD = Slo(ttft=TtftLimit(base_ms=400, per_token_ms=0.25, free_tokens=2048), tpot_ms=100, stall_ms=400)
WINDOW = (10.0, 20.0)


def sample(
    number: int = 0,
    outcome: Outcome = Outcome.OK,
    *,
    t: float = 12.0,
    first_s: float = 0.1,
    gaps_s: tuple[float, ...] = (0.02, 0.02),
    priority: str = "interactive",
    input_tokens: int = 100,
    leaves: bool = False,
    measured: bool = True,
    output_tokens: int | None = None,
) -> Sample:
    reads = array("d", [t + first_s])
    for gap in gaps_s:
        reads.append(reads[-1] + gap)
    return Sample(
        id=number,
        tenant="chat",
        priority=priority,
        measured=measured,
        input_tokens=input_tokens,
        planned_output=len(reads),
        leaves=leaves,
        sched_s=t,
        sent_s=t,
        end_s=reads[-1],
        reads=reads,
        token_events=len(reads),
        outcome=outcome,
        output_tokens=output_tokens,
    )


# ---- one request


def test_latency_counts_from_the_intended_arrival_not_from_the_send() -> None:
    late = sample(first_s=0.5)
    late.sent_s = late.sched_s + 0.4
    assert late.ttft_ms == pytest.approx(500)
    assert late.lag_ms == pytest.approx(400)


@pytest.mark.parametrize(("input_tokens", "limit_ms"), [(1, 400), (2048, 400), (2049, 400.25), (12048, 2900)])
def test_the_first_token_limit_grows_with_the_planned_prompt(input_tokens: int, limit_ms: float) -> None:
    assert STD.ttft_limit_ms(input_tokens) == limit_ms


@pytest.mark.parametrize(
    ("made", "missed"),
    [
        (sample(first_s=0.399), ()),
        (sample(first_s=0.401), ("ttft",)),
        (sample(first_s=0.8, input_tokens=2048 + 1700), ()),
        (sample(gaps_s=(0.399, 0.01, 0.01, 0.01, 0.01)), ()),
        (sample(gaps_s=(0.401, 0.01, 0.01, 0.01, 0.01)), ("stall",)),
        (sample(gaps_s=(0.11, 0.11)), ("tpot",)),
        (sample(first_s=0.5, gaps_s=(0.5,)), ("ttft", "tpot", "stall")),
        (sample(gaps_s=()), ()),
    ],
)
def test_each_limit_is_missed_by_itself(made: Sample, missed: tuple[str, ...]) -> None:
    assert STD.missed(made) == missed


def test_time_per_token_uses_the_tokens_of_usage() -> None:
    four_at_a_time = sample(gaps_s=(0.2, 0.2), output_tokens=12)
    assert four_at_a_time.tpot_ms == pytest.approx(400 / 11)
    assert sample(gaps_s=(0.2, 0.2)).tpot_ms == pytest.approx(200)


def test_an_answer_without_tokens_has_no_first_token_and_misses_it() -> None:
    empty = sample()
    empty.reads = array("d")
    assert (empty.ttft_ms, empty.tpot_ms, empty.stall_ms) == (None, None, None)
    assert STD.missed(empty) == ("ttft",)


def test_a_line_has_every_time_and_no_good_for_a_failure() -> None:
    row = json.loads(line(sample(3, Outcome.TRUNCATED), STD))
    assert (row["id"], row["outcome"], row["good"], row["missed"]) == (3, "truncated", False, [])
    assert row["ttft_ms"] == pytest.approx(100)
    assert json.loads(line(sample(first_s=0.5), STD))["missed"] == ["ttft"]


# ---- many


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        ([], 0.5, None),
        ([7], 0.99, 7),
        ([1, 2, 3, 4], 0.5, 2),
        (list(range(1, 101)), 0.99, 99),
        ([1, math.inf], 0.99, math.inf),
    ],
)
def test_percentiles_are_nearest_rank(values: list[float], p: float, expected: float | None) -> None:
    assert percentile(values, p) == expected


@pytest.mark.parametrize(
    ("count", "p", "told"), [(499, 0.99, False), (500, 0.99, True), (10, 0.5, True), (9, 0.5, False)]
)
def test_a_percentile_is_firm_with_five_samples_above_it(count: int, p: float, told: bool) -> None:
    assert firm(count, p) is told


def of(run: list[Sample]) -> RunReport:
    return report(run, lambda _: STD, STD, WINDOW, (7, ""))


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.OK, Outcome.CANCELLED)])
def test_every_other_outcome_is_a_miss_and_is_counted_once(outcome: Outcome) -> None:
    got = of([sample(0), sample(1, outcome)]).totals
    assert got.ok + got.rejected + got.failed == got.offered == 2
    assert got.attainment == 0.5
    assert got.rejected == (outcome in (Outcome.REJECTED_CAPACITY, Outcome.REJECTED_QUOTA))


def test_tokens_after_the_window_are_not_throughput() -> None:
    late = sample(t=19.5, first_s=0.4, gaps_s=(0.2,) * 9)  # one of ten reads before 20
    assert of([late]).totals.output_tokens_per_s == pytest.approx(0.1)


def test_gaps_of_all_answers_are_pooled() -> None:
    run = [sample(n, gaps_s=(0.01,) * 99) for n in range(9)] + [sample(9, gaps_s=(0.3,) * 9 + (0.01,) * 90)]
    assert of(run).totals.times["itl"].completed.p99_ms == pytest.approx(10, abs=0.1)
    run.append(sample(10, gaps_s=(0.3,) * 9))
    assert of(run).totals.times["itl"].completed.p99_ms == pytest.approx(300, abs=0.1)


def test_each_priority_is_a_group_and_all_are_the_last() -> None:
    run = [sample(1, priority="batch"), sample(0, priority="interactive"), sample(2, priority="batch")]
    got = groups(of(run))
    assert {name: group.offered for name, group in got.items()} == {"batch": 2, "interactive": 1, "all": 3}
    assert [*got][-1] == "all"


# ---- the page


def made(good: int, bad: int, bad_outcome: Outcome = Outcome.OK) -> RunReport:
    run = [sample(n) for n in range(good)] + [sample(good + n, bad_outcome, first_s=2.0) for n in range(bad)]
    return of(run)


def shown(arms: dict[str, RunReport], width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(table(arms))
        return console.export_text()


def test_the_table_fits_a_terminal_of_eighty_columns() -> None:
    text = shown({"gateway": made(990, 10, Outcome.ERROR_STATUS), "round robin": made(500, 500)})
    assert "…" not in text
    assert max(len(row.rstrip()) for row in text.splitlines()) <= 80
    for words in ("interactive", "all", "gateway", "round robin", "99.0 %", "50.0 %", "failed"):
        assert words in text


def test_failures_get_a_column_only_when_there_are_some() -> None:
    assert "failed" not in shown({"gateway": made(10, 0)})


def test_a_percentile_of_few_is_marked_and_explained() -> None:
    few = {"gateway": made(20, 0)}
    assert "~100" in shown(few)
    assert any(note.startswith("~") for note in footnotes(STD, few))
    many = {"gateway": made(1000, 0)}
    assert "~" not in shown(many)
    assert not any(note.startswith("~") for note in footnotes(STD, many))


def test_the_sentence_says_by_how_much() -> None:
    said = verdict(made(95, 5), made(80, 20))
    assert "95.0 %" in said and "80.0 %" in said and "15.0 points more" in said


@pytest.mark.parametrize("theirs", [made(95, 5), made(99, 1)])
def test_the_sentence_does_not_claim_what_was_not_won(theirs: RunReport) -> None:
    said = verdict(made(95, 5), theirs)
    assert "not better" in said and "more" not in said.split("not better")[0]


def test_nothing_measured_is_said_and_not_divided_by() -> None:
    assert "Nothing was measured" in verdict(of([]), made(1, 0))
