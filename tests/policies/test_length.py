"""How long will the answer be: what is learned from whom, what is read off it, and what stays within which bounds."""

import json
import math
import tracemalloc
from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.report.lengths import Accuracy, accuracy
from policies.length import Lengths, Prediction
from policies.length.distribution import BUCKETS, EDGES, below, bucket, lognormal, mean_below, quantile, summary
from policies.length.history import FREE, NODES, TENANT_NODES, Node
from policies.length.ratios import RATIOS
from policies.length.text import PIECE_NODES
from policies.types import InferenceRequest
from tests.kit.shared import trace

LIMIT = 8192


def dumped(lengths: Lengths) -> str:
    return "".join(lengths.dump())


def asking(**facts: Any) -> InferenceRequest:
    plain: dict[str, Any] = {
        "id": "r",
        "tenant": "acme",
        "model": "llama",
        "band": "standard",
        "route": "chat",
        "streamed": True,
        "arrived_s": 0.0,
        "deadline_s": 60.0,
        "prompt_tokens": 77,
        "max_output_tokens": LIMIT,
        "sequences": 1,
        "body_bytes": 400,
    }
    return InferenceRequest(**{**plain, **facts})


def taught(request: InferenceRequest, *answers: int, natural: bool = True, lengths: Lengths | None = None) -> Lengths:
    lengths = lengths or Lengths()
    for tokens in answers:
        lengths.learn(request, tokens, natural)
    return lengths


def quantiles(prediction: Prediction) -> list[float]:
    return [prediction.p25, prediction.p50, prediction.p90, prediction.p99]


# What is said before anything is known


@pytest.mark.parametrize(
    ("facts", "p50", "p90"),
    [
        ({}, 150, 150 * math.exp(1.1 * 1.2816)),
        ({"shape": "schema:3f"}, 40, 40 * math.exp(1.1 * 1.2816)),
        ({"shape": "tool:search"}, 40, 40 * math.exp(1.1 * 1.2816)),
        ({"shape": "effort:high"}, 150, 150 * math.exp(1.1 * 1.2816)),
        ({"max_output_tokens": 100}, 100, 100),
        ({"max_output_tokens": 0}, 0, 0),
    ],
)
def test_an_unknown_tenant_is_given_the_prior_cut_at_the_cap(facts: dict[str, Any], p50: float, p90: float) -> None:
    said = Lengths().predict(asking(**facts))
    assert said.p50 == pytest.approx(p50, rel=0.03)
    assert said.p90 == pytest.approx(p90, rel=0.03)


def test_the_mean_of_the_prior_is_that_of_the_lognormal_and_falls_with_the_cap() -> None:
    assert Lengths().predict(asking()).mean == pytest.approx(150 * math.exp(1.1**2 / 2), rel=0.02)
    assert 70 < Lengths().predict(asking(max_output_tokens=100)).mean < 95
    assert Lengths().predict(asking(max_output_tokens=1)).mean == 1


def test_declared_takes_the_cap_as_the_length() -> None:
    lengths = taught(asking(), *[20] * 50, lengths=Lengths("declared"))
    assert quantiles(lengths.predict(asking())) == [LIMIT] * 4
    assert lengths.given(asking(), 100).p50 == LIMIT
    assert (lengths.over(asking(), LIMIT - 1), lengths.over(asking(), LIMIT)) == (1.0, 0.0)
    lengths.kind = "learned"
    assert lengths.predict(asking()).p50 == pytest.approx(20, rel=0.15)


# What is learned, and from whom


def test_answers_of_a_tenant_are_what_is_expected_of_it() -> None:
    said = taught(asking(), *[20] * 200).predict(asking())
    assert [said.p25, said.p50] == pytest.approx([20, 20], rel=0.15)
    assert said.p90 < 40


def test_a_head_seen_before_says_more_than_its_route_and_a_new_one_takes_what_the_route_has() -> None:
    lengths = taught(asking(head=1), *[10] * 100)
    taught(asking(head=2), *[1000] * 100, lengths=lengths)
    assert lengths.predict(asking(head=1)).p50 == pytest.approx(10, rel=0.15)
    assert lengths.predict(asking(head=2)).p50 == pytest.approx(1000, rel=0.15)
    for unknown in (asking(head=3), asking(), asking(route="completions")):
        said = lengths.predict(unknown)
        assert (said.p25, said.p90) == (pytest.approx(10, rel=0.2), pytest.approx(1000, rel=0.2))


def test_effort_and_schema_are_told_apart_and_forced_answers_do_not_count_among_free_ones() -> None:
    lengths = taught(asking(shape="effort:high"), *[4000] * 100)
    taught(asking(shape="effort:low"), *[100] * 100, lengths=lengths)
    taught(asking(shape="schema:3f"), *[8] * 500, lengths=lengths)
    assert lengths.predict(asking(shape="effort:high", head=9)).p50 == pytest.approx(4000, rel=0.15)
    assert lengths.predict(asking(shape="effort:low", head=9)).p50 == pytest.approx(100, rel=0.15)
    assert lengths.predict(asking(head=9)).p25 > 80
    assert lengths.predict(asking(shape="schema:77")).p50 == pytest.approx(8, rel=0.2)


def test_recent_answers_count_more() -> None:
    lengths = taught(asking(), *[1000] * 2000)
    taught(asking(), *[10] * 1000, lengths=lengths)
    assert lengths.predict(asking()).p50 == pytest.approx(10, rel=0.15)


def test_counts_are_scaled_down_before_they_lose_digits() -> None:
    lengths = taught(asking(), *[10, 1000] * 6000)
    text = json.loads(dumped(lengths))
    assert all(1.0 <= node["unit"] < 1.1e6 for node in text["tenants"]["acme"])
    said = lengths.predict(asking())
    assert (said.p25, said.p90) == (pytest.approx(10, rel=0.15), pytest.approx(1000, rel=0.15))


def test_no_tenant_learns_from_another() -> None:
    lengths = taught(asking(tenant="acme", head=1, text_bytes=800), *[5] * 500)
    lengths.learn_prompt(asking(tenant="acme", text_bytes=800), 100)
    other = asking(tenant="globex", head=1, text_bytes=800)
    assert lengths.predict(other) == Lengths().predict(other)
    assert lengths.over(other, 100) == Lengths().over(other, 100)
    assert lengths.given(other, 100) == Lengths().given(other, 100)
    assert lengths.prompt_tokens(other) == Lengths().prompt_tokens(other) == 200


def test_an_answer_of_three_sequences_is_three_answers_long() -> None:
    said = taught(asking(sequences=3), *[300] * 100).predict(asking())
    assert said.p50 == pytest.approx(100, rel=0.15)


def test_nothing_is_learned_from_routes_without_answers_and_from_cuts_before_the_first_token() -> None:
    lengths = taught(asking(max_output_tokens=0), 5, 5)
    taught(asking(), 0, 0, natural=False, lengths=lengths)
    assert dumped(lengths) == dumped(Lengths())


# Cut answers


def test_impatient_clients_do_not_teach_that_answers_are_short() -> None:
    random = Random(5)
    honest, naive = Lengths(), Lengths()
    for _ in range(400):
        patience = random.randrange(10, 1200)
        honest.learn(asking(), min(400, patience), natural=patience >= 400)
        naive.learn(asking(), min(400, patience), natural=True)
    assert honest.predict(asking()).p25 == pytest.approx(400, rel=0.15)
    assert naive.predict(asking()).p25 < 350


def test_answers_that_always_reach_a_small_cap_leave_what_is_believed_beyond_it() -> None:
    lengths = taught(asking(max_output_tokens=16), *[16] * 300, natural=False)
    assert lengths.predict(asking(max_output_tokens=16)).p50 == 16
    assert lengths.predict(asking()).p50 >= Lengths().predict(asking()).p50
    taught(asking(), *[60] * 100, lengths=lengths)
    assert lengths.predict(asking()).p50 == pytest.approx(60, rel=0.2)


@given(st.lists(st.tuples(st.integers(0, BUCKETS - 1), st.booleans()), min_size=2, max_size=15))
def test_a_cut_answer_never_counts_as_shorter_than_an_ended_one(answers: list[tuple[int, bool]]) -> None:
    cut, ended = Node(FREE.cdf, FREE.shown), Node(FREE.cdf, FREE.shown)
    for index, natural in answers:
        cut.learn(index, natural, FREE)
        ended.learn(index, True, FREE)
    assert all(left <= right + 1e-6 for left, right in zip(cut.cdf, ended.cdf, strict=True))


# What is read off a distribution


def test_a_bucket_is_found_for_every_length() -> None:
    assert [bucket(tokens) for tokens in (0, 1, 2, 40_000, 10**9)] == [0, 0, 3, BUCKETS - 1, BUCKETS - 1]
    for tokens in range(2, 30_000, 7):
        assert EDGES[bucket(tokens)] <= tokens < EDGES[bucket(tokens) + 1]


def test_quantiles_shares_and_means_agree_with_each_other() -> None:
    cdf = array("f", lognormal(150.0, 1.1))
    for share in (0.01, 0.25, 0.5, 0.9, 0.999):
        assert below(cdf, quantile(cdf, share)) == pytest.approx(share, abs=1e-6)
    steps = [(index + 0.5) / 10 for index in range(5000)]
    assert mean_below(cdf, 500.0) == pytest.approx(sum(1 - below(cdf, at) for at in steps) / 10, rel=1e-3)


def test_answers_begun_together_hold_most_when_length_times_those_left_is_most() -> None:
    cdf = array("f", lognormal(1000.0, 1.0))
    random = Random(3)
    many = sorted(random.lognormvariate(math.log(1000.0), 1.0) for _ in range(4000))
    most = max(length * (len(many) - index) for index, length in enumerate(many)) / len(many)
    assert summary(cdf).held == pytest.approx(most, rel=0.05)
    assert summary(cdf).held < 0.4 * summary(cdf).mean


def test_answers_that_all_end_at_a_cap_hold_all_of_it_and_one_that_goes_on_holds_what_it_has() -> None:
    lengths = taught(asking(), *[3000] * 100)
    assert lengths.predict(asking(max_output_tokens=50)).held == pytest.approx(50, rel=0.02)
    assert lengths.predict(asking()).held == pytest.approx(3000, rel=0.25)
    assert lengths.given(asking(), 2500).held >= 2500
    assert lengths.given(asking(max_output_tokens=2600), 2500).held <= 2600


def test_an_answer_that_goes_on_is_expected_longer_and_longer() -> None:
    lengths = taught(asking(), *[100] * 300, *[2000] * 100)
    assert lengths.predict(asking()).p50 == pytest.approx(100, rel=0.2)
    assert lengths.given(asking(), 150).p50 == pytest.approx(2000, rel=0.2)
    assert lengths.given(asking(), 150).p25 > 1500
    assert lengths.given(asking(max_output_tokens=500), 150).p90 == 500
    assert lengths.given(asking(), LIMIT).mean == LIMIT
    assert lengths.given(asking(max_output_tokens=200_000), 100_000).p50 == 125_000


def test_the_chance_to_be_over_a_boundary_is_none_beyond_the_cap() -> None:
    lengths = taught(asking(), *[100] * 50, *[2000] * 50)
    assert lengths.over(asking(), 500) == pytest.approx(0.5, abs=0.1)
    assert lengths.over(asking(max_output_tokens=500), 500) == 0.0
    assert lengths.over(asking(), 0) == 1.0
    assert lengths.over(asking(max_output_tokens=0), 0) == 0.0


ANSWERS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60_000), st.booleans(), st.sampled_from(["", "schema", "effort:low"])),
    max_size=60,
)


@settings(max_examples=60)
@given(ANSWERS, st.integers(1, 50_000), st.integers(1, 50_000))
def test_quantiles_are_in_order_and_within_the_cap_whatever_was_learned(
    answers: list[tuple[int, int, bool, str]], limit: int, generated: int
) -> None:
    lengths = Lengths()
    for head, tokens, natural, shape in answers:
        lengths.learn(asking(head=head, shape=shape), tokens, natural)
    for head in range(5):
        request = asking(head=head, max_output_tokens=limit)
        least = min(generated, limit)
        for said, floor in ((lengths.predict(request), 0), (lengths.given(request, generated), least)):
            assert [floor, *quantiles(said), limit] == sorted([floor, *quantiles(said), limit])
            assert floor <= said.mean + 1e-3 * limit
            assert said.mean <= limit
            assert floor <= said.held <= limit
        chances = [lengths.over(request, edge) for edge in EDGES]
        assert all(0.0 <= after <= before <= 1.0 for before, after in pairwise(chances))


# Bytes per token


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        ({"text_bytes": 0}, 77),
        ({"text_bytes": 1200}, 300),
        ({"text_bytes": 1200, "kind": "code"}, 400),
        ({"text_bytes": 1200, "kind": "cjk"}, 267),
        ({"text_bytes": 1}, 1),
    ],
)
def test_a_prompt_is_counted_by_its_kind_of_text_until_more_is_known(facts: dict[str, Any], tokens: int) -> None:
    assert Lengths().prompt_tokens(asking(**facts)) == tokens


def test_bytes_per_token_follow_the_engines_counts_within_1_and_8() -> None:
    lengths = Lengths()
    for _ in range(100):
        lengths.learn_prompt(asking(text_bytes=5000), 1000)
        lengths.learn_prompt(asking(text_bytes=5000, kind="code"), 1)
        lengths.learn_prompt(asking(text_bytes=5000, kind="cjk"), 50_000)
        lengths.learn_prompt(asking(text_bytes=0), 1000)
        lengths.learn_prompt(asking(text_bytes=5000), 0)
    assert lengths.prompt_tokens(asking(text_bytes=5000)) == pytest.approx(1000, rel=0.01)
    assert lengths.prompt_tokens(asking(text_bytes=8000, kind="code")) == pytest.approx(1000, rel=0.01)
    assert lengths.prompt_tokens(asking(text_bytes=1000, kind="cjk")) == pytest.approx(1000, rel=0.03)
    assert lengths.prompt_tokens(asking(text_bytes=4000, model="qwen")) == 1000


# Bounds


def test_a_tenant_keeps_the_512_nodes_it_used_last() -> None:
    lengths = taught(asking(head=1), *[10] * 100)
    for head in range(2, 700):
        taught(asking(head=head), 1000, lengths=lengths)
        taught(asking(head=1), 10, lengths=lengths)
    nodes = json.loads(dumped(lengths))["tenants"]["acme"]
    assert len(nodes) == TENANT_NODES
    assert lengths.predict(asking(head=1)).p50 == pytest.approx(10, rel=0.15)
    assert nodes[0]["key"] == ["llama", "chat", "", 191]  # before it come 190 of the heads; 509 of them are kept


def test_as_many_nodes_as_there_can_be_stay_within_16_mib() -> None:
    heads = 1000
    tracemalloc.start()
    try:
        lengths = Lengths()
        for number in range(heads):  # two answers each: from then on a node has its own distribution
            one = asking(tenant=f"tenant-{number // 400}", model=f"{'llama-3.1-70b'}-{'instruct'}", head=2**62 + number)
            taught(one, 100, 100, lengths=lengths)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / heads * NODES < 16 * 2**20


def test_above_the_bound_of_all_the_silent_tenant_loses_its_oldest_nodes() -> None:
    lengths = Lengths()
    for number in range(NODES):
        taught(asking(tenant=f"tenant-{number // 400}", head=number + 1), 100, lengths=lengths)
    kept = {tenant: len(nodes) for tenant, nodes in json.loads(dumped(lengths))["tenants"].items()}
    assert sum(kept.values()) == NODES
    assert kept["tenant-0"] == 402 - 50
    assert {kept[f"tenant-{number}"] for number in range(1, 25)} == {402}


def test_a_tenant_of_whom_nothing_is_left_is_gone() -> None:
    lengths = Lengths()
    for number in range(NODES // 2 + 10):
        taught(asking(tenant=f"tenant-{number}"), 100, lengths=lengths)
    kept = json.loads(dumped(lengths))["tenants"]
    assert next(iter(kept)) == "tenant-10"
    assert len(kept) == NODES // 2


def test_ratios_are_bounded_and_the_oldest_go_first() -> None:
    lengths = Lengths()
    for number in range(RATIOS + 5):
        lengths.learn_prompt(asking(tenant=f"tenant-{number}", text_bytes=1000), 100)
    kept = json.loads(dumped(lengths))["bytes_per_token"]
    assert (len(kept), kept[0][0]) == (RATIOS, "tenant-5")


# The state as text


@settings(max_examples=40)
@given(ANSWERS, ANSWERS)
def test_what_is_restored_predicts_and_learns_identically(
    before: list[tuple[int, int, bool, str]], after: list[tuple[int, int, bool, str]]
) -> None:
    lengths, restored = Lengths(), Lengths()
    for head, tokens, natural, shape in before:
        lengths.learn(asking(head=head, shape=shape), tokens, natural)
        lengths.learn_prompt(asking(text_bytes=1000), tokens)
    restored.restore(dumped(lengths))
    assert dumped(restored) == dumped(lengths)
    for head, tokens, natural, shape in after:
        for limit in (100, LIMIT):
            request = asking(head=head, shape=shape, text_bytes=1000, max_output_tokens=limit)
            assert restored.predict(request) == lengths.predict(request)
            assert restored.given(request, tokens) == lengths.given(request, tokens)
            assert restored.over(request, tokens) == lengths.over(request, tokens)
            assert restored.prompt_tokens(request) == lengths.prompt_tokens(request)
        lengths.learn(asking(head=head, shape=shape), tokens, natural)
        restored.learn(asking(head=head, shape=shape), tokens, natural)
    assert dumped(restored) == dumped(lengths)


def _changed(path: tuple[str | int, ...], value: object) -> Callable[[str], str]:
    def change(text: str) -> str:
        plain = json.loads(text)
        inner = plain
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        return json.dumps(plain)

    return change


BROKEN = {
    "nothing": lambda text: "",
    "half of it": lambda text: text[: len(text) // 2],
    "a list": lambda text: "[1]",
    "a number": lambda text: "7",
    "deep": lambda text: "[" * 100_000,
    "no version": lambda text: text.replace('"version"', '"v"'),
    "another version": _changed(("version",), 2),
    "another byte order": _changed(("byte_order",), "middle"),
    "tenants are a list": _changed(("tenants",), []),
    "a tenant without nodes": _changed(("tenants", "acme"), []),
    "a node that is a number": _changed(("tenants", "acme", 0), 3),
    "a key that is no list": _changed(("tenants", "acme", 0, "key"), 3),
    "a key with a number for a route": _changed(("tenants", "acme", 1, "key"), ["llama", 3, ""]),
    "one key twice": _changed(("tenants", "acme", 0, "key"), ["llama", "chat", ""]),
    "no answers": _changed(("tenants", "acme", 0, "learned"), 0),
    "half an answer": _changed(("tenants", "acme", 0, "learned"), 1.5),
    "a unit of nothing": _changed(("tenants", "acme", 0, "unit"), 0.0),
    "an endless unit": _changed(("tenants", "acme", 0, "unit"), math.inf),
    "a state that is not base64": _changed(("tenants", "acme", 0, "state"), "§"),
    "a short state": _changed(("tenants", "acme", 0, "state"), "AAAA" * 16),
    "an empty state": _changed(("tenants", "acme", 0, "state"), ""),
    "a state of zeros": _changed(("tenants", "acme", 0, "state"), "A" * 772 + "AA=="),
    "a ratio of 0": _changed(("bytes_per_token", 0, 3), 0.0),
    "a ratio that is text": _changed(("bytes_per_token", 0, 3), "4"),
    "a ratio of nobody": _changed(("bytes_per_token", 0, 0), None),
    "a ratio too short": _changed(("bytes_per_token", 0), ["acme", "llama"]),
}


def test_what_is_learned_while_the_state_is_written_does_no_harm() -> None:
    lengths = Lengths()
    for number in range(NODES):
        lengths.learn(asking(tenant=f"t{number % 30}", head=number), 20, True)
    pieces = []
    for number, piece in enumerate(lengths.dump()):
        pieces.append(piece)
        for more in range(10):  # tenants and heads that are gone, and that nobody had
            lengths.learn(asking(tenant=f"new{number}", head=more), 20, True)
    assert len(pieces) > NODES / PIECE_NODES
    assert max(map(len, pieces)) < 200_000
    restored = Lengths()
    restored.restore("".join(pieces))
    assert sum(map(len, json.loads(dumped(restored))["tenants"].values())) <= NODES
    restored.restore(dumped(lengths))
    assert dumped(restored) == dumped(lengths)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_state_is_refused_with_a_reason_and_changes_nothing(name: str) -> None:
    lengths = taught(asking(), *[20] * 50)
    lengths.learn_prompt(asking(text_bytes=1000), 300)
    text = dumped(lengths)
    with pytest.raises(ValueError, match=r"lengths are not as expected: .+"):
        lengths.restore(BROKEN[name](text))
    assert dumped(lengths) == text
    lengths.restore(text)
    assert dumped(lengths) == text


# Against what real tenants asked


def replayed(name: str, boundary_tokens: int) -> Accuracy:
    """Each request of a trace predicted when it came; its answer is known when it ended, at 20 ms a token."""
    lengths, pairs = Lengths(), []
    running: list[tuple[float, int, InferenceRequest, int]] = []
    for number, row in enumerate(trace(name)):
        now, tokens = row["timestamp"] / 1000, row["output_length"]
        while running and running[0][0] <= now:
            _, _, ended, length = heappop(running)
            lengths.learn(ended, length, natural=True)
        request = asking(tenant=row["tenant"], prompt_tokens=row["input_length"], max_output_tokens=65_536)
        pairs.append((lengths.predict(request), tokens))
        heappush(running, (now + 0.5 + 0.02 * tokens, number, request, tokens))
    report = accuracy(pairs, boundary_tokens)
    assert report is not None
    print(name, json.dumps(report.as_json()))
    return report


def test_tenants_of_a_language_service_are_told_apart_by_their_history() -> None:
    report = replayed("servegen_language_tenants", 256)
    assert report.pools.accuracy >= 0.88 > report.pools.majority + 0.15
    assert report.tau_a >= 0.7
    assert 0.88 <= report.p90_coverage <= 0.95
    assert report.bucket_accuracy > report.bucket_majority + 0.25


def test_tenants_of_a_reasoning_service_are_told_apart_in_order_but_not_at_a_bad_boundary() -> None:
    """Half of the 30 minutes is learning: answers take up to 8 minutes to end, and the short ones end first."""
    report = replayed("servegen_reasoning_tenants", 256)
    assert report.pools.accuracy < report.pools.majority  # 91 % are over the boundary: nothing to gain there
    assert report.tau_a >= 0.35
    assert 0.86 <= report.p90_coverage <= 0.95
    assert report.bucket_accuracy > report.bucket_majority + 0.1
