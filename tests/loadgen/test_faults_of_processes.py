"""Engines that die of what they are asked, and pages of metrics that are not what they should be."""

import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.endpoints.exposition import Exposition, load, wanted
from gateway.engines import ENGINES
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.raw_client import connect, exchange
from tests.loadgen.simulated import chat, get, simulated, talk

FLAGS = ("--profile", "noop", "--served-model-name", "m")


def asked(text: str, **fields: object) -> bytes:
    return wire.request("/v1/completions", {"model": "m", "prompt": text, "max_tokens": 9, **fields})


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("crash:exit=137,count=1", 137, b""),
        ("segv", -signal.SIGSEGV, b""),
        ("oom_text", 1, b"CUDA out of memory"),
        ("poison:arsenic,exit=3", 3, b""),
        ("fragile:0", 1, b""),
    ],
)
async def test_an_engine_dies_as_its_fault_has_it(
    fault: str, status: int, words: bytes, streamed: bool, tmp_path: Path
) -> None:
    async with Engine(tmp_path, arguments=[*FLAGS, "--fault", fault]) as engine:
        assert engine.child is not None
        assert not (await exchange(engine.port, asked("with arsenic", stream=streamed))).clean
        assert await engine.child.wait(5) == status
        assert words in engine.child.err.read_bytes()


async def test_poison_kills_nobody_else_and_few_at_once_are_borne(tmp_path: Path) -> None:
    hanging = ("--fault", "poison:arsenic,model=other", "--fault", "fragile:1", "--fault", "health_lie:count=1")
    async with Engine(tmp_path, arguments=[*FLAGS, *hanging]) as engine:
        assert engine.child is not None
        async with await connect(engine.port) as first:
            await first.send(asked("arsenic", stream=True))  # of another model; it hangs
            await first.read_until(b"\r\n\r\n")
            assert not engine.child.exited
            async with await connect(engine.port) as second:
                await second.send(asked("x"))
                assert await engine.child.wait(5) == 1


async def test_metrics_can_be_no_numbers_begin_anew_and_end_halfway() -> None:
    gauges = ENGINES["vllm"].gauges
    assert gauges is not None

    async def page(port: int) -> bytes:
        return (await talk(port, get("/metrics"))).body

    def totals(text: bytes) -> dict[str, float]:
        families = text_string_to_metric_families(text.decode())
        return {one.name: one.value for family in families for one in family.samples}

    async with simulated(profile="noop", served_model_name="llama-8b") as engine:
        await talk(engine.port, chat("x [[fb out=6]]"))
        engine.faults.replace(["counter_reset"])
        began = totals(await page(engine.port))
        await talk(engine.port, chat("y [[fb out=4]]"))
        later = totals(await page(engine.port))
        assert [told["vllm:generation_tokens_total"] for told in (began, later)] == [0, 4]
        assert [told["vllm:time_to_first_token_seconds_count"] for told in (began, later)] == [0, 1]
        engine.faults.replace([])
        assert totals(await page(engine.port))["vllm:generation_tokens_total"] == 10
        engine.faults.replace(["nan"])
        read = Exposition(wanted(gauges))
        read.feed(await page(engine.port))
        assert read.series["vllm:num_requests_running"] and load(read, gauges) is None
        engine.faults.replace(["half_body"])
        wire = await talk(engine.port, get("/metrics"))
        assert wire.end == "fin" and b"content-length: %d" % len(wire.raw) not in wire.head
        assert wire.raw.startswith(b"# HELP")
