"""T15, the part that fits into CI: slow readers cost bounded memory, are cut when they read nothing, and only then (C023)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.processes import until, until_async
from tests.kit.raw_client import Connection, connect
from tests.kit.script_engine import Seen, Step
from tests.kit.sockets import rss_bytes
from tests.kit.stage import Stage, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.serial, pytest.mark.timeout(90)]

MIB = 1024 * 1024
STALL_S = 1.0
TOKEN = wire.event({"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * 1000}, "finish_reason": None}]})
PIECE = b"".join([wire.chunk(TOKEN)] * 50)
PIECES = 200  # 11 MB


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    timeouts = {"client_stall_s": STALL_S * 10, "idle_s": 20}
    async with stage(tmp_path_factory.mktemp("t15"), timeouts=timeouts, upstream={"probe_s": 20}) as made:
        yield made


def flood(seen: Seen) -> Iterator[Step]:
    """As many pieces as they ask for, as fast as they are taken."""
    kind, _, pieces = wire.prompt_of(seen.json).partition(" ")
    if kind != "flood":
        yield from wire.echo(seen)
        return
    yield wire.stream_head()
    for _ in range(int(pieces)):
        yield PIECE
    yield from (wire.chunk(wire.DONE), wire.LAST_CHUNK)


async def slow_client(stage: Stage, pieces: int = PIECES) -> Connection:
    client = await connect(stage.gateway.port, rcvbuf=4096)
    await client.send(stage.message("chat", f"flood {pieces}", stream=True))
    return client


async def test_a_reader_that_reads_slowly_is_not_cut(one: Stage) -> None:
    """However much the kernel holds for it: a client that takes 50 kB/s is reading, at every moment."""
    one.reset()
    one.engine.answer = flood
    async with one.holding():
        client = await slow_client(one)
        await client.read_at(50_000, 5 * STALL_S)
        assert client.end == "open"
        response = await client.response(20)
        assert response.clean and len(response.body) == PIECES * 50 * len(TOKEN) + len(wire.DONE)
        client.close()


async def test_a_reader_that_pauses_for_less_than_the_stall_time_gets_every_byte(one: Stage) -> None:
    one.reset()
    one.engine.answer = flood
    async with one.holding():
        client = await slow_client(one)
        await client.head()
        await asyncio.sleep(STALL_S * 0.6)
        response = await client.response(20)
        assert response.clean and len(response.body) == PIECES * 50 * len(TOKEN) + len(wire.DONE)
        client.close()


async def test_a_reader_that_reads_nothing_is_cut_and_its_engine_too(one: Stage) -> None:
    one.reset()
    one.engine.answer = flood
    async with one.holding():
        client = await slow_client(one)
        await client.head()
        began = time.monotonic()
        await until(lambda: bool(one.engine.aborted()), 4 * STALL_S, "the engine goes on")
        assert STALL_S * 0.9 <= time.monotonic() - began <= STALL_S * 2.5
        assert not (await client.response(10)).clean
        client.close()

        async def logged() -> bool:
            line = one.gateway.access()[-1]
            return (line["status"], line["outcome"], line["reason"]) == (499, "cancelled", "client_stalled")

        await until_async(logged, 2, "not logged")


async def test_readers_of_nothing_cost_little_memory_and_hold_up_nobody(one: Stage) -> None:
    one.reset()
    one.engine.answer = flood
    async with one.holding():
        before = rss_bytes(one.gateway.pid)
        clients = [await slow_client(one, 5 * PIECES) for _ in range(40)]
        for client in clients:
            await client.head()
        assert (await one.ask("chat", "another", stream=True)).clean
        assert rss_bytes(one.gateway.pid) - before < 40 * 0.64 * MIB + 8 * MIB
        assert not [seen for seen in one.engine.seen if "flood" in wire.prompt_of(seen.json) and seen.answered_s]
        for client in clients:
            client.close()
