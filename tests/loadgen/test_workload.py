"""Arrivals, lengths and prompts: exact rates, kept bounds, planned token counts, bytes that are shared or not."""

import statistics
from itertools import pairwise
from random import Random

import pytest

from loadgen.engine_server.tokens import TOKEN_BYTES as ENGINE_TOKEN_BYTES
from loadgen.engine_server.tokens import count, render
from loadgen.workload.arrivals import Arrivals, Constant, Gamma, Poisson
from loadgen.workload.lengths import Fixed, Length, Lognormal, Uniform, tokens
from loadgen.workload.prompts import TOKEN_BYTES, Block, Prose, marker, messages, prompt_tokens

PROCESSES = [Constant(rate=7.5), Poisson(rate=7.5), Gamma(rate=7.5, cv=1.5), Gamma(rate=7.5, cv=6)]


@pytest.mark.parametrize("process", PROCESSES, ids=str)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_process_offers_its_exact_rate_inside_the_time(process: Arrivals, seed: int) -> None:
    times = process.times(Random(seed), 40)
    assert len(times) == 300
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] < 40


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_no_request_is_a_legal_draw(process: Arrivals) -> None:
    assert process.times(Random(1), 0.01) == []


@pytest.mark.parametrize(
    ("process", "cv"), [(Constant(rate=50), 0), (Poisson(rate=50), 1), (Gamma(rate=50, cv=2), 2)], ids=str
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


@pytest.mark.parametrize("system", [None, Block(namespace="prefix", id=2, tokens=320)])
@pytest.mark.parametrize("size", [30, 31, 500, 4099])
@pytest.mark.parametrize("output", [1, 50, 1234])
def test_planned_and_counted_prompt_tokens_agree(system: Block | None, size: int, output: int) -> None:
    assert TOKEN_BYTES == ENGINE_TOKEN_BYTES
    user = (Block(namespace="chat", id=9, tokens=size), Block(namespace="chat", id=10, tokens=3))
    said = messages(Prose("salt"), system, user, output)
    rendered = render(b"", [(one["role"], one["content"]) for one in said])
    assert count(rendered) == prompt_tokens(system, user)
    assert said[-1]["role"] == "user" and said[-1]["content"].endswith(marker(output))


def test_a_marker_is_whole_tokens() -> None:
    assert [len(marker(10**n)) % TOKEN_BYTES for n in range(6)] == [0] * 6
