"""T8: whatever becomes of Redis, requests are served, limits hold nearly, and all is well soon after (faults.md 4; C054)."""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.kit.fault_proxy import FaultProxy
from tests.kit.fleet import QUICK, SALT, Fleet, fleet
from tests.kit.gateway import Gateway, config
from tests.kit.processes import until_async
from tests.kit.redis import RedisServer, needs_redis
from tests.kit.sizes import sized
from tests.kit.sockets import rss_bytes
from tests.kit.stage import paced, quantile
from tests.kit.tenants import tenant

pytestmark = [needs_redis, pytest.mark.nightly, pytest.mark.timeout(600)]

SECONDS = sized(8, 60)
RATE_PER_S, SMALL_PER_S, BESIDE_PER_S = 120, 40, 40  # 200 in all
SMALL_RPM = 600
PAUSE_S = 36.0  # the longest between two tries, with its jitter
WELL_S = 5.0
SEEN_S = 5.0  # in which the trouble is seen: five calls in a row
BESIDE = 2  # the number of a replica that is none, after two that are
TICK = 100  # of CPU time in a second


@dataclass(slots=True)
class Seen:
    """What one stretch of load saw."""

    took: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)  # by a gateway without a store: what the machine itself does
    acme: Counter[int] = field(default_factory=Counter)
    small: Counter[int] = field(default_factory=Counter)
    cpu_s: float = 0.0

    @property
    def p99_s(self) -> float:
        return quantile(self.took, 0.99)

    @property
    def beside_p99_s(self) -> float:
        return quantile(self.beside, 0.99)

    @property
    def cpu_per_request_s(self) -> float:
        return self.cpu_s / (self.acme.total() + self.small.total())


def cpu_s(made: Fleet) -> float:
    """Of all replicas so far."""
    stats = [Path(f"/proc/{each.pid}/stat").read_text().rpartition(") ")[2].split() for each in made.replicas[:BESIDE]]
    return sum(int(one[11]) + int(one[12]) for one in stats) / TICK


async def load(made: Fleet, seconds: float) -> Seen:
    """On both replicas: a tenant far below its limit, and one that asks for four times its own. Beside them one without."""
    seen, before_s = Seen(), cpu_s(made)

    async def one(number: int, who: str, found: Counter[int]) -> None:
        began_s = time.monotonic()
        found[(await made.ask(number % 2, who)).status] += 1
        if who == "acme":
            seen.took.append(time.monotonic() - began_s)

    async def one_beside() -> None:
        began_s = time.monotonic()
        assert (await made.ask(BESIDE, "acme")).status == 200
        seen.beside.append(time.monotonic() - began_s)

    async def stretch_beside() -> None:
        async with asyncio.TaskGroup() as group:
            async for _ in paced(BESIDE_PER_S, seconds):
                group.create_task(one_beside())

    async def stretch(who: str, per_s: int, found: Counter[int]) -> None:
        async with asyncio.TaskGroup() as group:
            async for number in paced(per_s, seconds):
                group.create_task(one(number, who, found))

    await asyncio.gather(
        stretch("acme", RATE_PER_S, seen.acme), stretch("small", SMALL_PER_S, seen.small), stretch_beside()
    )
    seen.cpu_s = cpu_s(made) - before_s
    return seen


@dataclass(slots=True)
class Store:
    """Redis, its replica, and the proxy through which the gateways reach one of them."""

    main: RedisServer
    other: RedisServer
    proxy: FaultProxy


@asynccontextmanager
async def stopped(store: Store) -> AsyncIterator[None]:
    """It ends in order, and a new one with nothing in it takes its place."""
    await store.main.process.stop()
    yield
    await store.main.start()


@asynccontextmanager
async def killed(store: Store) -> AsyncIterator[None]:
    store.main.process.kill()
    yield
    await store.main.start()


@asynccontextmanager
async def frozen(store: Store) -> AsyncIterator[None]:
    store.main.process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        store.main.process.signal(signal.SIGCONT)


@asynccontextmanager
async def slow(store: Store) -> AsyncIterator[None]:
    store.proxy.down.latency_s = 0.2
    yield
    store.proxy.down.latency_s = 0.0


@asynccontextmanager
async def failed_over(store: Store) -> AsyncIterator[None]:
    """The first one dies; its replica is promoted in its place."""
    store.main.process.kill()
    yield
    promoted = Redis.from_url(store.other.url)
    await promoted.execute_command("REPLICAOF", "NO", "ONE")
    await promoted.aclose()
    store.proxy.aim(store.other.port)


TROUBLES: dict[str, Callable[[Store], AbstractAsyncContextManager[None]]] = {
    "stop": stopped, "freeze": frozen, "slow": slow, "kill": killed, "failover": failed_over,
}  # fmt: skip


@asynccontextmanager
async def beside(made: Fleet, directory: Path, tenants: list[dict[str, Any]]) -> AsyncIterator[Fleet]:
    """The same, and one more gateway in front of the same engine that knows no store."""
    facts = config([made.engine.url], isolation=SALT, timeouts={"scale": 1})
    async with Gateway(facts, directory, name="beside", tenants=tenants) as alone:
        yield replace(made, replicas=[*made.replicas, alone], idle=made.idle)


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_c052_whatever_becomes_of_redis_nobody_notices_much(tmp_path: Path, trouble: str) -> None:
    """Added to the 99th percentile is what a gateway without a store, beside them and at the same time, does not see."""
    folders = [tmp_path / name for name in ("main", "other", "fleet", "beside")]
    for folder in folders:
        folder.mkdir()
    tenants = [tenant("acme", limits={"rpm": 60_000}), tenant("small", limits={"rpm": SMALL_RPM, "burst_s": 1})]
    async with RedisServer(folders[0]) as main, RedisServer(folders[1]) as other, FaultProxy(main.port) as proxy:
        follower = Redis.from_url(other.url)
        await follower.execute_command("REPLICAOF", "127.0.0.1", str(main.port))
        await follower.aclose()
        reached = {"url": f"redis://127.0.0.1:{proxy.port}/0", **QUICK}
        async with fleet(folders[2], tenants, redis=reached) as pair, beside(pair, folders[3], tenants) as made:
            await both_know(made)
            usual = await load(made, max(10, SECONDS // 2))
            rss = sum(rss_bytes(each.pid) for each in pair.replicas)
            began = datetime.now(UTC)
            async with TROUBLES[trouble](Store(main, other, proxy)):
                broken = await load(made, SECONDS)
                assert await made.sum("forebay_store_degraded") == 2
                ended = datetime.now(UTC)
            began_s = time.monotonic()
            await healed(made)
            print(f"{trouble}: healed after {time.monotonic() - began_s:.1f} s; p99 {usual.p99_s:.4f} -> {broken.p99_s:.4f} s,"
                  f" beside {usual.beside_p99_s:.4f} -> {broken.beside_p99_s:.4f} s;"
                  f" CPU {usual.cpu_per_request_s * 1e3:.2f} -> {broken.cpu_per_request_s * 1e3:.2f} ms")  # fmt: skip
            after = await load(made, 5)
            for seen in (usual, broken, after):
                assert set(seen.acme) == {200} and set(seen.small) <= {200, 429}
            noise_s = max(0.0, broken.beside_p99_s - usual.beside_p99_s)
            assert broken.p99_s <= usual.p99_s + 0.060 + noise_s
            assert broken.small[200] <= 1.1 * SMALL_RPM * SECONDS / 60 + SMALL_RPM / 60
            assert broken.cpu_per_request_s <= 1.3 * usual.cpu_per_request_s
            assert sum(rss_bytes(each.pid) for each in pair.replicas) <= 1.2 * rss
            for replica in pair.replicas:
                one_line_for_each_change(replica, began, ended)


def one_line_for_each_change(replica: Gateway, began: datetime, ended: datetime) -> None:
    """Lost and back take turns, and while the trouble lasts nothing is said once it is seen.

    A machine that stands still for a quarter of a second loses the store before the trouble or after it, too: five calls
    of 50 ms in a row. That is one more change, with its one line, and over a second or two later.
    """
    said = [json.loads(line) for line in replica.stderr().splitlines() if b'"event":"store ' in line]
    assert [each["event"] for each in said] == ["store lost", "store back"] * (len(said) // 2)
    stamps = [datetime.fromisoformat(each["ts"]) for each in said]
    assert sum(at < ended for at in stamps) % 2 == 1
    assert not [at for at in stamps if began + timedelta(seconds=SEEN_S) < at < ended]


async def both_know(made: Fleet) -> None:
    async def known() -> bool:
        return await made.sum("forebay_store_replicas") == 4

    await until_async(known, 10.0, "replicas do not know of each other")


async def healed(made: Fleet) -> None:
    """Well within five seconds of the first try that finds it well."""

    async def good() -> bool:
        return await made.sum("forebay_store_degraded") == 0

    await until_async(good, PAUSE_S + WELL_S, "the store is not back")
