"""Endpoints that an operator takes out of service and gives back, over real sockets."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from loadgen.sim.replay import Replay, replay
from tests.gateway.test_fleet import PAGE, QUICK, READ, TOKENS, asked, members, until_state
from tests.gateway.test_reload import Gate, change
from tests.gateway.test_workers import WORKERS, pids, workers
from tests.kit import wire
from tests.kit.gateway import ADMIN_TOKEN, Gateway
from tests.kit.invariants import conserved
from tests.kit.processes import until_async
from tests.kit.raw_client import Connection
from tests.kit.redis import needs_redis
from tests.kit.script_engine import load_page
from tests.kit.stage import Stage, error_of, stage
from tests.kit.tenants import bearer, tenant

NOBODY_KNOWS = (404, "unknown_endpoint")
NO_SUCH_PATH = (404, "not_found")
SALT = {"isolation": {"salt_secret": "s" * 40}}


async def drain(gateway: Gateway, name: str, way: str = "drain") -> dict[str, Any]:
    return dict(await gateway.admin(f"/admin/v1/fleet/{name}/{way}", method="POST"))


@asynccontextmanager
async def begun(one: Stage, number: int) -> AsyncIterator[Sequence[Connection]]:
    """Streams that have begun."""
    made = [await one.begin("chat", f"stream {at}", stream=True) for at in range(number)]
    try:
        for each in made:
            assert (await each.head()).status == 200
        yield made
    finally:
        for each in made:
            each.close()


def answered(one: Stage) -> list[int]:
    """Requests each engine has seen."""
    return [len(engine.seen) for engine in one.engines]


async def until_queued(one: Stage, number: int) -> None:
    async def waits() -> bool:
        return bool((await one.gateway.admin("/admin/v1/queues"))["queued"] == number)

    await until_async(waits, 5.0, f"{number} do not wait")


async def until_probed(one: Stage, at: int, more: int = 5) -> None:
    before = one.engines[at].probes

    async def probed() -> bool:
        return one.engines[at].probes >= before + more

    await until_async(probed, 10.0, "it is not probed")


async def test_a_drained_endpoint_gets_nothing_new_and_what_runs_there_ends_there(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    async with stage(tmp_path, engines=2, telemetry={"journal": str(journal)}, **QUICK) as one:
        gate, looks = Gate(), count(1)
        for engine in one.engines:
            engine.answer = gate.answer
            engine.metrics = lambda: [load_page(4, next(looks))]  # figures that move
        async with begun(one, 8) as streams:
            assert min(answered(one)) > 0
            before = (await members(one.gateway))["e0"]
            told = await drain(one.gateway, "e0")
            assert (told["name"], told["state"]) == ("e0", "draining")
            assert told["replicas"] == {"here": 1, "live": 1}
            assert told["since"] > before["since"]
            assert await drain(one.gateway, "e0") == told, "again is harmless"
            runs = answered(one)[0]
            await until_probed(one, 0)
            drained = (await members(one.gateway))["e0"]
            assert (drained["state"], drained["since"], drained["healthy"]) == ("draining", told["since"], True)
            assert drained["outstanding"]["sequences"] == runs
            assert drained["load"]["waiting"] > 0, "its load is still asked for"
            gate.open.set()
            for each in streams:
                response = await each.response(10)
                assert response.clean and b"[DONE]" in response.body
        for at in range(10):
            assert (await one.ask("chat", f"new {at}")).status == 200
        assert answered(one)[0] == runs
        assert (await members(one.gateway))["e0"]["outstanding"] is None, "it can be stopped"
        metrics = await one.gateway.metrics()
        assert metrics.by("forebay_endpoint_drained", "endpoint") == {"e0": 1.0, "e1": 0.0}
        assert conserved(metrics) == []
        back = await drain(one.gateway, "e0", "undrain")
        assert back["state"] == "up" and back["since"] > told["since"]
        assert await drain(one.gateway, "e0", "undrain") == back
        await drain(one.gateway, "e1")
        assert (await one.ask("chat", "who is left")).status == 200
        assert answered(one)[0] == runs + 1
        assert b'"event":"endpoint drained"' in one.gateway.stderr()
    found = Replay()
    replay(journal, found)
    assert found.differences == []
    assert found.kinds["Dispatch"] == 8 + 10 + 1


async def test_who_waits_for_a_pool_without_engines_waits_until_one_is_given_back(tmp_path: Path) -> None:
    async with stage(tmp_path, endpoint={"max_seqs": 1}, timeouts={"scale": 1}) as one, one.holding():
        gate = Gate()
        one.engine.answer = gate.answer
        async with begun(one, 1) as (running,):
            waiting = await one.begin("chat", "second")
            await until_queued(one, 1)
            await drain(one.gateway, "e0")
            gate.open.set()
            assert (await running.response(5)).clean
            refused = await one.ask("chat", "third")
            assert (refused.status, error_of(refused)["code"]) == (503, "no_endpoint")
            ready = await one.gateway.get("/readyz", port=one.gateway.admin_port)
            assert ready.status == 200, "as with no endpoint up"
            await until_queued(one, 1)
            assert answered(one) == [1]
            await drain(one.gateway, "e0", "undrain")
            assert (await waiting.response(5)).status == 200
            waiting.close()


async def test_who_waits_in_a_partition_whose_last_engine_is_drained_is_refused(tmp_path: Path) -> None:
    hard = {"endpoint": {"partition": "finance", "max_seqs": 1}, **SALT}
    partitions = {"finance": {"mode": "hard", "tenants": ["bank"]}}
    bank = tenant("bank", partition="finance")
    async with stage(tmp_path, tenants=[bank], partitions=partitions, **hard) as one, one.holding():
        gate = Gate()
        one.engine.answer = gate.answer
        extra = [bearer("bank")]
        running = await one.begin("chat", "first", stream=True, extra=extra)
        assert (await running.head()).status == 200
        waiting = await one.begin("chat", "second", extra=extra)
        await until_queued(one, 1)
        await drain(one.gateway, "e0")
        refused = await waiting.response(5)
        assert (refused.status, error_of(refused)["code"]) == (503, "partition_unavailable")
        gate.open.set()
        assert (await running.response(5)).clean
        running.close()
        waiting.close()


async def test_a_request_that_is_tried_again_does_not_go_to_a_drained_endpoint(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2) as one, one.holding():
        await drain(one.gateway, "e0")
        one.engines[1].answer = lambda seen: [wire.json_answer({}, status=503)]
        refused = await one.ask("chat", "nobody else")
        assert (refused.status, error_of(refused)["code"]) == (503, "backend_saturated")
        assert answered(one) == [0, 1]
        await drain(one.gateway, "e0", "undrain")
        assert {(await one.ask("chat", f"somebody else {at}")).status for at in range(5)} == {200}


async def test_health_alone_gives_nothing_back_and_one_that_died_meanwhile_is_used_when_it_is_well(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, engines=2, **QUICK) as one:

        async def until_healthy(healthy: bool) -> None:
            one.engine.healthy = healthy

            async def seen() -> bool:
                return (await members(one.gateway))["e0"]["healthy"] is healthy

            await until_async(seen, 10.0, "nobody has noticed")
            assert (await members(one.gateway))["e0"]["state"] == "draining"

        await drain(one.gateway, "e0")
        await until_healthy(False)
        idle = PAGE.replace(b"} 3\n", b"} 0\n").replace(b"} 1\n", b"} 0\n")
        one.engine.metrics = lambda: [wire.answer(idle, content_type="text/plain")]  # it tells what it is anew
        await until_healthy(True)

        async def known() -> bool:
            return bool((await members(one.gateway))["e0"]["found"]["kv_tokens"] == 16_000)

        await until_async(known, 10.0, "it is not asked what it is")
        for at in range(10):
            assert (await one.ask("chat", f"where to {at}")).status == 200
        assert answered(one) == [0, 10]
        await until_healthy(False)
        assert (await drain(one.gateway, "e0", "undrain"))["state"] == "down"
        await drain(one.gateway, "e1")
        refused = await one.ask("chat", "somebody?")
        assert (refused.status, error_of(refused)["code"]) == (503, "no_endpoint")
        one.engine.healthy = True
        await until_state(one, "e0", "up")
        assert (await one.ask("chat", "and now?")).status == 200
        assert answered(one) == [1, 10]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"max_seqs": 7}, "draining"),  # the same engine with other bounds
        ({"engine": "sglang"}, "up"),  # another engine
    ],
)
async def test_a_reload_gives_back_what_it_makes_another_engine(
    tmp_path: Path, changes: dict[str, Any], state: str
) -> None:
    async with stage(tmp_path, engines=2, **QUICK) as one:
        await drain(one.gateway, "e0")
        first, second = one.gateway.settings["endpoints"]
        await change(one.gateway, endpoints=[{**first, **changes}, second])
        await until_state(one, "e0", state)
        await until_probed(one, 0)
        assert (await members(one.gateway))["e0"]["state"] == state
        for at in range(10):
            assert (await one.ask("chat", f"where to {at}")).status == 200
        assert (answered(one)[0] > 0) is (state == "up")
        await change(one.gateway, endpoints=[second])
        await change(one.gateway, endpoints=[{**first, **changes}, second])
        await until_state(one, "e0", "up")


async def test_endpoints_that_are_not_there_and_what_cannot_be_done_yet(tmp_path: Path) -> None:
    async with stage(tmp_path, admin={"tokens": TOKENS}) as one:
        for path, found in [
            ("/admin/v1/fleet/e9/drain", NOBODY_KNOWS),
            ("/admin/v1/fleet/e9/undrain", NOBODY_KNOWS),
            ("/admin/v1/fleet/e0%2Fx/drain", NOBODY_KNOWS),
            ("/admin/v1/fleet/e0/restart", NO_SUCH_PATH),
            ("/admin/v1/fleet/e0/warm", NO_SUCH_PATH),
        ]:
            assert await asked(one.gateway, "POST", path, ADMIN_TOKEN) == found, path
        assert await asked(one.gateway, "GET", "/admin/v1/fleet/e0/drain", ADMIN_TOKEN) == (405, "method")
        assert await asked(one.gateway, "POST", "/admin/v1/fleet/e0/drain", "") == (401, "unauthorized")
        assert await asked(one.gateway, "POST", "/admin/v1/fleet/e0/drain", READ) == (403, "forbidden")
        assert (await members(one.gateway))["e0"]["state"] == "up"


@needs_redis
@pytest.mark.timeout(120)
async def test_all_workers_drain_an_endpoint_also_one_that_is_started_later(tmp_path: Path) -> None:
    async with workers(tmp_path, admin={"tokens": TOKENS}) as one:
        gateway, path = one.gateway, "/admin/v1/fleet/e0/drain"
        assert (await members(gateway))["e0"]["outstanding"]["max_seqs"] == 256
        assert await asked(gateway, "POST", path, READ) == (403, "forbidden")
        assert await asked(gateway, "POST", "/admin/v1/fleet/e9/drain", ADMIN_TOKEN) == NOBODY_KNOWS
        told = await drain(gateway, "e0")
        assert (told["state"], told["replicas"]) == ("draining", {"here": WORKERS, "live": WORKERS})
        for at in range(20):
            assert (await one.ask("chat", f"to all {at}")).status == 200
        killed = await pids(gateway)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

        async def others() -> bool:
            left = await gateway.get("/health", port=gateway.admin_port, token=ADMIN_TOKEN)
            if left.status != 200:
                return False
            served = [each for each in json.loads(left.body)["workers"] if each["state"] == "serving"]
            return len(served) == WORKERS and not {each["pid"] for each in served} & set(killed)

        await until_async(others, 20.0, "the workers are not back")
        shown = (await members(gateway))["e0"]
        assert shown["state"] == "draining"
        for at in range(20):
            assert (await one.ask("chat", f"to the new ones {at}")).status == 200
        assert answered(one) == [0, 40]
        assert (await drain(gateway, "e0", "undrain"))["state"] == "up"
        await asyncio.gather(*(drain(gateway, "e1") for _ in range(4)))
        for at in range(10):
            assert (await one.ask("chat", f"the other way {at}")).status == 200
        assert answered(one) == [10, 40]
