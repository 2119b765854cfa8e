"""T9, the other way: `endpoints[].drain_on_abort`. An engine that does not bear that a client leaves is read to its end (http.md 8).

Meanwhile the request holds its place; then it is settled for what the engine counted, and its line is that of a client that left.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.test_reload import change
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.invariants import holding
from tests.kit.processes import until, until_async
from tests.kit.raw_client import connect
from tests.kit.script_engine import HANG, Seen, Step, Wait
from tests.kit.stage import EVERY_PLACE, Stage, stage
from tests.kit.tenants import bearer, tenant

DRAINS = {"drain_on_abort": True}
ENGINE = ("--served-model-name", "m", "--allow-markers")
OUT = 150  # tokens of an answer: about a second
FAULT = [wire.head(503, extra=[("content-length", "0")])]


class Gate:
    """Engines whose answers stop half-way until they may go on."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def answer(self, seen: Seen) -> Iterator[Step]:
        steps = list(wire.echo(seen))
        middle = len(steps) // 2 if seen.json.get("stream") else 0
        yield from steps[:middle]
        while not self.open.is_set():
            yield Wait(0.01)
        yield from steps[middle:]


async def line(gateway: Gateway) -> dict[str, Any]:
    """The one line of the log about who left."""
    found: list[dict[str, Any]] = []

    async def written() -> bool:
        found[:] = [one for one in gateway.access() if one["status"] == 499]
        return bool(found)

    await until_async(written, 10, "no line in the log")
    assert len(found) == 1
    assert (found[0]["outcome"], found[0]["reason"]) == ("cancelled", "client_closed")
    return found[0]


async def one_story(gateway: Gateway, **ended: int) -> None:
    """The core and the metrics have counted the same ends, these."""
    requests = (await gateway.admin("/health"))["requests"]
    outcomes = (await gateway.metrics()).by("forebay_requests_ended_total", "outcome")
    assert {name: count for name, count in requests.items() if count} == {"received": sum(ended.values()), **ended}
    assert {name: count for name, count in outcomes.items() if count} == ended


async def held(gateway: Gateway) -> tuple[int, int]:
    """Sequences and prompt tokens that the core holds on the first endpoint."""
    (endpoint, *_) = (await gateway.admin("/admin/v1/queues"))["endpoints"]
    return endpoint["sequences"], endpoint["prefill_tokens"]


@pytest.mark.parametrize("route", ["chat", "completions", "messages", "responses"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_simulated_engine_says_all_and_the_tenant_pays_for_all(
    tmp_path: Path, route: str, stream: bool
) -> None:
    limits = {"tpm": 100_000, "burst_s": 600, "max_concurrency": 1}
    async with Engine(tmp_path, arguments=ENGINE) as engine:
        settings = config([engine.url], endpoint=DRAINS, timeouts={"scale": 1})
        async with Gateway(settings, tmp_path, tenants=[tenant("acme", limits=limits)]) as gateway, holding(gateway):
            asked = Stage(gateway, ()).message(
                route, f"[[fb out={OUT} canary=left]]", stream=stream, max_tokens=OUT, extra=[bearer("acme")]
            )
            client = await connect(gateway.port)
            await client.send(asked)

            async def runs() -> bool:
                return bool((await engine.control("GET", "/state"))["running"])

            await until_async(runs, 10, "it does not run")
            if stream:
                await client.read_until(b"\n\n")
            client.close()
            assert (await held(gateway))[0] == 1, "its place is held until the engine has ended"
            left = await line(gateway)
            (entry,) = await engine.log()
            assert (entry["ended"], entry["abort_seen_s"], entry["output_tokens"]) == ("finished", None, OUT)
            assert left["stage"] in (("stream",) if stream else ("sent",))
            assert (left["prompt_tokens"], left["output_tokens"]) == (entry["prompt_tokens"], OUT)
            assert await held(gateway) == (0, 0)
            (limit,) = (await gateway.admin("/admin/v1/tenants/acme/usage"))["limits"]
            assert (limit["settled"], limit["held"]) == (entry["prompt_tokens"] + OUT, 0)
            await one_story(gateway, cancelled=1)
            steps = (await gateway.admin(f"/admin/v1/explain/{left['request_id']}"))["steps"]
            assert [(step["what"], step["left"]) for step in steps if "outcome" in step] == [("finished", True)]


async def test_until_its_end_nobody_else_has_the_place(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, endpoint={"max_seqs": 1, **DRAINS}, classes=EVERY_PLACE) as made, made.holding():
        made.engine.answer = gate.answer
        client = await made.begin("chat", "leaver", stream=True)
        await client.read_until(b"\n\n")
        client.close()
        waits = asyncio.create_task(made.ask("chat", "next"))

        async def queued() -> bool:
            return (await made.gateway.admin("/admin/v1/queues"))["queued"] == 1

        await until_async(queued, 5, "the next one does not wait")
        sent = len(made.engine.seen)
        gate.open.set()
        assert (await waits).status == 200
        first, second = made.engine.seen
        assert sent == 1 and not first.aborted and 0 < first.answered_s <= second.first_byte_s
        assert first.connection == second.connection, "a connection that was read to its end is as good as any"
        assert (await line(made.gateway))["bytes_out"] < 1000


@pytest.mark.parametrize("route", ["chat", "embeddings"])
async def test_an_answer_that_nobody_waits_for_is_read_whole(tmp_path: Path, route: str) -> None:
    gate = Gate()
    async with stage(tmp_path, endpoint=DRAINS) as made, made.holding():
        made.engine.answer = gate.answer
        client = await made.begin(route, "leaver")
        await until(lambda: len(made.engine.seen) == 1, 5, "not at the engine")
        client.close()
        await asyncio.sleep(0.1)
        assert await held(made.gateway) != (0, 0)
        gate.open.set()
        left = await line(made.gateway)
        assert not made.engine.seen[0].aborted
        assert (left["stage"], left["ttft_ms"], left["bytes_out"]) == ("sent", None, 0)
        assert left["prompt_tokens"] == 7


async def test_who_left_is_not_tried_elsewhere(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2, endpoint=DRAINS) as made, made.holding():
        for engine in made.engines:
            engine.answer = lambda seen: [Wait(0.3), *FAULT]
        client = await made.begin("chat", "leaver", stream=True)
        await until(lambda: any(engine.seen for engine in made.engines), 5, "not at an engine")
        client.close()
        assert (await line(made.gateway))["attempts"] == 1
        await one_story(made.gateway, cancelled=1)
        assert sum(len(engine.seen) for engine in made.engines) == 1


@pytest.mark.parametrize(
    ("timeouts", "least_s"), [({"total_s": 1.5, "idle_s": 60}, 1.2), ({"total_s": 60, "idle_s": 1}, 0.9)]
)
async def test_timeouts_hold_for_what_is_read_out(tmp_path: Path, timeouts: dict[str, Any], least_s: float) -> None:
    async with stage(tmp_path, endpoint=DRAINS, timeouts={"scale": 1, **timeouts}) as made, made.holding():
        made.engine.answer = lambda seen: [*wire.stream(wire.events("chat", ["a", "b", "c"])[:4], end=False), HANG]
        began = time.monotonic()
        client = await made.begin("chat", "leaver", stream=True)
        await client.read_until(b"\n\n")
        client.close()
        await until(lambda: made.engine.seen[0].aborted, 8, "the engine is waited for")
        assert least_s <= made.engine.seen[0].peer_closed_s - began <= 6
        assert (await line(made.gateway))["stage"] == "stream"
        await one_story(made.gateway, cancelled=1)
        assert await held(made.gateway) == (0, 0)


async def test_a_client_that_reads_nothing_holds_up_nothing_once_it_is_cut(tmp_path: Path) -> None:
    token = wire.event({"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * 1000}, "finish_reason": None}]})
    pieces = [b"".join([wire.chunk(token)] * 50)] * 200
    timeouts = {"client_stall_s": 10, "idle_s": 20}
    async with stage(tmp_path, endpoint=DRAINS, timeouts=timeouts) as made, made.holding():
        made.engine.answer = lambda seen: [wire.stream_head(), *pieces, wire.chunk(wire.DONE), wire.LAST_CHUNK]
        client = await connect(made.gateway.port, rcvbuf=4096)
        await client.send(made.message("chat", "flood", stream=True))
        await client.head()
        await until(lambda: bool(made.engine.seen[0].answered_s), 15, "the engine is not read")
        assert not made.engine.seen[0].aborted

        async def logged() -> bool:
            last = made.gateway.access()[-1:]
            return [(one["status"], one["outcome"], one["reason"]) for one in last] == [
                (499, "cancelled", "client_stalled")
            ]

        await until_async(logged, 5, "not logged")
        assert made.gateway.access()[-1]["output_tokens"] >= 10_000 > made.gateway.access()[-1]["bytes_out"] / 1000
        client.close()


async def test_a_reload_switches_it_on_and_off_for_who_leaves_then(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path) as made, made.holding():
        made.engine.answer = gate.answer
        (endpoint,) = made.gateway.settings["endpoints"]
        for drains in (True, False):
            clients = [await made.begin("chat", "leaver", stream=True) for _ in range(2)]
            for client in clients:
                await client.read_until(b"\n\n")
            await change(made.gateway, endpoints=[{**endpoint, "drain_on_abort": drains}])
            for client in clients:
                client.close()
            if drains:
                await asyncio.sleep(0.2)
                assert not made.engine.aborted() and (await held(made.gateway))[0] == 2
                gate.open.set()
                await until(lambda: all(seen.answered_s for seen in made.engine.seen), 5, "not read out")
                gate.open.clear()
            else:
                await until(lambda: len(made.engine.aborted()) == 2, 5, "the engine is read on")


async def test_the_end_of_the_gateway_waits_for_it(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, endpoint=DRAINS, timeouts={"scale": 1}) as made:
        made.engine.answer = gate.answer
        client = await made.begin("chat", "leaver", stream=True)
        await client.read_until(b"\n\n")
        client.close()
        stopped = asyncio.create_task(made.gateway.stop())
        await asyncio.sleep(0.5)
        assert not stopped.done() and not made.engine.seen[0].aborted
        gate.open.set()
        await stopped
        assert not made.engine.seen[0].aborted
        assert [one["outcome"] for one in made.gateway.access()] == ["cancelled"]
