"""The store in Redis, against a real redis-server: its scripts, its keys, and what it does when Redis does not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from gateway.store import StoreError
from gateway.store.redis import LEND, Place, RedisStore, key_of
from policies.leasing import Ask
from policies.sharing import ShareAsk
from policies.state.meters import MICRO, Bucket, Purse, Rule, Wall
from policies.state.slotleases import SlotAsk
from policies.types import Budget
from tests.kit.fault_proxy import FaultProxy
from tests.kit.processes import free_ports
from tests.kit.redis import RedisServer, needs_redis

pytestmark = needs_redis
RULE = Rule("tenant", "acme", "", "tpm")


def ask(capacity: int = 100, per_minute: int = 100, **more: Any) -> Ask:
    facts = {"scope": "tenant", "tenant": "acme", "part": "", "metric": "tpm", "period": 0, "ttl_s": 120}
    amounts = {
        name: value * MICRO if name in ("back", "owed", "have", "need", "wanted") else value
        for name, value in more.items()
    }
    return Ask(**{**facts, "capacity": capacity, "per_minute": per_minute, **amounts})


def place(url: str, timeout_s: float = 1.0) -> Place:
    return Place(url=url, prefix="fb", timeout_s=timeout_s, connect_timeout_s=1.0)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path) as redis:
        yield redis


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    made = RedisStore(place(server.url), "one")
    yield made
    await made.close()


async def lend(store: RedisStore, replicas: int = 1, **facts: Any) -> float:
    (lent,) = await store.lend([ask(**facts)], replicas)
    return lent.granted / MICRO


async def test_what_was_granted_to_one_is_not_there_for_another(server: RedisServer, store: RedisStore) -> None:
    other = RedisStore(place(server.url), "two")
    assert await lend(store, need=40, wanted=40) == 40
    assert await lend(other, need=40, wanted=40) == 40
    assert await lend(other, need=40, wanted=40) == 0
    assert await lend(store, back=40) == 0
    assert await lend(other, need=40, wanted=40) == 40
    await other.close()


async def test_no_replica_is_lent_more_than_its_part_of_what_is_left_unless_one_request_needs_it(
    store: RedisStore,
) -> None:
    assert await lend(store, replicas=5, capacity=1000, per_minute=1, wanted=1000) == 100
    assert await lend(store, replicas=5, capacity=1000, per_minute=1, need=600, wanted=1000) == 600
    assert await lend(store, replicas=5, capacity=1000, per_minute=1, have=50, wanted=1000) == 0  # 350 / 10 < 50


async def test_an_empty_limit_says_how_long_to_wait(store: RedisStore) -> None:
    await lend(store, need=100, wanted=100)
    (lent,) = await store.lend([ask(need=20 * 1, wanted=20)], 1)
    assert lent.granted == 0
    assert lent.wait_s == pytest.approx(12.0, abs=0.1)
    assert lent.used == pytest.approx(100 * MICRO, rel=0.01)


async def test_debt_is_held_to_twice_the_limit_and_the_rest_is_counted(store: RedisStore) -> None:
    (lent,) = await store.lend([ask(owed=500)], 1)
    assert (lent.used, lent.written_off) == (200 * MICRO, 300 * MICRO)


async def test_a_budget_is_new_in_each_period_and_who_is_late_gets_nothing(store: RedisStore) -> None:
    day = {"per_minute": 0, "capacity": 10**15}
    assert await lend(store, need=10**15 - 1, wanted=10**15, period=86_400, **day) == 10**15 - 1
    assert await lend(store, need=2, wanted=2, period=86_400, **day) == 0
    assert await lend(store, need=2, wanted=2, period=172_800, **day) == 2
    assert await lend(store, need=2, wanted=2, period=86_400, **day) == 0


async def test_a_budget_whose_periods_are_other_ones_now_is_another_budget(store: RedisStore) -> None:
    """A month begins before the day that is kept: who asks for one would be late until the month ends."""
    budget = {"per_minute": 0, "capacity": 10, "need": 2, "wanted": 2}
    assert await lend(store, period=20 * 86_400, every="day", **budget) == 2
    assert await lend(store, period=0, every="month", **budget) == 2


async def test_limits_of_one_owner_are_asked_for_together(store: RedisStore) -> None:
    lent = await store.lend([ask(need=1, wanted=2), ask(metric="rpm", capacity=5, need=9, wanted=9)], 1)
    assert [each.granted for each in lent] == [2 * MICRO, 0]


async def test_what_redis_forgot_begins_at_what_replicas_still_know(server: RedisServer, store: RedisStore) -> None:
    other = RedisStore(place(server.url), "two")
    client = Redis.from_url(server.url)
    assert await lend(other, need=10, wanted=10) == 10
    assert await lend(store, need=70, wanted=70) == 70
    await client.flushall()
    assert await lend(other, need=50, wanted=50) == 50  # it knows of 10 only
    assert await lend(store, need=30, wanted=30) == 0  # 80 were used: that is more
    await asyncio.gather(client.aclose(), other.close())


async def test_replicas_are_counted_while_they_live(server: RedisServer, store: RedisStore) -> None:
    brief = RedisStore(Place(url=server.url, prefix="fb", timeout_s=1.0, connect_timeout_s=1.0, scale=0.01), "two")
    assert (await store.beat()).replicas == 1
    assert (await brief.beat()).replicas == 2
    await asyncio.sleep(0.15)
    assert (await store.beat()).replicas == 1
    assert (await brief.beat()).replicas == 2
    assert (await brief.beat(leaving=True)).replicas == 1
    await brief.close()


async def test_row_36_and_c054_scripts_work_where_script_is_refused(tmp_path: Path) -> None:
    async with RedisServer(tmp_path, "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-script") as redis:
        store = RedisStore(place(redis.url), "one")
        assert await lend(store, need=1, wanted=1) == 1
        await store.close()


async def test_row_36_and_c054_scripts_work_after_a_flush(server: RedisServer, store: RedisStore) -> None:
    client = Redis.from_url(server.url)
    for _ in range(2):
        assert await lend(store, need=1, wanted=1) == 1
        await client.script_flush()
    await client.aclose()


def test_row_36_and_c054_all_keys_of_a_call_are_in_one_slot_whatever_their_names_are(seed: int) -> None:
    random = Random(seed)
    for _ in range(1_000):
        name = "".join(random.choice("ab{}:.%/") for _ in range(random.randint(1, 12)))
        tenant = {"scope": "tenant_model", "part": name}
        keys = [key_of("fb", ask(**tenant, metric=metric)) for metric in ("rpm", "tpm")]
        keys.append(key_of("fb", ask(scope="key", part="k1", metric="rpm")))
        assert len({key_slot(key.encode()) for key in keys}) == 1
        shared = [key_of("fb", ask(scope="model", tenant="", part=name, metric=metric)) for metric in ("rpm", "tpm")]
        assert len({key_slot(key.encode()) for key in shared}) == 1


async def test_a_cluster_takes_them_and_refuses_keys_of_two_owners(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_ports(1)[0]))
    async with redis:
        client = Redis.from_url(redis.url)
        await client.execute_command("CLUSTER ADDSLOTSRANGE 0 16383")
        store = RedisStore(place(redis.url), "one")
        for _ in range(100):
            try:
                lent = await store.lend([ask(need=1, wanted=1), ask(metric="rpm", need=1, wanted=1)], 1)
                break
            except StoreError:  # it takes a moment to find that all slots are served
                await asyncio.sleep(0.05)
        assert [each.granted for each in lent] == [MICRO, MICRO]
        with pytest.raises(StoreError, match="same slot"):
            await store.lend([ask(), ask(tenant="beta")], 1)
        await asyncio.gather(client.aclose(), store.close())


async def test_no_redis_is_an_error_at_once_and_a_frozen_one_in_time(server: RedisServer, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    nobody = RedisStore(place(f"unix://{tmp_path}/none"), "one")
    with pytest.raises(StoreError):
        await nobody.beat()
    store = RedisStore(place(server.url, timeout_s=0.05), "one")
    await store.beat()
    server.process.signal(__import__("signal").SIGSTOP)
    for _ in range(2):  # on a connection that was there, and on a new one
        began_s = loop.time()
        with pytest.raises(StoreError):
            await store.beat()
        assert loop.time() - began_s < 0.5
    server.process.signal(__import__("signal").SIGCONT)
    assert (await store.beat()).replicas == 1
    await asyncio.gather(nobody.close(), store.close())


async def test_other_timeouts_hold_from_the_next_call_on_and_what_was_lent_stays(server: RedisServer) -> None:
    async with FaultProxy(server.port) as proxy:
        store = RedisStore(place(f"redis://127.0.0.1:{proxy.port}/0", timeout_s=0.2), "one")
        assert await lend(store, per_minute=1, wanted=40) == 40
        proxy.down.latency_s = 0.6
        with pytest.raises(StoreError):
            await store.beat()
        store.wait_at_most(4.0, 4.0)
        assert (await store.beat()).replicas == 1
        assert int(await lend(store, per_minute=1, wanted=100)) == 30  # half of what is left
        store.wait_at_most(0.2, 4.0)
        with pytest.raises(StoreError):
            await store.beat()
        await store.close()


async def test_a_server_that_has_become_a_replica_is_asked_once_and_then_the_one_that_is_reached_now(
    tmp_path: Path, server: RedisServer
) -> None:
    async with RedisServer(tmp_path) as promoted, FaultProxy(server.port) as proxy:
        store = RedisStore(place(f"redis://127.0.0.1:{proxy.port}/0"), "one")
        assert (await store.beat()).replicas == 1
        proxy.lead(promoted.port)
        client = Redis(port=server.port)
        await client.execute_command("REPLICAOF", "127.0.0.1", str(promoted.port))
        with pytest.raises(StoreError, match="ReadOnly"):
            await store.beat()
        assert (await store.beat()).replicas == 1
        assert await lend(store, wanted=40) == 40
        await client.aclose()
        await store.close()


FULL_SIZE = pytest.param(10_000, 0.02, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])  # 0 to 40 ms


@pytest.mark.parametrize(("calls", "delay_s"), [(2_000, 0.002), FULL_SIZE])
async def test_row_37_and_c056_calls_cut_short_at_any_instant_never_give_their_reply_to_another(
    tmp_path: Path, seed: int, calls: int, delay_s: float
) -> None:
    """redis-py#2624: each call asks for an amount of its own and must get just that."""
    random = Random(seed)
    mixed = cancelled = 0
    async with RedisServer(tmp_path) as redis, FaultProxy(redis.port) as proxy:
        proxy.down.latency_s = proxy.down.jitter_s = delay_s
        store = RedisStore(place(f"redis://127.0.0.1:{proxy.port}/0"), "one")

        async def one(number: int) -> None:
            nonlocal mixed, cancelled
            facts = {"tenant": f"t{number}", "capacity": 10**9, "need": number, "wanted": number}
            try:
                async with asyncio.timeout(random.uniform(0.0, 6 * delay_s)):
                    mixed += await lend(store, **facts) != number
            except TimeoutError:
                cancelled += 1
            except StoreError:
                pass

        for first in range(1, calls, 8):
            await asyncio.gather(*(one(number) for number in range(first, first + 8)))
        await store.close()
    assert mixed == 0
    assert 0.1 * calls < cancelled < 0.95 * calls


@pytest.mark.parametrize("kind", ["rate", "budget"])
async def test_the_script_and_the_core_count_alike(server: RedisServer, kind: str, seed: int) -> None:
    """10,000 random sequences in all. The time is the test's: it stands in the place of Redis's own."""
    random = Random(seed)
    text = LEND.text.replace("redis.call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}")
    assert text != LEND.text
    client = Redis.from_url(server.url)
    for _ in range(10):
        expected: list[tuple[int, int, bool]] = []
        pipe = client.pipeline(transaction=False)
        digest = await client.script_load(text)
        for number in range(500):
            _sequence(random, kind, pipe, expected, f"{{x}}:{random.random()}:{number}", digest)
        for found, (granted, used, fitted) in zip(await pipe.execute(), expected, strict=True):
            told = [int(part) for part in found]
            assert (told[0] * MICRO + told[1], told[2] * MICRO + told[3]) == (granted, used)
            assert fitted or told[4] != 0
    await client.aclose()


def _sequence(random: Random, kind: str, pipe: Any, expected: list[Any], key: str, digest: str) -> None:
    per_minute, now_us = 0, 1_700_000_000_000_000
    meter: Bucket | Purse
    if kind == "rate":
        meter = Bucket(RULE)
        per_minute = random.choice([1, 7, 60, 100, 999_983, 1_000_000_000])
        meter.bound(per_minute, random.choice([1, 10, 60, 600]))
    else:
        meter = Purse(RULE, Wall())
        meter.bound(Budget(id="b", amount=random.choice([5, 10**6, 10**15])))
    for _ in range(8):
        now_us += random.choice([0, 1, 999, 150_000, 60_000_001, random.randrange(10**9)])
        now_s = (now_us + 0.5) / MICRO  # as a double not exact to the microsecond so far from 1970
        period = meter.look(now_s)
        step = random.random()
        amount = random.randrange(1, max(2, meter.capacity // random.choice([1, 2, 5, 1000])))
        need = back = owed = 0
        if step < 0.5:
            need = amount
        elif step < 0.75:
            back = min(amount, meter.used)
        else:
            owed = amount
        fits = meter.used + need <= meter.capacity
        if need and fits:
            meter.reserve(need)
        if back:
            meter.settle(back, 0, period, now_s)
        if owed:
            meter.owe(owed)
        pairs = [part for each in (back, owed, 0, need, need, 0) for part in divmod(each, MICRO)]
        numbers = [meter.capacity // MICRO, per_minute, period, 1000, *pairs, 0]
        pipe.evalsha(digest, 1, key, 10**9, *numbers, *divmod(now_us, MICRO))
        expected.append((need if fits else 0, meter.used, fits))


async def lease(store: RedisStore, want: int, used: int = 0, cap: int = 5, lease_s: float = 30.0) -> tuple[int, bool]:
    """How many slots it has then, and whether others want more."""
    asked = SlotAsk(scope="tenant", tenant="acme", part="", cap=cap, want=want, used=used)
    (leased,) = await store.lease([asked], lease_s)
    return leased.slots, leased.contended


async def test_no_more_slots_are_leased_than_there_are(server: RedisServer, store: RedisStore) -> None:
    other = RedisStore(place(server.url), "two")
    assert await lease(store, 3) == (3, False)
    assert await lease(other, 5) == (2, False)
    assert await lease(store, 5, used=3) == (3, True)
    assert await lease(store, 1, used=0) == (1, True)
    assert await lease(other, 5, used=2) == (4, False)
    assert await lease(store, 0) == (0, True)
    assert await lease(other, 5, used=4) == (5, False)
    await other.close()


async def test_who_wants_slots_gets_its_part_of_them_as_others_end_theirs(
    server: RedisServer, store: RedisStore
) -> None:
    other = RedisStore(place(server.url), "two")
    assert await lease(store, 5) == (5, False)
    assert await lease(other, 5) == (0, False)
    assert await lease(store, 5, used=5) == (5, True)  # what runs counts
    assert await lease(store, 5, used=2) == (3, True)
    assert await lease(other, 5) == (2, True)
    await other.close()


async def test_slots_of_the_dead_are_free_when_their_lease_ends(server: RedisServer, store: RedisStore) -> None:
    other = RedisStore(place(server.url), "two")
    assert await lease(other, 5, used=5, lease_s=0.2) == (5, False)
    assert await lease(store, 5) == (0, False)
    await asyncio.sleep(0.25)
    assert await lease(store, 5) == (5, False)
    await other.close()


async def test_fewer_slots_than_replicas_go_round(server: RedisServer, store: RedisStore) -> None:
    other = RedisStore(place(server.url), "two")
    assert await lease(store, 1, cap=1) == (1, False)
    assert await lease(other, 1, cap=1) == (0, False)
    assert await lease(store, 1, used=1, cap=1) == (1, True)
    assert await lease(store, 1, cap=1) == (0, True)
    assert await lease(other, 1, cap=1) == (1, True)
    assert await lease(store, 1, cap=1) == (0, False)
    assert await lease(other, 1, cap=1) == (0, True)
    assert await lease(store, 1, cap=1) == (1, True)
    await other.close()


async def share(store: RedisStore, **served: int) -> dict[str, int]:
    ask = ShareAsk(pool="main", band="standard", tenants=tuple(served), served=tuple(served.values()))
    (elsewhere,) = await store.share([ask])
    return dict(zip(served, elsewhere, strict=True))


async def test_each_replica_hears_what_others_have_served_since_it_asked_last(
    server: RedisServer, store: RedisStore
) -> None:
    other = RedisStore(place(server.url), "two")
    assert await share(store, acme=100, umbra=0) == {"acme": 0, "umbra": 0}
    assert await share(other, acme=30) == {"acme": 0}  # what was before it first asked
    assert await share(store, acme=5, umbra=7) == {"acme": 30, "umbra": 0}
    assert await share(other, acme=-10, umbra=0) == {"acme": 5, "umbra": 0}
    assert await share(store, acme=0, umbra=0) == {"acme": -10, "umbra": 0}
    ask = ShareAsk(pool="main", band="batch", tenants=("acme",), served=(1,))
    assert list(await store.share([ask, ask])) == [(0,), (0,)]
    await other.close()


async def test_what_redis_forgot_of_what_was_served_is_no_credit(server: RedisServer, store: RedisStore) -> None:
    await share(store, acme=1000, umbra=10)
    client = Redis.from_url(server.url, decode_responses=True)
    await client.flushall()
    assert await share(store, acme=3, umbra=4) == {"acme": 0, "umbra": 0}
    assert await client.ttl("fb:{fleet}:f:main:standard") > 500
    await client.aclose()
