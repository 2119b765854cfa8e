"""Several replicas over a real Redis: rows 18, 34, 35 and 36 of the tenancy table, cases C052 to C055."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.gateway.test_reload import change
from tests.kit import wire
from tests.kit.fault_proxy import FaultProxy
from tests.kit.fleet import QUICK, Fleet, fleet
from tests.kit.gateway import ADMIN_TOKEN, Gateway
from tests.kit.invariants import conserved
from tests.kit.processes import ROOT, until_async
from tests.kit.redis import needs_redis
from tests.kit.script_engine import HANG, Seen, Wait
from tests.kit.stage import paced, quantile
from tests.kit.tenants import key, tenant

pytestmark = [needs_redis]


def exact(tokens: int, output: int = 30) -> Any:
    """An engine that uses what was reserved."""
    return lambda seen: [wire.json_answer(wire.body("completions", "x", prompt=tokens, output=output))]


async def flood(made: Fleet, tries: int, *, at_once: int = 8, **more: Any) -> Counter[int]:
    """So many requests, spread over the replicas. How many had which status."""
    found = Counter[int]()
    numbers = iter(range(tries))

    async def one() -> None:
        for number in numbers:
            answer = await made.ask(number % len(made.replicas), **more)
            found[answer.status] += 1

    await asyncio.gather(*(one() for _ in range(at_once)))
    return found


async def settled(made: Fleet, replicas: int) -> None:
    """Every replica knows of the others."""

    async def known() -> bool:
        return await made.sum("forebay_store_replicas") == replicas * replicas

    await until_async(known, 10.0, "replicas do not know of each other")


async def test_row_18_and_c053_a_budget_is_spent_to_the_last_unit_and_not_beyond(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("acme", limits={"tpd": 100_000})], replicas=4) as made:
        made.engine.answer = exact(70)
        found = await flood(made, 5_000, tokens=70)
        assert found == {200: 1_000, 429: 4_000}
        assert sum(b"completions" in seen.head for seen in made.engine.seen) == 1_000
        assert await made.sum("forebay_quota_held_units") == 0


async def test_rates_hold_for_all_replicas_together_and_few_requests_wait_for_them(tmp_path: Path) -> None:
    """C053: with limits of their own they would let twice as many pass."""
    async with fleet(tmp_path, [tenant("acme", limits={"rpm": 1200, "burst_s": 30})]) as made:
        began_s = time.monotonic()
        found = await flood(made, 1_500)
        most = 600 + 20 * (time.monotonic() - began_s) + 1
        assert 600 <= found[200] <= most
        assert await made.sum("forebay_store_degraded") == 0


@pytest.mark.serial
async def test_parked_requests_are_few_under_a_steady_load(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("acme", limits={"rpm": 60_000})]) as made:
        await settled(made, 2)
        answers = [await made.ask(number % 2) async for number in paced(100, 4)]
        assert {answer.status for answer in answers} == {200}
        before = await made.sum("forebay_store_parked_total")
        assert before <= 0.02 * len(answers) + 4  # the first of each replica has nothing to spend yet
        told = answers[-1].header("x-ratelimit-remaining-requests")
        assert told is not None
        assert 59_000 < int(told) <= 60_000


@pytest.mark.serial
async def test_row_34_and_c052_a_frozen_redis_fails_nobody_and_each_policy_holds(tmp_path: Path) -> None:
    tenants = [
        tenant("acme", limits={"rpm": 60_000}),
        tenant("shut", limits={"rpm": 60_000}, on_store_down="closed"),
        tenant("wide", limits={"rpm": 6, "burst_s": 10}, on_store_down="open"),
    ]
    async with fleet(tmp_path, tenants, redis=QUICK) as made:
        await settled(made, 2)
        usual = await timed(made, 3)
        made.redis.process.signal(signal.SIGSTOP)
        frozen = await timed(made, 6)
        assert frozen < usual + 0.06
        refused = await made.ask(0, "shut")
        assert (refused.status, refused.header("retry-after")) == (503, "1")
        assert refused.header("x-forebay-reason") == "quota_store"
        assert b'"quota_store_unavailable"' in refused.body
        assert {(await made.ask(0, "wide")).status for _ in range(20)} == {200}
        assert (await made.ask(0)).header("x-forebay-limits") == "degraded"
        assert await made.sum("forebay_store_degraded") == 2
        assert (await made.replicas[0].admin("/admin/v1/tenants/acme/usage"))["degraded"] is True
        made.redis.process.signal(signal.SIGCONT)
        await healed(made)
        assert (await made.ask(0, "shut")).status == 200
        answer = await made.ask(0)
        assert (answer.status, answer.header("x-forebay-limits")) == (200, None)
        made.close()
        await made.replicas[0].stop()
        await made.replicas[1].stop()
        for replica in made.replicas:
            assert replica.stderr().count(b'"store lost"') == 1
            assert replica.stderr().count(b'"store back"') == 1


async def timed(made: Fleet, seconds: float) -> float:
    """The 99th percentile under a load on both replicas, all of it served."""
    took: list[float] = []

    async def one(number: int) -> None:
        began_s = time.monotonic()
        assert (await made.ask(number % 2)).status == 200
        took.append(time.monotonic() - began_s)

    async with asyncio.TaskGroup() as group:
        async for number in paced(100, seconds):
            group.create_task(one(number))
    return quantile(took, 0.99)


async def healed(made: Fleet) -> None:
    """Each asks the store again after its time of rest, and five seconds after the last has had an answer none is degraded."""
    before = {id(each): await answered(each) for each in made.replicas}

    async def probed() -> bool:
        return all([await answered(each) > before[id(each)] for each in made.replicas])

    async def good() -> bool:
        return await made.sum("forebay_store_degraded") == 0

    await until_async(probed, 40.0, "nobody has asked the store again")
    await until_async(good, 5.0, "the store is not back")


async def answered(replica: Gateway) -> float:
    """Calls that the store has answered."""
    return (await replica.metrics()).sum("forebay_store_calls_total", result="good")


async def test_row_35_and_c053_without_redis_replicas_share_the_limit_by_their_number(tmp_path: Path) -> None:
    """Scaled: 10 of 30 seconds, at ten times the rate."""
    acme = tenant("acme", limits={"rpm": 3000, "burst_s": 1})
    async with fleet(tmp_path, [acme], replicas=3, redis=QUICK) as made:
        await settled(made, 3)
        passed: list[float] = []

        async def one(replica: int, until_s: float) -> None:
            while time.monotonic() < until_s:
                if (await made.ask(replica)).status == 200:
                    passed.append(time.monotonic())
                await asyncio.sleep(0.003)

        async def load(until_s: float) -> None:
            await asyncio.gather(*(one(replica, until_s) for replica in range(3)))

        await load(time.monotonic() + 4)
        made.redis.process.kill()
        began_s = time.monotonic()
        await load(began_s + 10)
        assert await made.sum("forebay_store_degraded") == 3
        without = sum(began_s <= at for at in passed)
        assert 400 < without <= 550 + 50  # 500 by the rate, a burst of 50, and a tenth
        await made.redis.start()
        await load(time.monotonic() + 1)
        await healed(made)
        assert (await made.ask(0)).header("x-forebay-limits") is None


async def test_row_36_and_c054_a_redis_that_forgets_everything_fails_nobody(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("acme", limits={"rpm": 600, "burst_s": 60})]) as made:
        client = Redis.from_url(made.redis.url)
        await settled(made, 2)
        found = await flood(made, 200)
        await client.script_flush()
        found += await flood(made, 200)
        await client.flushall()
        found += await flood(made, 800)
        await client.aclose()
        assert set(found) == {200, 429}
        assert 600 <= found[200] <= 600 + 2 * 100 + 150  # a block of each replica, and what drained meanwhile


async def test_blocks_go_back_when_nobody_needs_them_and_when_a_replica_ends(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("acme", limits={"tpd": 10_000})]) as made:
        made.engine.answer = exact(10)
        assert (await made.ask(0)).status == 200

        async def none() -> bool:
            return await made.sum("forebay_store_block_units") == 0

        await until_async(none, 5.0, "a block was kept")
        assert (await made.ask(0)).status == 200
        assert made.replicas[0].child is not None
        made.leave(0)
        await made.replicas[0].child.stop(20.0)
        client = Redis.from_url(made.redis.url, decode_responses=True)
        assert await client.hget("fb:{t:acme}:q:tenant.tpd.day", "u") == "80"
        assert await client.zcard("fb:{fleet}:replicas") == 1
        await client.aclose()


async def test_what_each_replica_has_for_itself_says_of_how_many_it_is(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("acme")]) as made:
        await settled(made, 2)
        one, other = made.replicas
        path = "/admin/v1/fleet/e0/drain"
        told = json.loads((await one.get(path, port=one.admin_port, token=ADMIN_TOKEN, method="POST")).body)
        assert (told["state"], told["replicas"]) == ("draining", {"here": 1, "live": 2})
        (member,) = (await other.admin("/admin/v1/fleet"))["endpoints"]
        assert member["state"] == "up"
        assert (await made.ask(1)).status == 200
        assert (await one.admin("/admin/v1/tenants/acme/usage"))["replicas"] == {"here": 1, "live": 2}


async def test_a_store_that_is_not_there_at_the_start_does_not_keep_a_gateway_from_serving(tmp_path: Path) -> None:
    nowhere = {"url": f"unix://{tmp_path}/none", "expected_replicas": 2}
    async with fleet(tmp_path, [tenant("acme", limits={"rpm": 20})], redis=nowhere) as made:
        found = Counter([(await made.ask(0)).status for _ in range(15)])
        assert found == {200: 10, 429: 5}


async def test_a_longer_timeout_helps_a_slow_store_without_a_restart(tmp_path: Path) -> None:
    async with FaultProxy(1) as proxy:
        reached = {"url": f"redis://127.0.0.1:{proxy.port}/0", **QUICK}
        async with fleet(tmp_path, [tenant("acme", limits={"rpm": 600})], replicas=1, redis=reached) as made:

            async def degraded() -> bool:
                return await made.sum("forebay_store_degraded") == 1

            async def well() -> bool:
                return await made.sum("forebay_store_degraded") == 0

            proxy.aim(made.redis.port)
            await until_async(well, 10.0, "the store is not there")
            proxy.down.latency_s = 0.1
            await until_async(degraded, 10.0, "nobody has noticed")
            told = await change(made.replicas[0], redis={"timeout_s": 1.0})
            assert told["changed"] == ["redis.timeout_s"]
            await until_async(well, 10.0, "it still waits for too short a time")
            assert (await made.ask(0)).header("x-forebay-limits") is None


async def test_who_leaves_while_it_is_parked_leaves_nothing_behind(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("acme", limits={"rpm": 60_000})], replicas=1) as made:
        made.redis.process.signal(signal.SIGSTOP)
        jobs = [asyncio.create_task(made.ask(0)) for _ in range(20)]
        await asyncio.sleep(0.03)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        made.redis.process.signal(signal.SIGCONT)

        async def quiet() -> bool:
            return await made.sum("forebay_quota_held_units") + await made.sum("forebay_requests_inflight") == 0

        await until_async(quiet, 5.0, "something is still held")
        assert conserved(await made.replicas[0].metrics()) == []


async def test_row_20_and_c053_slots_hold_for_all_replicas_and_those_of_a_killed_one_come_back(tmp_path: Path) -> None:
    limits = {"max_concurrency": 5, "max_queued": 100}
    async with fleet(tmp_path, [tenant("acme", limits=limits)], redis={"lease_s": 5}) as made:
        running = peak = 0

        def answer(seen: Seen) -> Any:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            yield Wait(0.1)
            running -= 1
            yield from exact(10)(seen)

        made.engine.answer = answer
        answers = await asyncio.gather(*(made.ask(number % 2) for number in range(50)))
        assert [each.status for each in answers] == [200] * 50
        assert peak == 5
        by_replica = Counter(number % 2 for number, each in enumerate(answers) if each.status == 200)
        assert by_replica == {0: 25, 1: 25}
        made.engine.answer = lambda seen: [HANG]
        hanging = [asyncio.create_task(made.ask(0)) for _ in range(5)]

        async def all_taken() -> bool:
            return (await made.replicas[0].metrics()).sum("forebay_attempts_open") == 5

        await until_async(all_taken, 5.0, "not all slots are taken")
        made.engine.answer = exact(10)
        made.replicas[0].child.kill()  # type: ignore[union-attr]
        await asyncio.gather(*hanging, return_exceptions=True)
        began_s = time.monotonic()
        assert (await made.ask(1)).status == 200
        assert 2.0 < time.monotonic() - began_s < 6.5


async def refused_of(made: Fleet, name: str) -> Counter[str]:
    """Why of fifty that come at once, "ok" of those that were served."""
    answers = await asyncio.gather(*(made.ask(number % 2, name) for number in range(50)))
    return Counter(each.header("x-forebay-reason") or "ok" for each in answers)


@pytest.mark.parametrize("max_queued", [0, 10])
async def test_row_20_what_may_not_wait_is_refused_as_with_one_replica(tmp_path: Path, max_queued: int) -> None:
    limits = {"max_concurrency": 6, "max_queued": max_queued}
    names = (
        "acme",
        "beta",
        "gamma",
    )  # other work on the machine may keep Redis from answering one in time, a fault spoils all
    async with fleet(tmp_path, [tenant(name, limits=limits) for name in names]) as made:
        made.engine.answer = lambda seen: [Wait(0.5), *exact(10)(seen)]
        found = [await refused_of(made, name) for name in names]
    if max_queued == 0:
        assert {"ok": 6, "concurrency": 44} in found
    else:
        for each in found:
            assert each["ok"] >= 20
            assert each["ok"] + each["queue_full"] == 50


async def test_row_20_where_redis_answers_too_late_each_replica_has_its_part_of_the_slots(tmp_path: Path) -> None:
    """Whoever may not wait in a queue waits for a word of Redis, and no longer than for any other limit."""
    async with FaultProxy(1) as proxy:
        reached = {"url": f"redis://127.0.0.1:{proxy.port}/0"}
        limits = {"max_concurrency": 6, "max_queued": 0}
        async with fleet(tmp_path, [tenant("acme", limits=limits)], redis=reached) as made:
            proxy.aim(made.redis.port)
            await settled(made, 2)
            proxy.down.latency_s = 0.4
            made.engine.answer = lambda seen: [Wait(1.5), *exact(10)(seen)]
            assert await refused_of(made, "acme") == {"ok": 6, "concurrency": 44}


async def disable(made: Fleet, name: str, token: str = ADMIN_TOKEN) -> tuple[int, str]:
    """`forebay keys disable --now`, told to the first replica."""
    argv = ["-m", "gateway", "keys", "disable", "--config", str(made.replicas[0].file), key(name)["id"], "--now"]
    environ = {**os.environ, "FOREBAY_ADMIN_TOKEN": token, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, env=environ, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    _, said = await process.communicate()
    return process.returncode or 0, said.decode()


async def block(made: Fleet, key_id: str) -> int:
    """Tell the first replica."""
    gateway, path = made.replicas[0], f"/admin/v1/keys/{key_id}/block"
    return (await gateway.get(path, port=gateway.admin_port, token=ADMIN_TOKEN, method="POST")).status


async def test_row_39_and_c088_a_key_that_is_disabled_now_opens_no_replica_any_more(tmp_path: Path) -> None:
    tenants = [tenant("acme", key("acme"), key("other"), limits={"max_concurrency": 1})]
    async with fleet(tmp_path, tenants) as made:
        await settled(made, 2)
        last: list[float] = [0.0, 0.0]
        ended = asyncio.Event()

        async def load(replica: int) -> None:
            while not ended.is_set():
                if (await made.ask(replica)).status == 200:
                    last[replica] = time.monotonic()
                await asyncio.sleep(0.02)

        loads = [asyncio.create_task(load(replica)) for replica in (0, 1)]
        await asyncio.sleep(4.0)
        assert all(last)
        assert await block(made, key("acme")["id"]) == 204  # the files say nothing of it
        told = time.monotonic()
        await asyncio.sleep(2.5)
        ended.set()
        await asyncio.gather(*loads)
        assert max(last) <= told + 2.0
        assert (await made.ask(1, "other")).status == 200
        assert await made.sum("forebay_quota_held_units") == 0


async def test_row_39_what_waits_is_refused_and_what_runs_ends_well(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("acme", limits={"max_concurrency": 1, "rpm": 100})]) as made:
        made.engine.answer = lambda seen: [Wait(3.0), *exact(10)(seen)]
        runs = asyncio.create_task(made.ask(1))
        await asyncio.sleep(0.5)
        waits = asyncio.create_task(made.ask(1))
        await asyncio.sleep(0.3)
        assert await block(made, key("acme")["id"]) == 204
        assert await block(made, key("acme")["id"]) == 204
        began_s = time.monotonic()
        assert (await waits).status == 401
        assert time.monotonic() - began_s < 2.0
        assert (await runs).status == 200
        assert await made.sum("forebay_quota_settled_units_total", metric="rpm") == 1
        assert await made.sum("forebay_quota_refunded_units_total", metric="rpm") == 1
        assert await made.sum("forebay_quota_held_units") == 0
        assert await block(made, "nobody") == 404


async def test_the_command_tells_the_running_gateway_or_says_why_it_could_not(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("acme", limits={"rpm": 100})], replicas=1) as made:
        status, said = await disable(made, "acme", token="wrong")
        assert (status, said.splitlines()[-1]) == (1, "forebay keys: the gateway was not told: it answered 401")
        status, said = await disable(made, "acme", token="")
        assert said.splitlines()[-1].endswith("it asks for a token: set FOREBAY_ADMIN_TOKEN")
        status, said = await disable(made, "acme")
        assert (status, said.splitlines()[-1]) == (0, "blocked in the running gateway")
        assert (await made.ask(0)).status == 401
