"""Live beside simulated: what the two sides are told, and when figures agree."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml

from gateway.config import load
from loadgen.agree.case import Case, case, unloaded
from loadgen.agree.compare import Row
from loadgen.agree.live import Engine, engine_argv, gateway_config
from loadgen.agree.virtual import simulated
from loadgen.live.processes import LiveError
from loadgen.live.serving import Listeners
from loadgen.sim import fleet as fleets

INF = float("inf")


def on(fleet: str) -> Case:
    made = fleets.load(fleet)
    return msgspec.structs.replace(case("smoke", 4, None), fleet=made, members=tuple(fleets.members(made)))


# ---- one configuration, read twice


@pytest.mark.parametrize("fleet", ["mini2", "mini2-sglang", "ref4-cap512", "ref4-64k", "pools22", "tp8"])
def test_the_gateway_reads_in_the_configuration_what_the_simulator_does(fleet: str, tmp_path: Path) -> None:
    made = on(fleet)
    engines = [
        Engine(name=known.name, url=f"http://127.0.0.1:{8000 + number}", control="")
        for number, known in enumerate(made.endpoints())
    ]
    written = gateway_config(made, Listeners(data=7000, admin=7001), engines, tmp_path / "journal.jsonl")
    file = tmp_path / "forebay.yaml"
    file.write_text(yaml.safe_dump(written))
    read = load(file, {})
    # What models there are matters to limits alone, and the simulator has none.
    assert replace(read.settings(), models={}) == made.policy().settings
    told = [replace(known, kv_tokens=0, context_tokens=0) for known in made.endpoints()]  # the engine's to tell
    assert [endpoint.described() for endpoint in read.endpoints] == told


def test_an_engine_gets_the_flags_of_its_fleet() -> None:
    words = engine_argv(fleets.load("ref4-cap512").engines[0], 8000, 9000)
    given = dict(zip(words[4::2], words[5::2], strict=False))
    assert given["--long-prefill-token-threshold"] == "512"
    assert (given["--max-num-batched-tokens"], given["--max-num-seqs"]) == ("2048", "256")
    assert (given["--count"], given["--port"], given["--control-port"]) == ("4", "8000", "9000")


def test_an_engine_that_cannot_run_live_is_refused() -> None:
    group = fleets.load("mini2").engines[0]
    for foreign, fields in (
        ("cap_when_alone", {"cap_when_alone": True}),
        ("enable_mixed_chunk", {"enable_mixed_chunk": True}),
        ("max_num_queued_tokens", {"variant": "sglang", "max_num_queued_tokens": 9}),
    ):
        flags = msgspec.structs.replace(
            fleets.load("mini2-sglang").engines[0].flags, variant="vllm", chunked_prefill_size=8192
        )
        odd = msgspec.structs.replace(group, flags=msgspec.structs.replace(flags, **fields))
        with pytest.raises(LiveError, match=foreign):
            engine_argv(odd, 8000, 9000)


def test_an_engine_of_sglangs_gets_sglangs_flags(tmp_path: Path) -> None:
    flags = msgspec.structs.replace(
        fleets.load("ref4-sglang").engines[0].flags,
        enable_prefix_caching=False,
        max_num_queued_reqs=9,
        scheduling_policy="priority",
    )
    words = engine_argv(msgspec.structs.replace(fleets.load("ref4-sglang").engines[0], flags=flags), 8000, 9000)
    switches = {
        "--enable-mixed-chunk",
        "--disable-radix-cache",
        "--enable-priority-scheduling",
        "--enable-metrics",
        "--enable-cache-report",
    }
    assert switches <= set(words)
    for pair in (("--dialect", "sglang"), ("--max-running-requests", "256"), ("--context-length", "32768"),
                 ("--chunked-prefill-size", "2048"), ("--max-queued-requests", "9")):  # fmt: skip
        assert words[words.index(pair[0]) + 1] == pair[1]
    made = on("mini2-sglang")
    engines = [Engine(name=known.name, url="http://127.0.0.1:8000", control="") for known in made.endpoints()]
    written = gateway_config(made, Listeners(data=7000, admin=7001), engines, tmp_path / "journal.jsonl")
    assert {endpoint["engine"] for endpoint in written["endpoints"]} == {"sglang"}


# ---- tenants


def test_everybody_is_one_tenant_on_the_way_and_their_own_in_the_report() -> None:
    made = case("smoke", 4, None)
    assert {one.tenant for one in made.schedule.requests} == {"default"}
    assert {key[1] for key in simulated(made, 0.001).report.cells} == {"chat", "jobs"}


def test_small_requests_meet_idle_engines() -> None:
    made = unloaded(case("smoke", 4, None))
    assert made.schedule.measured == 200
    totals = simulated(made, 0.0).report.totals
    assert totals.ttft_p50_ms == totals.ttft_p99_ms


# ---- when figures agree


@pytest.mark.parametrize(
    ("expected", "live", "most", "agrees"),
    [
        ((100.0,), (104.0, 160.0, 90.0), 5.0, True),  # the median counts
        ((100.0,), (106.0, 106.0, 90.0), 5.0, False),
        ((90.0, 100.0, 200.0), (104.0,), 5.0, True),
        ((7.0, 7.0), (7.0, 7.0, 7.0), 0.0, True),
        ((7.0,), (7.0, 7.0, 8.0), 0.0, False),  # equal in every run
        ((7.0, 8.0), (7.0,), 0.0, False),
        ((INF,), (INF, INF), 5.0, True),
        ((INF,), (3.0,), 5.0, False),
        ((None,), (None,), 5.0, True),
        ((None,), (3.0,), 5.0, False),
    ],
)
def test_figures_agree_by_their_medians_or_in_every_run(
    expected: tuple[float, ...], live: tuple[float, ...], most: float, agrees: bool
) -> None:
    row = Row(name="x", simulated=expected, live=live, most=most)
    assert row.agrees is agrees
    assert replace(row, judged=False).agrees
