"""An engine that publishes what its KV cache does: the gateway forgets what the engine has forgotten."""

import json
from pathlib import Path

from tests.journeys.served import ENGINE
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.invariants import holding
from tests.kit.processes import Child, free_ports, python, until, until_async
from tests.kit.raw_client import exchange
from tests.kit.sockets import connected

WORDS = "the and for you " * 256  # 1,024 tokens


class Asking:
    """Somebody who asks the same again, and other things."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.asked = 0

    async def cached(self, text: str = WORDS) -> int:
        """How many tokens of this prompt the gateway thought that the engine had."""
        body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
        answer = await exchange(self.gateway.port, wire.request("/v1/chat/completions", body))
        assert answer.status == 200, answer.body
        [name] = [value for key, value in answer.headers if key == b"x-forebay-request-id"]
        found = await self.gateway.admin(f"/admin/v1/explain/{name.decode()}")
        return next(int(step["why"]["cached_tokens"]) for step in found["steps"] if "why" in step)

    async def other(self) -> int:
        self.asked += 1
        return await self.cached(f"{self.asked:04}{WORDS}")

    async def heard(self, kind: str) -> bool:
        return (await self.gateway.metrics()).sum("forebay_kv_events_total", endpoint="e0", kind=kind) > 0

    async def other_heard(self, kind: str) -> bool:
        await self.other()
        return await self.heard(kind)


async def loses_a_message(made: Asking, engine: Engine) -> None:
    await engine.control("PUT", "/faults", ["drop:count=1"])

    async def told_again() -> bool:
        await made.other()
        metrics = await made.gateway.metrics()
        return metrics.sum("forebay_kv_event_replays_total", endpoint="e0", result="whole") == 1

    await until_async(told_again, 20, "what was lost was not told again")
    assert not await made.heard("cleared") and not await made.heard("restarted")


async def loses_its_cache_and_restarts(made: Asking, engine: Engine, events_port: int) -> None:
    for _ in range(5):  # its next process shall not have published as much when it is first heard
        await made.other()
    assert await made.cached() == 0
    assert await made.cached() > 900
    assert await engine.control("POST", "/reset_prefix_cache") == {"cleared": True}
    await until_async(lambda: made.heard("cleared"), 15, "the gateway was not told of the empty cache")
    assert await made.cached() == 0
    assert await made.cached() > 900
    await engine.stop()
    await engine.start()
    await until(lambda: connected(made.gateway.pid, events_port), 30, "the gateway does not listen to the new process")
    await until_async(lambda: made.other_heard("restarted"), 30, "the gateway did not notice the new process")
    assert await made.cached() == 0
    assert (await made.gateway.metrics()).sum("forebay_kv_event_gaps_total", endpoint="e0") == 1


async def test_what_an_engine_forgets_the_gateway_forgets_and_the_journal_replays(tmp_path: Path) -> None:
    events_port, replay_port = free_ports(2)
    here, again = f"tcp://127.0.0.1:{events_port}", f"tcp://127.0.0.1:{replay_port}"
    flag = json.dumps({"enable_kv_cache_events": True, "endpoint": here, "replay_endpoint": again})
    journal = tmp_path / "journal.jsonl"
    async with Engine(tmp_path, arguments=[*ENGINE, "--kv-events-config", flag]) as engine:
        fleet = config([engine.url], endpoint={"kv_events": here, "kv_events_replay": again})
        async with Gateway(fleet | {"telemetry": {"journal": str(journal)}}, tmp_path) as gateway:
            made = Asking(gateway)
            await until_async(lambda: made.other_heard("stored"), 20, "nothing is heard of the engine")
            await until(journal.exists, 5, "no journal")  # it stays open: not what `holding` looks for
            async with holding(gateway):
                await loses_a_message(made, engine)
                await loses_its_cache_and_restarts(made, engine, events_port)
    events = [json.loads(line).get("event") for line in journal.read_text().splitlines()]
    assert events.count("CacheCleared") == 2 and "CacheTurned" in events
    replay = Child(python("-m", "gateway", "replay", str(journal)), tmp_path, "replay")
    assert await replay.wait(40) == 0, replay.out.read_text()
