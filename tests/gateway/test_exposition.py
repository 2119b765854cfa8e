"""Pages of metrics as engines write them, in any pieces, and as they should not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.endpoints.exposition import LINE_BYTES, MOST_SERIES, Exposition, Load, NotMetrics, load, wanted
from gateway.engines import ENGINES
from gateway.engines.row import Gauges

VLLM, SGLANG, TRTLLM = (ENGINES[name].gauges for name in ("vllm", "sglang", "trtllm"))

VLLM_PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta/Llama} 9"} 3.0
vllm:num_requests_running{engine="1",model_name="meta/Llama} 9"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 1e1
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 77.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:cache_config_info{block_size="16",cache_dtype="a\\"b}",engine="0",kv_cache_size_tokens="None",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",kv_cache_size_tokens="None",num_gpu_blocks="1000"} 1.0
vllm:time_to_first_token_seconds_bucket{le="0.1"} 5.0
"""
VLLM_LOAD = Load(running=7, waiting=12, kv_usage=0.5, kv_tokens=32_000, block_tokens=16)

SGLANG_PAGE = b"""\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 5.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:num_grammar_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.31
sglang:max_total_num_tokens{model_name="m"} 534000.0
sglang:cache_config_info{model_name="m",num_pages="534000",page_size="1"} 1.0
"""

TRTLLM_PAGE = b"""\
trtllm_num_requests_running 4
trtllm_num_requests_waiting 0
trtllm_kv_cache_utilization 0.1
trtllm_kv_cache_max_blocks 100
trtllm_kv_cache_tokens_per_block 32
"""


def read(page: bytes, gauges: Gauges | None, piece: int = 1 << 20) -> Load | None:
    assert gauges is not None
    made = Exposition(wanted(gauges))
    for at in range(0, len(page), piece):
        made.feed(page[at : at + piece])
    made.close()
    return load(made, gauges)


def test_each_engine_is_understood_in_its_own_words() -> None:
    assert read(VLLM_PAGE, VLLM) == VLLM_LOAD
    assert read(SGLANG_PAGE, SGLANG) == Load(running=5, waiting=3, kv_usage=0.31, kv_tokens=534_000, block_tokens=1)
    newer = SGLANG_PAGE[: SGLANG_PAGE.index(b"sglang:cache_config_info")] + b'sglang:page_size{model_name="m"} 64.0\n'
    assert read(newer, SGLANG) == Load(running=5, waiting=3, kv_usage=0.31, kv_tokens=534_000, block_tokens=64)
    assert read(TRTLLM_PAGE, TRTLLM) == Load(running=4, waiting=0, kv_usage=0.1, kv_tokens=3200, block_tokens=32)


def test_the_size_an_engine_tells_itself_is_better_than_blocks_times_their_size() -> None:
    assert (read(VLLM_PAGE.replace(b'"None"', b'"15000"'), VLLM) or VLLM_LOAD).kv_tokens == 30_000


@pytest.mark.parametrize("change", [(b" 3.0", b" NaN"), (b" 3.0", b" -1"), (b" 3.0", b" x"), (b" 1e1", b" +Inf")])
def test_a_load_that_is_no_count_is_no_load(change: tuple[bytes, bytes]) -> None:
    assert read(VLLM_PAGE.replace(*change), VLLM) is None


@pytest.mark.parametrize("name", [b"vllm:num_requests_running", b"vllm:num_requests_waiting"])
def test_without_one_of_its_two_figures_a_page_tells_no_load(name: bytes) -> None:
    assert read(VLLM_PAGE.replace(name + b"{", b"vllm:other{"), VLLM) is None
    assert read(b"", VLLM) is None


def test_the_rest_may_be_missing_or_odd() -> None:
    page = VLLM_PAGE.replace(b"usage_perc", b"usage").replace(b"cache_config_info", b"cache_config")
    assert read(page, VLLM) == Load(running=7, waiting=12, kv_usage=None, kv_tokens=0, block_tokens=0)
    odd = VLLM_PAGE.replace(b" 0.25", b" NaN").replace(b'"1000"', b'"many"').replace(b'"16"', b'"-1"')
    assert read(odd, VLLM) == Load(running=7, waiting=12, kv_usage=None, kv_tokens=0, block_tokens=0)
    over = VLLM_PAGE.replace(b" 0.25", b" 4").replace(b" 0.75", b" 4")
    assert (read(over, VLLM) or VLLM_LOAD).kv_usage == 1.0


def test_the_last_line_may_lack_its_end_and_a_time_may_follow_the_value() -> None:
    page = VLLM_PAGE.rstrip(b"\n").replace(b" 3.0\n", b" 3.0 1700000000\n")
    assert read(page, VLLM) == VLLM_LOAD


def test_names_inside_other_text_are_not_taken_for_series() -> None:
    noise = b"# vllm:num_requests_running 9\nx vllm:num_requests_running 9\nvllm:num_requests_running_total 9\n"
    assert read(noise + VLLM_PAGE, VLLM) == VLLM_LOAD


@given(st.integers(1, 200))
def test_the_pieces_a_page_comes_in_do_not_matter(piece: int) -> None:
    assert read(VLLM_PAGE, VLLM, piece) == VLLM_LOAD


def test_a_page_without_end_is_refused_early() -> None:
    with pytest.raises(NotMetrics):
        read(b"x" * (LINE_BYTES + 10), VLLM)
    with pytest.raises(NotMetrics):
        read(b'vllm:num_requests_running{engine="1"} 1\n' * (MOST_SERIES + 1), VLLM)


@pytest.mark.parametrize(
    "line", [b'vllm:num_requests_running{a="', b"vllm:num_requests_running{", b'vllm:cache_config_info{a="\\']
)
def test_a_line_made_to_be_slow_to_read_is_not(line: bytes) -> None:
    began = time.perf_counter()
    assert read((line + b'a="b",' * 10_000 + b"\n") * 4, VLLM) is None
    assert time.perf_counter() - began < 0.1


def test_a_megabyte_in_pieces_takes_a_moment_each() -> None:
    page = VLLM_PAGE + b"".join(
        b'vllm:e2e_bucket{engine="0",le="%d",model_name="m"} 1.0\n' % at for at in range(20_000)
    )
    assert VLLM is not None
    longest = 0.0
    for _ in range(3):
        made, took = Exposition(wanted(VLLM)), []
        for at in range(0, len(page), 65536):
            began = time.perf_counter()
            made.feed(page[at : at + 65536])
            took.append(time.perf_counter() - began)
        longest = min(longest or 1.0, max(took))
    assert len(page) > 2**20
    assert longest < 0.002
