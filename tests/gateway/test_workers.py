"""Several workers on one port, over real sockets: what each death costs, and that one admin port speaks for all."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit import wire
from tests.kit.gateway import ADMIN_TOKEN, Gateway, Launch, config
from tests.kit.http_reader import Response
from tests.kit.invariants import conserved
from tests.kit.processes import until_async
from tests.kit.raw_client import Connection, exchange
from tests.kit.redis import RedisServer, needs_redis
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.sockets import clients_of
from tests.kit.stage import Stage, error_of, gathered, paced, stage
from tests.kit.tenants import bearer, tenant

pytestmark = [needs_redis, pytest.mark.timeout(120)]

WORKERS = 2
ISOLATION = {"salt_secret": "s" * 40}
BACK_S = 2.0


@asynccontextmanager
async def workers(directory: Path, *, tenants: Any = None, **changes: Any) -> AsyncIterator[Stage]:
    made = {"endpoint": {"max_seqs": 256, "max_prefill_tokens": 1_000_000}, "isolation": ISOLATION, **changes}
    async with (
        RedisServer(directory) as redis,
        stage(
            directory, engines=2, launch=Launch(workers=WORKERS), tenants=tenants, redis={"url": redis.url}, **made
        ) as each,
    ):
        yield each


def slowly(pause_s: float) -> Any:
    """Streams with pauses between their events; the rest at once."""

    def answer(seen: Seen) -> list[Step]:
        steps = wire.echo(seen)
        if not seen.json.get("stream"):
            return steps
        return [*steps[:2], *(step for one in steps[2:] for step in (Wait(pause_s), one))]

    return answer


async def pids(gateway: Gateway) -> list[int]:
    return [each["pid"] for each in (await gateway.admin("/health"))["workers"]]


@asynccontextmanager
async def streams(stage: Stage, count: int) -> AsyncIterator[list[Connection]]:
    """So many streams that have begun, on connections of their own."""
    begun = [await stage.begin("chat", f"{at} one two three four five six", stream=True) for at in range(count)]
    try:
        for each in begun:
            assert (await each.head()).status == 200
        yield begun
    finally:
        for each in begun:
            each.close()


def is_whole(response: Response) -> bool:
    return response.clean and b"[DONE]" in response.body


@pytest.mark.serial
async def test_a_killed_worker_costs_its_own_streams_and_is_back_within_two_seconds(tmp_path: Path) -> None:
    async with workers(tmp_path) as stage:
        for engine in stage.engines:
            engine.answer = slowly(0.4)
        failed: list[float] = []
        stop = asyncio.Event()

        async def ask(at: int) -> None:
            began_s = time.monotonic()
            try:
                response = await stage.ask("chat", f"short {at}")
            except OSError:
                failed.append(began_s)
                return
            if response.status != 200:
                failed.append(began_s)

        async def load() -> None:
            async with asyncio.TaskGroup() as asked:
                async for at in paced(100, 60):
                    if stop.is_set():
                        return
                    asked.create_task(ask(at))

        async with asyncio.TaskGroup() as group:
            group.create_task(load())
            async with streams(stage, 40) as begun:
                victim = (await pids(stage.gateway))[0]
                await stage.gateway.metrics()
                lost = clients_of(victim, stage.gateway.port)
                own = {each.local_port for each in begun} & lost
                assert 0 < len(own) < 40
                os.kill(victim, signal.SIGKILL)
                killed_s = time.monotonic()
                await until_async(lambda: serving(stage.gateway, 1), BACK_S, "its death is not noticed", every_s=0.01)
                gone_s = time.monotonic()  # the kernel closes a killed process's listener after its memory is freed
                await stage.gateway.wait_workers()
                back_s = time.monotonic() - killed_s
                stop.set()
                ended = {each.local_port: await each.response(20) for each in begun}
        assert {port for port, response in ended.items() if not is_whole(response)} == own
        assert [began_s for began_s in failed if began_s > gone_s] == []
        assert gone_s < killed_s + 0.5
        assert back_s < BACK_S
        metrics = await stage.gateway.metrics()
        assert conserved(metrics) == []
        assert metrics.sum("forebay_requests_ended_total", reason="worker_lost") >= len(own)
        assert metrics.sum("forebay_worker_restarts_total") == 1
        assert (await pids(stage.gateway))[0] != victim


async def test_counts_are_those_of_all_workers(tmp_path: Path) -> None:
    async with workers(tmp_path) as stage:
        for engine in stage.engines:
            engine.answer = slowly(0.2)
        async with streams(stage, 30) as begun:
            held = [len(clients_of(pid, stage.gateway.port)) for pid in await pids(stage.gateway)]
            assert sum(held) == 30 and 0 < held[0] < 30
            during = await stage.gateway.metrics()
            assert (during.sum("forebay_requests_inflight"), during.sum("forebay_client_connections")) == (30, 30)
            assert conserved(during) == []
            queues = await stage.gateway.admin("/admin/v1/queues")
            assert sum(one["sequences"] for one in queues["endpoints"]) == 30
            assert {one["max_seqs"] for one in queues["endpoints"]} == {256}
            assert all([is_whole(await each.response(20)) for each in begun])
            after = await stage.gateway.metrics()
            assert after.sum("forebay_requests_ended_total", outcome="completed") == 30
            assert after.sum("forebay_time_to_first_token_seconds_count") == 30
            assert conserved(after) == []
            assert (await stage.gateway.admin("/health"))["requests"]["completed"] == 30


async def test_limits_hold_for_all_workers_together(tmp_path: Path) -> None:
    acme = tenant("acme", limits={"tpd": 10_000, "max_concurrency": 8})
    async with workers(tmp_path, tenants=[acme], timeouts={"scale": 1}) as stage:
        for engine in stage.engines:
            engine.answer = lambda seen: [wire.json_answer(wire.body("completions", "x", prompt=70, output=30))]
        body = {"model": "m", "prompt": list(range(70)), "max_tokens": 30}
        message = wire.request("/v1/completions", body, extra=[bearer("acme")])
        asked = [exchange(stage.gateway.port, message, timeout_s=30) for _ in range(300)]
        found = Counter([answer.status for answer in await gathered(asked, at_once=6)])
        assert found == {200: 100, 429: 200}
        usage = await stage.gateway.admin("/admin/v1/tenants/acme/usage")
        budget = usage["budgets"][0]
        assert (budget["limit"], budget["used"], budget["settled"], budget["held"]) == (10_000, 10_000, 10_000, 0)
        assert usage["concurrency"] == [{"scope": "tenant", "limit": 8, "used": 0}]
        assert (await stage.gateway.metrics()).sum("forebay_store_replicas") == WORKERS


@pytest.mark.parametrize("way", ["signal", "admin"])
async def test_a_drain_reaches_all_and_no_stream_is_cut(tmp_path: Path, way: str) -> None:
    async with workers(tmp_path) as stage:
        for engine in stage.engines:
            engine.answer = slowly(0.2)
        async with streams(stage, 20) as begun:
            if way == "signal":
                stage.gateway.signal(signal.SIGTERM)
            else:
                assert await stage.gateway.admin("/admin/v1/drain", method="POST") == {"phase": "draining"}

            async def refused() -> bool:
                return (await stage.gateway.get("/readyz", port=stage.gateway.admin_port)).status == 503

            await until_async(refused, 1.0, "still ready")
            assert all([is_whole(await each.response(20)) for each in begun])
        assert stage.gateway.child is not None
        assert await stage.gateway.child.wait(10) == 0
        assert stage.gateway.stderr().count(b'"event":"drained"') == WORKERS


async def test_a_second_signal_ends_the_grace_of_all(tmp_path: Path) -> None:
    async with workers(tmp_path) as stage:
        for engine in stage.engines:
            engine.answer = slowly(30)
        async with streams(stage, 12) as begun:
            stage.gateway.signal(signal.SIGTERM)

            async def draining() -> bool:
                return stage.gateway.stderr().count(b'"event":"draining"') == WORKERS + 1

            await until_async(draining, 2.0, "not draining")
            stage.gateway.signal(signal.SIGTERM)
            assert stage.gateway.child is not None
            assert await stage.gateway.child.wait(5) == 0
            for each in begun:
                assert b"gateway_shutdown" in (await each.response()).body


@pytest.mark.parametrize("way", ["signal", "admin"])
async def test_a_reload_reaches_all(tmp_path: Path, way: str) -> None:
    async with workers(tmp_path) as stage:
        gateway = stage.gateway
        add_model(gateway, "new")
        if way == "admin":
            await gateway.admin("/admin/v1/reload", method="POST")
        else:
            gateway.signal(signal.SIGHUP)
        by = {"admin": b'"by":"kit"', "signal": b'"by":"SIGHUP"'}[
            way
        ]  # the files' own change may have been noticed before

        async def reloaded() -> bool:
            return gateway.stderr().count(by) == WORKERS

        await until_async(reloaded, 5.0, "not reloaded")
        for at in range(20):
            assert (await stage.ask("chat", f"hi {at}", model="new")).status == 200
        gateway.settings["models"]["m"]["no_such_field"] = 1
        gateway.write()
        refused = await gateway.get("/admin/v1/reload", port=gateway.admin_port, token=ADMIN_TOKEN, method="POST")
        assert refused.status == 422
        assert "no_such_field" in json.loads(refused.body)["errors"][0]["path"]
        assert (await gateway.admin("/admin/v1/config"))["last_failure"] is not None


def add_model(gateway: Gateway, name: str) -> None:
    """On disk: a model that every endpoint serves."""
    gateway.settings["models"][name] = {"served_as": "m", "context_tokens": 131072}
    gateway.settings["pools"][name] = {"model": name}
    for each in gateway.settings["endpoints"]:
        each["pools"] = [*each["pools"], name]
    gateway.write()


async def test_each_worker_judges_who_may_ask_and_explain_finds_the_one_that_knows(tmp_path: Path) -> None:
    async with workers(tmp_path, admin={"metrics_auth": False}) as stage:
        gateway = stage.gateway
        for path in ("/health", "/admin/v1/queues", "/admin/v1/config", "/admin/v1/explain/x"):
            refused = await gateway.get(path, port=gateway.admin_port, token="wrong")
            assert (refused.status, refused.header("www-authenticate")) == (401, 'Bearer realm="forebay admin"')
        refused = await gateway.get("/admin/v1/drain", port=gateway.admin_port, method="POST")
        assert refused.status == 401
        found = set()
        for at in range(30):
            response = await stage.ask("chat", f"hi {at}")
            told = await gateway.admin(f"/admin/v1/explain/{response.header('x-forebay-request-id')}")
            assert told["steps"][0]["what"] == "dispatch"
            found.add(told["worker"])
        assert found == {0, 1}
        unknown = await gateway.get("/admin/v1/explain/none", port=gateway.admin_port, token=ADMIN_TOKEN)
        assert (unknown.status, error_of(unknown)["code"]) == (404, "unknown_request")
        assert (await gateway.get("/nothing", port=gateway.admin_port)).status == 404


async def test_workers_drain_when_their_supervisor_dies(tmp_path: Path) -> None:
    async with workers(tmp_path) as stage:
        for engine in stage.engines:
            engine.answer = slowly(0.2)
        async with streams(stage, 10) as begun:
            alive = await pids(stage.gateway)
            stage.gateway.signal(signal.SIGKILL)
            assert all([is_whole(await each.response(20)) for each in begun])

        async def gone() -> bool:
            return not any(Path(f"/proc/{pid}/cmdline").exists() for pid in alive)

        await until_async(gone, 10.0, "workers go on without a supervisor")


async def test_a_worker_that_dies_again_and_again_waits_longer_and_longer(tmp_path: Path) -> None:
    async with workers(tmp_path) as stage:
        gaps = []
        for _ in range(4):
            os.kill((await pids(stage.gateway))[1], signal.SIGKILL)
            killed_s = time.monotonic()
            await until_async(lambda: serving(stage.gateway, 1), 5.0, "it is still counted")
            await stage.gateway.wait_workers()
            gaps.append(time.monotonic() - killed_s)
            assert (await stage.ask("chat", "hi")).status == 200
        assert gaps[3] > 0.8
        waits = [json.loads(line)["restart_in_s"] for line in ended(stage.gateway)]
        assert waits == [0.1, 0.2, 0.4, 0.8]


async def serving(gateway: Gateway, count: int) -> bool:
    return (await gateway.metrics()).sum("forebay_workers") == count


def ended(gateway: Gateway) -> list[bytes]:
    return [line for line in gateway.stderr().splitlines() if b'"worker ended"' in line]


async def test_workers_write_files_of_their_own_and_whole_lines(tmp_path: Path) -> None:
    journal, lengths = tmp_path / "journal.jsonl", tmp_path / "lengths"
    async with workers(tmp_path, telemetry={"journal": str(journal)}, length={"state_file": str(lengths)}) as stage:
        for at in range(40):
            assert (await stage.ask("chat", f"hi {at}")).status == 200
    written = [path.read_bytes().count(b'"Arrived"') for path in sorted(tmp_path.glob("journal.jsonl.w?"))]
    assert len(written) == WORKERS and sum(written) == 40 and min(written) > 0
    assert len(list(tmp_path.glob("lengths.w?"))) == WORKERS
    assert not journal.exists() and not lengths.exists()
    assert len(stage.gateway.access()) == 40


@pytest.mark.parametrize("share", [False, True])
async def test_a_port_that_is_taken_is_said_once_also_when_its_owner_would_share_it(
    tmp_path: Path, share: bool
) -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, reuse_port=share)
    port = server.sockets[0].getsockname()[1]
    redis = {"url": "redis://127.0.0.1:1"}  # nobody asks it
    made = config(["http://127.0.0.1:9"], listen={"port": port}, isolation=ISOLATION, redis=redis)
    gateway = Gateway(made, tmp_path, launch=Launch(workers=WORKERS))
    with pytest.raises(RuntimeError, match="status 1"):
        await gateway.start()
    assert gateway.stderr().count(b"cannot listen on 127.0.0.1:%d" % port) == 1
    server.close()
    await server.wait_closed()


async def test_no_worker_starts_under_what_only_a_restart_of_all_could_take_over(tmp_path: Path) -> None:
    async with workers(tmp_path) as stage:
        gateway = stage.gateway
        port = gateway.settings["listen"]["port"]
        gateway.settings["listen"]["port"] = port + 2  # the next one is that of admin
        gateway.write()
        os.kill((await pids(gateway))[0], signal.SIGKILL)

        async def refused() -> bool:
            return b"worker 0 waits for those files" in gateway.stderr()

        await until_async(refused, 5.0, "it has started, or nothing is said")
        for at in range(10):
            assert (await stage.ask("chat", f"hi {at}")).status == 200
        gateway.settings["listen"]["port"] = port
        gateway.write()
        await gateway.wait_workers()
