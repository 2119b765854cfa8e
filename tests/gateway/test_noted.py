"""What was out of the ordinary about where requests went, and how full pools are: counted where operators look."""

import asyncio
from pathlib import Path

from tests.gateway.test_endpoint_drain import until_queued
from tests.gateway.test_reload import Gate
from tests.kit.processes import until_async
from tests.kit.stage import stage

PROMISES = {"interactive": {"on_late": "downgrade", "slo": {"ttft_ms": 10}}}


async def test_who_waited_in_a_less_urgent_class_is_counted_and_a_full_pool_is_seen(tmp_path: Path) -> None:
    async with stage(tmp_path, endpoint={"max_seqs": 1}, classes=PROMISES) as made, made.holding():
        gate = Gate()
        made.engine.answer = gate.answer
        first = await made.begin("chat", "runs", stream=True)
        assert (await first.head()).status == 200
        assert (await made.gateway.metrics()).sum("forebay_pool_saturation", pool="main") == 1.0
        urgent = [("x-forebay-priority", "interactive")]
        second = asyncio.create_task(made.ask("chat", "waits", stream=True, extra=urgent))
        await until_queued(made, 1)
        gate.open.set()
        assert (await second).status == 200
        first.close()

        async def all_ended() -> bool:
            return (await made.gateway.metrics()).sum("forebay_pool_saturation", pool="main") == 0.0

        await until_async(all_ended, 5.0, "the pool is not idle")
        noted = (await made.gateway.metrics()).by("forebay_dispatches_noted_total", "note")
        assert noted == {"downgraded": 1.0}
