"""V1 to V10 on samples that are made up: each rule breaks for what it is there for, and for nothing else."""

from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from loadgen.bench.validity import Counted, Evidence, Prompts, judged, lag_limit_ms
from loadgen.report.parts import State
from loadgen.report.record import Outcome, Sample
from loadgen.schedule import sample_of
from loadgen.workload.planned import Planned


def sample(number: int, **fields: Any) -> Sample:
    """One of ten requests a second, sent in time, answered as planned."""
    due_s = number / 10
    usual = {
        "id": number,
        "tenant": "chat",
        "priority": "standard",
        "measured": True,
        "input_tokens": 100,
        "planned_output": 20,
        "leaves": False,
        "sched_s": due_s,
        "sent_s": due_s + 0.001,
        "head_s": due_s + 0.1,
        "end_s": due_s + 0.4,
        "reads": array("d", [due_s + 0.1, due_s + 0.3]),
        "outcome": Outcome.OK,
        "prompt_tokens": 100,
        "output_tokens": 20,
        "cached_tokens": 0,
    }
    return Sample(**(usual | fields))


def evidence(change: Callable[[int], dict[str, Any]] = lambda number: {}, **fields: Any) -> Evidence:
    """200 requests over 20 s."""
    samples = [sample(number, **change(number)) for number in range(200)]
    return Evidence(**({"samples": samples, "window_s": (0.0, 20.0), "least_ttft_ms": 400.0} | fields))


def broken(seen: Evidence) -> set[str]:
    return {rule.id for rule in judged(seen, ()).rules if rule.state is State.BREACH}


def late(every: int, ms: float) -> Callable[[int], dict[str, Any]]:
    return lambda number: {"sent_s": number / 10 + ms / 1e3} if number % every == 0 else {}


def unsent(numbers: range) -> Callable[[int], dict[str, Any]]:
    gone = {"sent_s": 0.0, "outcome": Outcome.UNFINISHED, "reads": array("d"), "cached_tokens": None}
    return lambda number: gone if number in numbers else {}


REAL = {"input_tokens": 100, "prompt_tokens": 150, "ideal_tokens": 25}


def silent(number: int) -> dict[str, Any]:
    """Answers that do not say what came from a cache; half of each prompt may have."""
    return {"cached_tokens": None, "ideal_tokens": 50}


@pytest.mark.parametrize(
    ("seen", "rules"),
    [
        (evidence(), set()),
        (evidence(late(1, 9.9)), set()),
        (evidence(late(1, 10.1)), {"V1"}),
        (evidence(late(200, 500)), set()),  # one in 200
        (evidence(late(40, 500)), {"V1"}),  # one in 40
        (evidence(late(1, 0.8), least_ttft_ms=10.0), set()),  # less than a timer's granularity
        (evidence(late(1, 5.1), least_ttft_ms=100.0), {"V1"}),  # 5 % of the limit
        (evidence(unsent(range(2))), set()),
        (evidence(unsent(range(3))), {"V2"}),  # 98.5 %
        (evidence(late(1, 0), closed=True), set()),
        (evidence(unsent(range(100)), closed=True), set()),  # a closed loop has no such promise
        (evidence(unsent(range(100)), closed=True, closed_tenants=frozenset({"elsewhere"})), {"V2"}),  # the others have
        (evidence(loop_lag_ms=10.0), set()),
        (evidence(loop_lag_ms=10.1), {"V3"}),
        (evidence(cpu_share=0.85), set()),
        (evidence(cpu_share=0.86), {"V4"}),
        (evidence(local_failures={"EMFILE": 1}), {"V5"}),
        (evidence(lambda number: {"cached_tokens": 1}), set()),  # 1 % of 100
        (evidence(lambda number: {"cached_tokens": 2}), {"V6"}),
        (evidence(lambda number: {"cached_tokens": 50, "ideal_tokens": 50}), set()),
        (evidence(lambda number: {"cached_tokens": 17}, template_tokens=16), set()),
        (evidence(lambda number: {"cached_tokens": None}), set()),
        # a tokenizer that takes 1.2 tokens for a planned one, and 30 of a template
        (evidence(lambda number: REAL | {"cached_tokens": 61}, template_tokens=30), set()),
        (evidence(lambda number: REAL | {"cached_tokens": 62}, template_tokens=30), {"V6"}),
        (evidence(silent, engines=Prompts(prompt_tokens=20_000, cached_tokens=10_200)), set()),
        (evidence(silent, engines=Prompts(prompt_tokens=20_000, cached_tokens=10_201)), {"V6"}),
        (evidence(silent, engines=Prompts(prompt_tokens=21_000, cached_tokens=20_000)), set()),  # others asked too
        (evidence(lambda number: {"output_tokens": 21 if number < 20 else 20}, controlled=True), set()),
        (evidence(lambda number: {"output_tokens": 21 if number < 21 else 20}, controlled=True), {"V7"}),
        (evidence(lambda number: {"output_tokens": 99}), set()),  # nothing was to set it
        (evidence(largest_cell=99), {"V8"}),
        (evidence(emit_lag_ms=5.0), set()),
        (evidence(emit_lag_ms=10.0), {"V9"}),
        (evidence(server=Counted(requests=200, prompt_tokens=20_000, output_tokens=4_000)), set()),
        (evidence(server=Counted(requests=201, prompt_tokens=20_000, output_tokens=4_000)), {"V10"}),
        (evidence(server=Counted(requests=200, prompt_tokens=20_000, output_tokens=3_999)), {"V10"}),
    ],
)
def test_a_rule_breaks_for_its_own_cause(seen: Evidence, rules: set[str]) -> None:
    assert broken(seen) == rules


@pytest.mark.parametrize(
    ("output_tokens", "max_tokens", "got", "rules"),
    [
        (3000, 2048, 2048, set()),
        (3000, 2048, 2027, {"V7"}),
        (3000, 2048, 3000, {"V7"}),  # the server does not keep to the cap
        (3000, None, 2048, {"V7"}),
        (3000, 4096, 3000, set()),
        (3000, 4096, 4096, {"V7"}),
        (3000, 3000, 3000, set()),
    ],
)
def test_an_answer_that_its_cap_ended_is_as_long_as_was_asked(
    output_tokens: int, max_tokens: int | None, got: int, rules: set[str]
) -> None:
    asked = Planned(
        id=0,
        t=0.0,
        tenant="chat",
        priority="standard",
        cls="all",
        input_tokens=100,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        measured=True,
        blocks=(),
    )
    planned = sample_of(asked, 0.0, True).planned_output
    assert broken(evidence(lambda _: {"planned_output": planned, "output_tokens": got}, controlled=True)) == rules


def test_ten_bad_seconds_are_not_hidden_by_a_long_run() -> None:
    # Of 1,200 requests over 120 s six were sent when their ten seconds were over: 99.5 % are fine, 94 % of those are not.
    samples = [
        sample(number, sent_s=51.0 if 440 <= number < 446 else number / 10, cached_tokens=None)
        for number in range(1200)
    ]
    seen = Evidence(samples=samples, window_s=(0.0, 120.0), least_ttft_ms=400.0)
    assert broken(seen) == {"V2"}


def test_a_dropped_request_is_a_failure_of_this_machine() -> None:
    seen = evidence(lambda number: {"outcome": Outcome.DROPPED, "sent_s": 0.0} if number == 7 else {})
    told = {rule.id: rule for rule in judged(seen, ()).rules}
    assert broken(seen) == {"V5"}
    assert "--max-open" in told["V5"].words


def test_totals_may_differ_by_requests_whose_usage_nobody_told() -> None:
    cut = {"outcome": Outcome.CANCELLED, "prompt_tokens": None, "output_tokens": None, "token_events": 5}
    change = lambda number: cut if number == 0 else {}  # noqa: E731
    for prompt, output in ((19_900, 3_980), (20_000, 3_985), (20_100, 4_000)):
        seen = evidence(change, server=Counted(requests=200, prompt_tokens=prompt, output_tokens=output))
        assert broken(seen) == set()
    seen = evidence(change, server=Counted(requests=200, prompt_tokens=20_101, output_tokens=4_001))
    assert broken(seen) == {"V10"}
    words = next(rule.words for rule in judged(seen, ()).rules if rule.id == "V10")
    assert "20,101 prompt tokens there, 19,900 to 20,100 here" in words


def test_what_never_reached_the_server_is_not_expected_there() -> None:
    lost = {"outcome": Outcome.ERROR_CONNECT, "head_s": 0.0, "prompt_tokens": None, "output_tokens": None}
    seen = evidence(
        lambda number: lost if number == 0 else {},
        server=Counted(requests=199, prompt_tokens=19_900, output_tokens=3_980),
    )
    assert broken(seen) == set()


def test_who_left_before_the_answer_may_have_been_counted_or_not() -> None:
    left = {"outcome": Outcome.CANCELLED, "head_s": 0.0, "prompt_tokens": None, "output_tokens": None}
    for requests, rules in ((198, {"V10"}), (199, set()), (200, set()), (201, {"V10"})):
        server = Counted(requests=requests, prompt_tokens=19_900, output_tokens=3_980)
        assert broken(evidence(lambda number: left if number == 0 else {}, server=server)) == rules


def test_a_rule_named_beforehand_is_shown_and_does_not_bind() -> None:
    seen = evidence(cpu_share=0.9, loop_lag_ms=20.0)
    made = judged(seen, ("V4",))
    states = {rule.id: rule.state for rule in made.rules}
    assert states["V4"] is State.ALLOWED and states["V3"] is State.BREACH and not made.valid
    assert judged(seen, ("V4", "V3")).valid


def test_a_rule_without_evidence_is_left_out() -> None:
    made = judged(evidence(lambda number: {"cached_tokens": None}), ())
    assert {rule.id for rule in made.rules} == {"V1", "V2", "V5", "V8"}
    assert made.valid and made.unjudged.keys() == {"V3", "V4", "V6", "V7"}, "nothing was scraped: V9, V10 are not asked"


@pytest.mark.parametrize(
    ("seen", "rule", "why"),
    [
        (evidence(lambda number: {"cached_tokens": None}), "V6", "--enable-prompt-tokens-details"),
        (
            evidence(lambda number: {"cached_tokens": None, "prompt_tokens": None}),
            "V6",
            "how many tokens its prompt had",
        ),
        (
            evidence(silent, engines=Prompts(prompt_tokens=9_000, cached_tokens=0)),
            "V6",
            "counted 9,000 prompt tokens, and this run had 20,000",
        ),
        (evidence(), "V7", "--length-control"),
        (evidence(lambda number: {"outcome": Outcome.ERROR_STATUS}, controlled=True), "V7", "no request succeeded"),
        (evidence(closed=True), "V2", "waits for answers"),
        (evidence(), "V3", "was not written"),
        (evidence(unreconciled="the gateway fell silent"), "V10", "the gateway fell silent"),
    ],
)
def test_a_rule_that_cannot_be_judged_says_why(seen: Evidence, rule: str, why: str) -> None:
    made = judged(seen, ())
    assert why in made.unjudged[rule] and rule not in {one.id for one in made.rules}
    assert made.valid


def test_a_rule_about_caches_says_of_how_many_answers_it_is() -> None:
    every = judged(evidence(), ())
    some = judged(evidence(lambda number: {"cached_tokens": None} if number % 4 else {}), ())
    words = [next(rule.words for rule in made.rules if rule.id == "V6") for made in (every, some)]
    assert words == ["prompt tokens from a cache", "prompt tokens from a cache, of the 50 of 200 answers that say so"]


def test_what_engines_count_may_be_of_requests_that_failed_too() -> None:
    """A probe, and answers that were cut after the engine had read the prompt."""
    cut = evidence(
        lambda number: silent(number) | ({"outcome": Outcome.TRUNCATED} if number < 20 else {}),
        probes=[sample(900, prompt_tokens=16, input_tokens=16, cached_tokens=None)],
    )
    for prompts, judged_by in ((18_016, True), (20_016, True), (20_300, False), (17_000, False)):
        seen = msgspec.structs.replace(cut, engines=Prompts(prompt_tokens=prompts, cached_tokens=9_000))
        made = judged(seen, ())
        words = next((rule.words for rule in made.rules if rule.id == "V6"), "")
        assert ("as engines count it over the whole run" in words) is judged_by is ("V6" not in made.unjudged)


@pytest.mark.parametrize(("base_ms", "limit_ms"), [(400.0, 10.0), (200.0, 10.0), (100.0, 5.0), (10.0, 1.0)])
def test_lateness_counts_against_the_least_limit(base_ms: float, limit_ms: float) -> None:
    assert lag_limit_ms(base_ms) == limit_ms
