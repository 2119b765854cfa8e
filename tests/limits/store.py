"""The store that replicas share: how long it is waited for, how often it is asked, how long it keeps what is leased."""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.kit import wire
from tests.kit.raw_client import exchange
from tests.kit.redis import RedisServer, needs_redis
from tests.kit.script_engine import HANG
from tests.kit.tenants import bearer, tenant
from tests.limits.given import Served, served, within
from tests.limits.table import holds
from tests.limits.wire import soon

RATES = {"rpm": 60_000}


@asynccontextmanager
async def replica(
    directory: Path, limits: dict[str, Any] = RATES, **redis: Any
) -> AsyncIterator[tuple[Served, RedisServer]]:
    """One replica over a Redis of its own, both of them in step."""
    if needs_redis.args[0]:
        pytest.skip(str(needs_redis.kwargs["reason"]))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(RedisServer(directory))
        acme = tenant("acme", limits=limits)
        one = await stack.enter_async_context(served(directory, [acme], redis={"url": server.url, **redis}))
        await soon(lambda: calls(one, "good") > 0, 15, "the store answers")
        yield one, server


def calls(one: Served, result: str) -> int:
    syncer = one.gateway._syncer
    return sum(count for (_, found), count in syncer.calls.items() if found == result) if syncer else 0


def ask(one: Served) -> Any:
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5}
    return exchange(one.port, wire.request("/v1/completions", body, extra=[bearer("acme")]), timeout_s=60)


@holds("redis.timeout_s", instead=1)
async def timeout(directory: Path) -> None:
    """Of a frozen store five calls fail in much less than five seconds."""
    async with replica(directory, timeout_s=0.2, sync_s=0.05) as (one, server):
        server.process.signal(signal.SIGSTOP)
        try:
            await soon(lambda: calls(one, "failed") >= 5, 4, "calls fail in time")
        finally:
            server.process.signal(signal.SIGCONT)


@holds("redis.connect_timeout_s", instead=1)
async def connect_timeout(directory: Path) -> None:
    with ExitStack() as stack:
        jammed = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for filler in [stack.enter_context(socket.socket()) for _ in range(4)]:
            filler.setblocking(False)
            filler.connect_ex(jammed.getsockname())
        url = f"redis://127.0.0.1:{jammed.getsockname()[1]}"
        redis = {"url": url, "connect_timeout_s": 0.2, "timeout_s": 1, "sync_s": 0.05}
        async with served(directory, [tenant("acme", limits=RATES)], redis=redis) as one:
            await soon(lambda: calls(one, "failed") >= 5, 4, "connecting fails in time")


@holds("redis.sync_s", instead=5)
async def period(directory: Path) -> None:
    async with replica(directory, sync_s=0.05, lease_s=200) as (one, _):
        assert (await within(5, ask(one), "an answer")).status == 200
        before = calls(one, "good")
        await soon(lambda: calls(one, "good") >= before + 4, 3, "it tells what was used")


@holds("redis.lease_s")
async def lease(directory: Path) -> None:
    """What a replica holds is nobody's so long after its last word."""
    async with replica(directory, {"max_concurrency": 5}, lease_s=5) as (one, server):
        one.engine.answer = lambda seen: [HANG]
        waits = asyncio.create_task(ask(one))
        client = Redis.from_url(server.url)
        leased: dict[bytes, bytes] = {}
        began_s = time.monotonic()
        while not leased and time.monotonic() < began_s + 5:
            leased = await client.hgetall("fb:{t:acme}:s:tenant")
            await asyncio.sleep(0.05)
        seconds, micros = await client.time()
        await client.aclose()
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert leased
        until_us = [int(held.split()[2]) for held in leased.values()]
        assert all(each - (seconds * 1_000_000 + micros) <= 5_100_000 for each in until_us)


@holds("redis.expected_replicas")
async def expected_replicas(directory: Path) -> None:
    """Where nobody has told how many there are, each takes its part of what is expected."""
    redis = {"url": f"unix://{directory}/none", "expected_replicas": 4}
    async with served(directory, [tenant("acme", limits={"rpm": 20})], redis=redis) as one:
        statuses = [(await within(5, ask(one), "an answer")).status for _ in range(8)]
        assert statuses == [200] * 5 + [429] * 3
