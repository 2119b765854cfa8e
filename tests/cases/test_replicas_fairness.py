"""Two replicas over a real Redis serve tenants fairly, and keep to their engines' bounds together: row 30."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kit import wire
from tests.kit.fleet import Fleet, fleet
from tests.kit.gateway import Gateway
from tests.kit.processes import until_async
from tests.kit.redis import needs_redis
from tests.kit.script_engine import Wait
from tests.kit.tenants import tenant

pytestmark = needs_redis


@asynccontextmanager
async def loaded(made: Fleet, *load: tuple[int, str, int]) -> AsyncIterator[Counter[str]]:
    """Load of so many at a time: (replica, tenant, number). What of each was served so far."""
    served = Counter[str]()
    ended = asyncio.Event()

    async def one(replica: int, who: str) -> None:
        while not ended.is_set():
            answer = await made.ask(replica, who, tokens=2000)
            assert answer.status == 200
            served[who] += 1

    async with asyncio.TaskGroup() as group:
        for replica, who, number in load:
            for _ in range(number):
                group.create_task(one(replica, who))
        yield served
        ended.set()


async def bounds(gateway: Gateway) -> int:
    queues = await gateway.admin("/admin/v1/queues")
    return int(queues["endpoints"][0]["max_seqs"])


async def bounded(gateway: Gateway, seqs: int) -> None:
    async def known() -> bool:
        return await bounds(gateway) == seqs

    await until_async(known, 15.0, f"its bound is not {seqs}")


async def test_row_30_two_replicas_serve_a_tenant_on_both_no_more_than_one_on_one(tmp_path: Path) -> None:
    facts = {"endpoint": {"max_seqs": 4}, "admission": {"fairness": {"quantum": 2048}}}
    async with fleet(tmp_path, [tenant("a"), tenant("b")], redis={"sync_s": 0.1}, **facts) as made:
        made.engine.answer = lambda seen: [
            Wait(0.03),
            wire.json_answer(wire.body("completions", "x", prompt=2000, output=30)),
        ]
        for replica in made.replicas:
            await bounded(replica, 2)
        async with loaded(made, (0, "a", 10), (1, "a", 10), (1, "b", 10)) as served:
            await asyncio.sleep(1.0)
            served.clear()
            began_s = time.monotonic()
            while sum(served.values()) < 300:
                await asyncio.sleep(0.05)
                assert time.monotonic() < began_s + 60
            share = served["a"] / sum(served.values())
        assert 0.45 <= share <= 0.55
        assert made.engine.peak <= 4


async def test_an_engines_bounds_are_divided_as_replicas_come_and_go(tmp_path: Path) -> None:
    async with fleet(tmp_path, [tenant("a")], endpoint={"max_seqs": 6}, redis={"expected_replicas": 1}) as made:
        for replica in made.replicas:
            await bounded(replica, 3)
        made.engine.answer = lambda seen: [
            Wait(0.1),
            wire.json_answer(wire.body("completions", "x", prompt=10, output=30)),
        ]
        answers = await asyncio.gather(*(made.ask(number % 2, "a") for number in range(40)))
        assert {answer.status for answer in answers} == {200}
        assert made.engine.peak == 6
        made.engine.peak = 0
        made.leave(1)
        await made.replicas[1].stop()
        await bounded(made.replicas[0], 6)
        answers = await asyncio.gather(*(made.ask(0, "a") for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert made.engine.peak == 6
