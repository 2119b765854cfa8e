"""Cases C019, C021, C023 and C024: streams are delivered in time, in bounded memory, to fast and to slow readers."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cases.beside import delays, lag_p99_s, paced_stream, probed, text_event
from tests.cases.streams import ROUTES, compact, stream_of
from tests.kit import wire
from tests.kit.invariants import same_stream
from tests.kit.processes import until, until_async
from tests.kit.raw_client import Connection, connect
from tests.kit.script_engine import FIN, HANG, Script, Seen, Step, Wait
from tests.kit.sockets import cpu_ns, rss_bytes
from tests.kit.stage import Stage, gathered, quantile, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

KIB, MIB = 1024, 1024 * 1024
STALL_S = 2.0  # for 60 s
SLACK_S = 0.015  # of a client that shares its process with the engines: a tenth of the gap is 1 ms


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    endpoint = {"max_seqs": 256, "max_prefill_tokens": 1_000_000}
    timeouts = {"scale": 1, "client_stall_s": STALL_S}  # at a tenth a busy kit would miss probes
    async with stage(tmp_path_factory.mktemp("flow"), endpoint=endpoint, timeouts=timeouts) as made:
        for _ in range(5):
            await made.ask("chat", "warm", stream=True)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def one(house: Stage) -> AsyncIterator[Stage]:
    house.reset()
    async with house.holding():
        yield house
        house.reset()


# C019


@pytest.mark.parametrize("size", [64 * KIB, 128 * KIB + 1, 256 * KIB - 40, 256 * KIB + 1, MIB, 2 * MIB, 4 * MIB - 400])
@pytest.mark.parametrize("route", ["chat", "messages"])
async def test_c019_a_long_line_passes_in_little_memory(one: Stage, route: str, size: int) -> None:
    """Torn into segments of 50,000 bytes; before it, behind it and twice in a row there are short events."""
    large = compact(wire.event({"type": "ping", "pad": "x" * size}))
    first, *rest = stream_of(route, ["a", "b"])
    events = [first, large, *rest[:2], large, *rest[2:]]
    body = b"".join(events)
    pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
    one.engine.answer = lambda seen: wire.stream(pieces)
    before = rss_bytes(one.gateway.pid)
    answer = await one.ask(route, "x", stream=True)
    assert answer.end == "chunked"
    same_stream(events, answer.body)
    assert rss_bytes(one.gateway.pid) - before < 16 * MIB


@pytest.mark.parametrize("route", ROUTES)
async def test_c019_an_endless_line_is_told(one: Stage, route: str) -> None:
    first, *rest = stream_of(route, ["a", "b", "c", "d"])
    endless = [b'data: {"pad":"' + b"x" * 65536, *[b"x" * 65536] * 80]
    one.engine.answer = lambda seen: [*wire.stream([first, *rest[:2], *endless], end=False), HANG]
    answer = await one.ask(route, "x", stream=True)
    assert answer.end == "cut_fin" and answer.body.count(b"\n\n") >= 4 and b'"error"' in answer.body[-400:]
    assert route == "messages" or b'"backend_bad_stream"' in answer.body[-400:]


@dataclass(slots=True)
class Rush:
    """A stream of events at a rate far beyond any model's, in batches every 10 ms."""

    events: int
    per_s: int
    cpu_at: list[int] = field(default_factory=list)  # ns of the gateway at each tenth

    def steps(self, pid: int) -> Iterator[Step]:
        yield wire.stream_head()
        batch = b"".join(wire.chunk(text_event(f" w{at % 10}")) for at in range(self.per_s // 100))
        began, batches = time.monotonic(), self.events * 100 // self.per_s
        for at in range(batches):
            if at % (batches // 10) == 0:
                self.cpu_at.append(cpu_ns(pid))
            yield batch
            yield Wait(max(0.0, began + (at + 1) / 100 - time.monotonic()))
        self.cpu_at.append(cpu_ns(pid))
        yield wire.chunk(wire.DONE) + wire.LAST_CHUNK


def rushing(rush: Rush, pid: int) -> Script:
    return lambda seen: rush.steps(pid)


async def counted(client: Connection, mark: bytes) -> int:
    """How often that is in what comes until the last chunk; nothing is kept, because the reader must not be the load."""
    count, tail = 0, b""
    while not tail.endswith(wire.LAST_CHUNK):
        data = tail[-len(mark) + 1 :] + await asyncio.get_running_loop().sock_recv(client.sock, 1 << 18)
        count, tail = count + data.count(mark), data[-len(wire.LAST_CHUNK) :]
    return count


@pytest.mark.serial
@pytest.mark.parametrize("events", [20_000, pytest.param(100_000, marks=pytest.mark.nightly)])
async def test_c019_a_rushing_stream_does_not_hold_up_the_others(one: Stage, events: int) -> None:
    felt = await felt_beside_a_rush(one, events)
    for _ in range(2):  # other work on the machine may spoil a run, a fault spoils all three
        felt = felt and await felt_beside_a_rush(one, events)
    assert felt == {}


async def felt_beside_a_rush(one: Stage, events: int) -> dict[str, tuple[float, float]]:
    """What is over its limit, with the limit; seconds."""
    rush = Rush(events, 10_000)
    one.engine.answer = lambda seen: rush.steps(one.gateway.pid) if b"rush" in seen.body else paced_stream(seen)
    alone = quantile(await delays(one, 20), 0.99)
    before, memory, over = await one.gateway.metrics(), rss_bytes(one.gateway.pid), asyncio.Event()
    beside, probes = asyncio.create_task(delays(one, 20, over)), asyncio.create_task(probed(one, over))
    async with await one.begin("chat", "rush", stream=True) as client:
        assert await counted(client, b"data: {") == events
    over.set()
    found = {"probes": quantile(await probes, 0.99), "beside": quantile(await beside, 0.99)}
    found["lag"] = lag_p99_s(before, await one.gateway.metrics())
    assert rss_bytes(one.gateway.pid) - memory < 16 * MIB
    limits = {"probes": 0.05, "beside": alone * 1.1 + SLACK_S, "lag": 0.05}
    return {name: (value, limits[name]) for name, value in found.items() if value > limits[name]}


@pytest.mark.parametrize("events", [20_000, pytest.param(100_000, marks=pytest.mark.nightly)])
async def test_c019_a_chunk_costs_the_same_however_many_came_before(one: Stage, events: int) -> None:
    """The last three tenths against the first three; the machine's other work may spoil a run, a fault spoils all three."""
    ratios = []
    for _ in range(3):
        rush = Rush(events, 10_000)
        one.engine.answer = rushing(rush, one.gateway.pid)
        async with await one.begin("chat", "rush", stream=True) as client:
            assert await counted(client, b"data: {") == events
        tenths = [b - a for a, b in itertools.pairwise(rush.cpu_at)]
        ratios.append(sum(tenths[-3:]) / sum(tenths[:3]))
        if ratios[-1] <= 1.2:
            return
    raise AssertionError(f"CPU per chunk grows: {ratios}")


# C021


@pytest.mark.serial
@pytest.mark.parametrize("route", ROUTES)
async def test_c021_each_chunk_leaves_as_soon_as_it_has_come(one: Stage, route: str) -> None:
    """50 chunks 10 ms apart; then one chunk and half a second of silence."""
    written: dict[bytes, float] = {}

    def writes(seen: Seen) -> Iterator[Step]:
        events = stream_of(route, [f"word{at:03}" for at in range(50)])
        yield wire.stream_head()
        for event in events:
            written[event] = time.monotonic()
            yield wire.chunk(event)
            yield Wait(0.5 if b"word049" in event else 0.01)
        yield wire.LAST_CHUNK

    one.engine.answer = writes
    async with await one.begin(route, "x", stream=True) as client:
        assert (await client.response()).end == "chunked"
    arrived = [arrival(client, event) - at for event, at in written.items() if event != wire.DONE]
    assert len(arrived) >= 50 and quantile(arrived, 0.98) <= 0.02
    assert len([piece for piece in client.pieces if b"word" in piece.data]) == 50 + (route == "responses")


def arrival(client: Connection, event: bytes) -> float:
    """When that event had come whole."""
    received = b""
    for piece in client.pieces:
        received += piece.data
        if event in received:
            return piece.at
    raise AssertionError(f"{event!r} has not come")


# C023


LARGE = wire.chunk(text_event("y" * 50_000))


def flood(seen: Seen) -> Iterator[Step]:
    """10 MB as fast as it can."""
    head, *rest = wire.stream(stream_of("chat", ["a"]))
    yield head
    yield rest[0]
    yield from itertools.repeat(LARGE, 200)
    yield from rest[1:]


def endless(seen: Seen) -> Iterator[Step]:
    """A flood that no kernel's buffers can swallow: the engine is at it until it is left."""
    head, *rest = wire.stream(stream_of("chat", ["a"]))
    yield head
    yield rest[0]
    yield from itertools.repeat(LARGE)


@pytest.mark.serial
async def test_c023_a_hundred_readers_of_a_byte_a_second_cost_little_and_are_cut_when_they_stall(one: Stage) -> None:
    one.engine.answer = lambda seen: endless(seen) if b"slow" in seen.body else paced_stream(seen)
    alone = quantile(await delays(one, 10), 0.99)
    before, lines = rss_bytes(one.gateway.pid), len(one.gateway.access())
    async with AsyncExitStack() as held:
        slow = [await held.enter_async_context(await connect(one.gateway.port, rcvbuf=4096)) for _ in range(100)]
        for at, client in enumerate(slow):
            await client.send(one.message("chat", f"slow {at}", stream=True))
        reading = [asyncio.create_task(client.read_at(1, 30)) for client in slow]
        try:
            held_up: set[str] = set()  # over time: on a slow machine the first is cut before the last is full
            sizes: list[int] = []

            def all_held_up() -> bool:
                """Seen with bytes that are not read, or already cut as stalled where looking takes longer than that."""
                sizes.append(rss_bytes(one.gateway.pid))
                held_up.update(unread(one))
                return len(held_up) >= 100 or len(stalled(one, lines)) == 100

            await until(all_held_up, 40, "the engine is read on")
            sizes.append(rss_bytes(one.gateway.pid))
            assert max(sizes) - before < 64 * MIB
            beside: list[float] = []
            while not beside or (len(beside) < 3 and beside[-1] > alone * 1.1 + SLACK_S and not stalled(one, lines)):
                beside.append(quantile(await delays(one, 10), 0.99))  # again: other work on the machine may spoil it
            assert beside[-1] <= alone * 1.1 + SLACK_S, beside
            await until(lambda: len(stalled(one, lines)) == 100, STALL_S * 3 + 10, "stalled readers are not cut")
            assert set(stalled(one, lines)) == {499}
            await until(lambda: len(one.engine.aborted()) == 100, 1, "the engine goes on for readers that were cut")
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)


def stalled(stage: Stage, lines: int) -> list[int]:
    """Statuses of those that the log calls stalled since it had so many lines."""
    return [line["status"] for line in stage.gateway.access()[lines:] if line["reason"] == "client_stalled"]


def unread(stage: Stage) -> set[str]:
    """Connections of the gateway to the engine with bytes on them that it does not read: the kernel knows."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        row[1]
        for row in rows
        if int(row[2].rpartition(":")[2], 16) == stage.engine.port and int(row[4].rpartition(":")[2], 16) > 0
    }


async def test_c023_a_reader_that_pauses_gets_every_byte(one: Stage) -> None:
    """A pause of 1 s (10 s scaled) in the middle, by a client whose buffers are small and by one whose are large."""
    one.engine.answer = flood
    for rcvbuf in (4096, 0):
        async with await connect(one.gateway.port, rcvbuf=rcvbuf) as client:
            await client.send(one.message("chat", "pauses", stream=True))
            await client.head()
            await asyncio.sleep(STALL_S / 2)
            answer = await client.response()
        assert answer.end == "chunked" and answer.body.endswith(b"\n\n" + wire.DONE)
        assert answer.body.count(b"y" * 50_000) == 200


async def test_c023_a_slow_reader_that_reads_on_is_not_cut(one: Stage) -> None:
    """300 kB/s for twice the stall time: progress is what counts, not the size of the backlog."""
    one.engine.answer = flood
    async with await connect(one.gateway.port, rcvbuf=16384) as client:
        await client.send(one.message("chat", "slow but steady", stream=True))
        assert await client.read_at(300_000, STALL_S * 2) > 300_000 and client.end == "open"
        answer = await client.response()
    assert answer.end == "chunked" and answer.body.endswith(wire.DONE)


# C024


@pytest.mark.serial
@pytest.mark.parametrize("streams", [300, pytest.param(5_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])])
async def test_c024_streams_aborted_at_random_leave_nothing_behind(one: Stage, streams: int, seed: int) -> None:
    """Each of 200 KB, half of them left by their client; `holding` looks for descriptors, tasks and slots."""
    r = random.Random(seed)
    event = wire.chunk(text_event("z" * 1900))

    def answer(seen: Seen) -> Iterator[Step]:
        head, *rest = wire.stream(stream_of("chat", ["a"]))
        yield from (head, rest[0])
        for at in range(100):
            yield event
            if at % 10 == 0:
                yield Wait(0.002)
        yield from rest[1:] if r.random() < 0.9 else [FIN]

    async def go(at: int, leaves_at: int | None) -> None:
        async with await one.begin("chat", f"stream {at}", stream=True) as client:
            if leaves_at is None:
                await client.response()
                return
            came = 0
            while came < leaves_at and (data := await client.read()):
                came += len(data)
            if at % 4 == 1:
                client.reset()

    one.engine.answer = answer
    sizes = [r.randrange(100, 200_000) if at % 2 else None for at in range(streams)]
    await gathered([go(at, size) for at, size in enumerate(sizes[:60])], at_once=30)
    before = rss_bytes(one.gateway.pid)
    await gathered([go(at, size) for at, size in enumerate(sizes)], at_once=30)
    await until_async(lambda: idle(one), 5, "something is left")
    assert rss_bytes(one.gateway.pid) - before < 10 * MIB


async def idle(stage: Stage) -> bool:
    metrics = await stage.gateway.metrics()
    return metrics.sum("forebay_requests_inflight") == 0 and metrics.sum("forebay_attempts_open") == 0
