"""T7: a limit of several processes is that limit, exactly, also where one is killed and clocks lie (faults.md 4; C052)."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.kit import wire
from tests.kit.fleet import Fleet, fleet
from tests.kit.processes import until_async
from tests.kit.redis import needs_redis
from tests.kit.script_engine import HANG, Seen, Step
from tests.kit.sizes import patience, sized
from tests.kit.tenants import tenant

pytestmark = [needs_redis, pytest.mark.timeout(patience(120, 300))]

LIMIT = sized(300, 1000)
TRIES = sized(900, 5000)
HOUR_S = 3600.0
LEASE_S = sized(5, 30)  # of slots; the least a configuration may have


def exact(seen: Seen) -> list[Step]:
    """Ten in, ninety out: what was reserved."""
    return [wire.json_answer(wire.body("completions", "x", prompt=10, output=90))]


async def flood(made: Fleet, tries: int, replicas: list[int], found: Counter[int]) -> None:
    numbers = iter(range(tries))

    async def one() -> None:
        for number in numbers:
            answer = await made.ask(replicas[number % len(replicas)], max_tokens=90)
            found[answer.status] += 1

    await asyncio.gather(*(one() for _ in range(8)))


async def known(made: Fleet) -> None:
    count = len(made.replicas)

    async def all_know() -> bool:
        return await made.sum("forebay_store_replicas") == count * count

    await until_async(all_know, 15.0, "replicas do not know of each other")


async def test_row_36_and_c055_four_processes_admit_the_limit_and_clocks_an_hour_off_change_nothing(
    tmp_path: Path,
) -> None:
    tenants = [tenant("acme", limits={"tpd": 100 * LIMIT})]
    async with fleet(tmp_path, tenants, replicas=4, clocks=(HOUR_S, -HOUR_S)) as made:
        made.engine.answer = exact
        await known(made)
        assert [await clock_of(made, at) for at in range(3)] == [1, -1, 0]
        found = Counter[int]()
        await flood(made, TRIES, [0, 1, 2, 3], found)
        assert found == {200: LIMIT, 429: TRIES - LIMIT}
        assert len(made.engine.seen) == LIMIT
        assert await made.sum("forebay_quota_held_units") == 0


async def clock_of(made: Fleet, at: int) -> int:
    """How many hours it is ahead of us."""
    started_s = (await made.replicas[at].metrics()).sum("process_start_time_seconds")
    return round((started_s - time.time()) / HOUR_S)


async def test_a_killed_process_leaves_no_limit_higher_and_no_slot_taken_for_longer_than_its_lease(
    tmp_path: Path,
) -> None:
    limits = {"tpd": 100 * LIMIT, "max_concurrency": 8, "max_queued": 100}
    async with fleet(tmp_path, [tenant("acme", limits=limits)], replicas=4, redis={"lease_s": LEASE_S}) as made:
        made.engine.answer = exact
        await known(made)
        found = Counter[int]()
        await flood(made, LIMIT // 2, [0, 1, 2, 3], found)
        made.engine.answer = lambda seen: [HANG]
        hanging = [asyncio.create_task(made.ask(0, max_tokens=90)) for _ in range(3)]

        async def taken() -> bool:
            return (await made.replicas[0].metrics()).sum("forebay_attempts_open") == 3

        await until_async(taken, 5.0, "its requests do not run")
        assert made.replicas[0].child is not None
        made.replicas[0].child.kill()
        await asyncio.gather(*hanging, return_exceptions=True)
        made.leave(0)
        await all_slots_are(made, 1, LEASE_S + 3.0)
        made.engine.answer = exact
        await flood(made, TRIES, [1, 2, 3], found)
        spent = 100 * found[200] + 3 * 100 + 8 * 10  # what ran when it died, and those whose clients have left
        set_aside = 100 * LIMIT // 8  # for the dead one, at most: its part of what was left
        assert 100 * LIMIT - set_aside - 100 < spent <= 100 * LIMIT


async def all_slots_are(made: Fleet, replica: int, seconds: float) -> None:
    """One of the living can use every slot in time; what it then runs ends without an answer."""
    jobs = [asyncio.create_task(made.ask(replica, max_tokens=90, timeout_s=2 * seconds)) for _ in range(8)]

    async def all_run() -> bool:
        return (await made.replicas[replica].metrics()).sum("forebay_attempts_open") == 8

    await until_async(all_run, seconds, "slots of the dead are still taken")
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
