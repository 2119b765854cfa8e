"""T4: a rolling restart loses nothing: nobody refused, no stream cut that could end, nothing run twice (faults.md 4; http.md 12).

The clients do what a balancer does: they ask `/readyz` and send new requests to a gateway that is ready.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.gateway import ADMIN_TOKEN, Gateway, config
from tests.kit.http_reader import Response
from tests.kit.invariants import conserved
from tests.kit.processes import until, until_async
from tests.kit.raw_client import Connection, connect
from tests.kit.script_engine import HANG, ScriptEngine, Seen, Step, Wait
from tests.kit.sizes import patience, sized
from tests.kit.stage import error_of, paced

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.serial, pytest.mark.timeout(patience(120, 600))]

SCALE = 0.1
GRACE_S = 3.0
LAG_S = 0.5
RESTARTS = sized(2, 20)
STREAMS = 100
RATE_PER_S = 50


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines() -> AsyncIterator[list[ScriptEngine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptEngine(slow_stream)) for _ in range(2)]


def slow_stream(seen: Seen) -> list[Step]:
    """An echo; a stream takes about 1.5 s, so that many end after the drain began."""
    steps = wire.echo(seen)
    if not seen.json.get("stream"):
        return steps
    return [step for one in steps for step in (one, Wait(0.18))][:-1]


def gateway(engines: list[ScriptEngine], directory: Path, name: str, **admission: Any) -> Gateway:
    bounds = {"drain_lag_s": LAG_S / SCALE, "drain_grace_s": GRACE_S / SCALE, **admission}
    settings = config(
        [one.url for one in engines], endpoint={"max_seqs": 256}, admission=bounds, timeouts={"scale": SCALE}
    )
    return Gateway(settings, directory, name=name)


@dataclass(slots=True)
class Balancer:
    """Sends each request to a ready gateway. `ready` is what the last look at `/readyz` said."""

    ready: list[Gateway] = field(default_factory=list)
    known: list[Gateway] = field(default_factory=list)
    results: list[tuple[str, Response]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def look(self) -> None:
        while True:
            self.ready = [one for one in list(self.known) if await is_ready(one)]
            await asyncio.sleep(0.05)

    async def send(self, text: str, *, stream: bool) -> None:
        """One request on a connection of its own."""
        message = wire.request("/v1/chat/completions", wire.request_body("chat", text, stream=stream))
        try:
            async with await connect(self.ready[-1].port) as client:
                await client.send(message)
                self.results.append((text, await client.response(20)))
        except (OSError, IndexError) as error:
            self.refused.append(f"{text}: {error!r}")

    async def keep(self, name: str, until_: asyncio.Event) -> None:
        """Requests on a connection that is kept as long as the gateway keeps it."""
        client: Connection | None = None
        number = 0
        while not until_.is_set():
            text = f"{name} {number}"
            number += 1
            try:
                client = client or await connect(self.ready[-1].port)
                await client.send(wire.request("/v1/chat/completions", wire.request_body("chat", text)))
                response = await client.response(20)
            except (OSError, IndexError) as error:
                self.refused.append(f"{text}: {error!r}")
                continue
            self.results.append((text, response))
            if response.header("connection") == "close" or client.end != "open":
                client.close()
                client = None
            await asyncio.sleep(0.03)
        if client is not None:
            client.close()


async def is_ready(gateway: Gateway) -> bool:
    try:
        return (await gateway.get("/readyz")).status == 200
    except OSError:
        return False


async def steady(balancer: Balancer, stop: asyncio.Event) -> None:
    """The load that goes on through every restart."""
    async with asyncio.TaskGroup() as group:
        for at in range(10):
            group.create_task(balancer.keep(f"kept {at}", stop))
        async for at in paced(RATE_PER_S, 600):
            if stop.is_set():
                return
            group.create_task(balancer.send(f"paced {at}", stream=False))


async def test_a_rolling_restart_loses_nothing(engines: list[ScriptEngine], tmp_path: Path) -> None:
    balancer, stop = Balancer(), asyncio.Event()
    current = gateway(engines, tmp_path, "g0")
    await current.start()
    balancer.known.append(current)
    looking = asyncio.create_task(balancer.look())
    await until(lambda: bool(balancer.ready), 5, "not ready")
    load = asyncio.create_task(steady(balancer, stop))
    for restart in range(RESTARTS):
        streams = [asyncio.create_task(balancer.send(f"stream {restart} {at}", stream=True)) for at in range(STREAMS)]
        following = gateway(engines, tmp_path, f"g{restart + 1}")
        await following.start()
        balancer.known.append(following)
        await until(lambda new=following: new in balancer.ready, 5, "not ready")  # type: ignore[misc]
        streams += [asyncio.create_task(balancer.send(f"late {restart} {at}", stream=True)) for at in range(STREAMS)]
        await ended_well(current)
        balancer.known.remove(current)
        await asyncio.gather(*streams)
        current = following
    stop.set()
    await load
    looking.cancel()
    await ended_well(current)
    nothing_lost(balancer, engines)


async def ended_well(gateway: Gateway) -> None:
    """SIGTERM: it keeps its counts to the end, exits 0 in time, and says nothing it should not."""
    began = time.monotonic()
    before = await gateway.metrics()
    assert gateway.child is not None
    gateway.child.signal(SIGTERM)
    assert await gateway.child.wait(GRACE_S + 2) == 0
    assert time.monotonic() - began <= GRACE_S + 2
    assert conserved(before) == [] and gateway.noise() == []


def nothing_lost(balancer: Balancer, engines: list[ScriptEngine]) -> None:
    assert balancer.refused == []
    bad = [
        (text, one.status, one.end)
        for text, one in balancer.results
        if one.status != 200 or not one.clean or text.encode() not in one.body
    ]
    assert bad == []
    seen = Counter(wire.prompt_of(one.json) for engine in engines for one in engine.seen)
    assert set(seen.values()) == {1} and len(seen) == len(balancer.results)
    assert len(balancer.results) > 2 * RESTARTS * STREAMS + 50


@pytest_asyncio.fixture(loop_scope="module")
async def short(engines: list[ScriptEngine], tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway with a grace of 1 s, of which what is queued gets half."""
    for engine in engines:
        engine.clear()
        engine.answer = slow_stream
    made = gateway(engines[:1], tmp_path, "short", drain_lag_s=1, drain_grace_s=10)
    made.settings["endpoints"][0]["max_seqs"] = 1
    await made.start()
    yield made
    assert made.child is not None
    made.child.kill()
    assert made.noise() == []


async def begin(gateway: Gateway, text: str, *, stream: bool = True) -> Connection:
    client = await connect(gateway.port)
    await client.send(wire.request("/v1/chat/completions", wire.request_body("chat", text, stream=stream)))
    return client


def endless(seen: Seen) -> list[Step]:
    return [*wire.stream(wire.events("chat", ["a", "b"])[:3], end=False), HANG]


@pytest.mark.parametrize("by", ["signal", "admin"])
async def test_what_cannot_end_is_told_so_and_what_waits_too(
    engines: list[ScriptEngine], short: Gateway, by: str
) -> None:
    engines[0].answer = endless
    running = await begin(short, "endless")
    await running.head()
    queued = await begin(short, "queued")
    kept = await connect(short.port)
    began = time.monotonic()
    await drain(short, by)
    await until_async(lambda: not_ready(short), 1, "still ready")
    waiting = await queued.response(5)
    assert (waiting.status, error_of(waiting)["code"]) == (503, "draining")
    assert 0.3 <= time.monotonic() - began <= 1.0
    cut = await running.response(5)
    assert cut.end == "cut_fin" and cut.body.endswith(b"\n\n") and b'"code":"gateway_shutdown"' in cut.body
    assert short.child is not None and await short.child.wait(3) == 0
    assert time.monotonic() - began <= 1.0 + 2
    assert len(engines[0].seen) == 1
    for client in (running, queued, kept):
        client.close()


async def drain(gateway: Gateway, by: str) -> None:
    if by == "signal":
        assert gateway.child is not None
        gateway.child.signal(SIGTERM)
        return
    answer = await gateway.get("/admin/v1/drain", port=gateway.admin_port, token=ADMIN_TOKEN, method="POST")
    assert answer.status < 300


async def not_ready(gateway: Gateway) -> bool:
    return (await gateway.get("/readyz", port=gateway.admin_port)).status == 503


async def test_during_the_lag_new_connections_are_served_and_told_to_close(short: Gateway) -> None:
    assert short.child is not None
    short.child.signal(SIGTERM)
    await until_async(lambda: not_ready(short), 1, "still ready")
    client = await begin(short, "during the lag", stream=False)
    response = await client.response(5)
    assert (response.status, response.header("connection")) == (200, "close")
    client.close()
    assert await short.child.wait(3) == 0


async def test_a_second_signal_ends_it_now(engines: list[ScriptEngine], short: Gateway) -> None:
    engines[0].answer = endless
    running = await begin(short, "endless")
    await running.head()
    assert short.child is not None
    short.child.signal(SIGTERM)
    await until_async(lambda: not_ready(short), 1, "still ready")
    began = time.monotonic()
    short.child.signal(SIGTERM)
    cut = await running.response(5)
    assert b'"code":"gateway_shutdown"' in cut.body and not cut.clean
    assert await short.child.wait(3) == 0
    assert time.monotonic() - began < 0.7
    running.close()
