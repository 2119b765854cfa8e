"""Each toxic of the fault proxy does its one harm, and nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.kit import wire
from tests.kit.fault_proxy import FaultProxy
from tests.kit.raw_client import connect, exchange
from tests.kit.script_engine import FIN, ScriptEngine

REQUEST = wire.request("/v1/chat/completions", wire.request_body("chat", "canary-1"))


@pytest.fixture
async def engine() -> AsyncIterator[ScriptEngine]:
    async with ScriptEngine() as engine:
        yield engine


@pytest.fixture
async def proxy(engine: ScriptEngine) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(engine.port) as proxy:
        yield proxy


async def timed(port: int, data: bytes = REQUEST) -> tuple[float, bytes]:
    began = time.monotonic()
    answer = await exchange(port, data)
    return time.monotonic() - began, answer.body


async def test_without_toxics_bytes_pass_unchanged(engine: ScriptEngine, proxy: FaultProxy) -> None:
    assert (await timed(proxy.port))[1] == (await timed(engine.port))[1]


async def test_latency_delays_each_piece_but_not_the_line(engine: ScriptEngine, proxy: FaultProxy) -> None:
    proxy.down.latency_s, proxy.down.jitter_s = 0.1, 0.01
    engine.answer = lambda _: wire.stream([b"data: x\n\n"] * 50)
    took, _ = await timed(proxy.port)
    assert 0.08 < took < 0.6


async def test_bandwidth_is_kept(engine: ScriptEngine, proxy: FaultProxy) -> None:
    engine.answer = lambda _: [wire.answer(b"x" * 20_000)]
    proxy.down.bytes_per_s = 100_000
    took, body = await timed(proxy.port)
    assert took > 0.18 and len(body) == 20_000


async def test_the_slicer_makes_small_pieces(proxy: FaultProxy) -> None:
    proxy.down.slice_bytes, proxy.down.slice_pause_s = 7, 0.001
    async with await connect(proxy.port) as client:
        await client.send(REQUEST)
        await client.response()
        assert max(len(piece.data) for piece in client.pieces) <= 21


async def test_a_black_hole_swallows_and_then_closes(proxy: FaultProxy) -> None:
    proxy.up.timeout_s = 0.2
    async with await connect(proxy.port) as client:
        await client.send(REQUEST)
        with pytest.raises(TimeoutError):
            await client.response(0.1)


async def test_the_peer_is_reset_after_its_time(proxy: FaultProxy) -> None:
    proxy.down.reset_after_s = 0.1
    async with await connect(proxy.port) as client:
        await asyncio.wait_for(client.read(), 2)
        assert client.end == "rst"


@pytest.mark.parametrize(("how", "end"), [("fin", "cut_fin"), ("rst", "cut_rst")])
async def test_a_cut_falls_on_its_byte(proxy: FaultProxy, how: str, end: str) -> None:
    for at in (1, 40, 150):
        proxy.down.cut_at, proxy.down.cut_how = at, how
        async with await connect(proxy.port) as client:
            await client.send(REQUEST)
            answer = await client.response()
            assert (len(client.received), answer.end) == (at, end)


async def test_a_hanging_cut_leaves_the_connection_open(proxy: FaultProxy) -> None:
    proxy.down.cut_at, proxy.down.cut_how = 10, "hang"
    async with await connect(proxy.port) as client:
        await client.send(REQUEST)
        with pytest.raises(TimeoutError):
            await client.response(0.15)
        assert (len(client.received), client.end) == (10, "open")


async def test_frozen_bytes_come_when_thawed(proxy: FaultProxy) -> None:
    proxy.down.freeze()
    async with await connect(proxy.port) as client:
        await client.send(REQUEST)
        with pytest.raises(TimeoutError):
            await client.response(0.1)
        proxy.down.thaw()
        assert b"canary-1" in (await client.response()).body


async def test_a_slow_close_keeps_the_connection(engine: ScriptEngine, proxy: FaultProxy) -> None:
    proxy.down.slow_close_s = 0.2
    async with await connect(proxy.port) as client:
        await client.send(REQUEST)
        await client.response()
        engine.drop_connections(how=FIN)
        began = time.monotonic()
        await client.read()
        assert client.end == "fin" and time.monotonic() - began > 0.15


async def test_a_refusing_proxy_resets_and_recovers(proxy: FaultProxy) -> None:
    proxy.refusing = True
    async with await connect(proxy.port) as client:
        await asyncio.wait_for(client.read(), 2)
        assert client.end == "rst"
    proxy.refusing = False
    assert b"canary-1" in (await timed(proxy.port))[1]


async def test_clear_turns_everything_off(proxy: FaultProxy) -> None:
    proxy.down.latency_s, proxy.down.cut_at = 5.0, 3
    proxy.down.freeze()
    proxy.down.clear()
    took, body = await timed(proxy.port)
    assert took < 1 and b"canary-1" in body
