"""T4, the connections that clients keep: a gateway that goes down answers what is sent on them, also what is sent in
the very moment it would close them, and whoever stands at its door is let in (http.md 12).

Not every client resends a POST whose connection broke: each of these would be a failed request.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit import wire
from tests.kit.gateway import Gateway, Launch
from tests.kit.http_reader import Response
from tests.kit.processes import until_async
from tests.kit.raw_client import Connection, connect
from tests.kit.redis import RedisServer, needs_redis
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.stage import Stage, stage

pytestmark = pytest.mark.timeout(120)

LAG_S = 0.3
SILENT_S = LAG_S + 0.1  # a second, at a tenth of the time
LINGERING_S = 0.2
WORKERS = 2


@asynccontextmanager
async def going_down(directory: Path, **changes: Any) -> AsyncIterator[Stage]:
    """A gateway that ends by itself within the test."""
    admission = {"drain_lag_s": LAG_S * 10, "drain_grace_s": 200}
    async with stage(directory, admission=admission, endpoint={"max_seqs": 256}, **changes) as each:
        yield each
        assert each.gateway.child is not None
        assert await each.gateway.child.wait(10) == 0


async def drain(gateway: Gateway) -> None:
    gateway.signal(signal.SIGTERM)

    async def begun() -> bool:
        return b'"event":"draining"' in gateway.stderr()

    await until_async(begun, 5, "it does not drain", every_s=0.01)


async def ask(client: Connection, each: Stage, text: str) -> Response:
    await client.send(each.message("chat", text))
    return await client.response(10)


def told(response: Response) -> tuple[int, str | None]:
    return response.status, response.header("connection")


async def test_what_came_while_the_gateway_stood_still_is_answered(tmp_path: Path) -> None:
    """Its lag is over when it goes on: there are requests on kept connections, and on such as it has not let in."""
    async with going_down(tmp_path) as each:
        kept = [await connect(each.gateway.port) for _ in range(10)]
        for at, client in enumerate(kept):
            assert told(await ask(client, each, f"before {at}")) == (200, None)
        await drain(each.gateway)
        each.gateway.signal(signal.SIGSTOP)
        await asyncio.sleep(SILENT_S + 0.2)
        new = [await connect(each.gateway.port) for _ in range(30)]
        for at, client in enumerate(kept + new):
            await client.send(each.message("chat", f"meanwhile {at}"))
        each.gateway.signal(signal.SIGCONT)
        answers = await asyncio.gather(*(client.response(10) for client in kept + new))
        assert [told(answer) for answer in answers] == [(200, "close")] * 40
        seen = [wire.prompt_of(one.json) for one in each.engine.seen]
        assert sorted(seen) == sorted({*(f"before {at}" for at in range(10)), *(f"meanwhile {at}" for at in range(40))})
        for client in kept + new:
            client.close()


def slow_stream(seen: Seen) -> list[Step]:
    steps = wire.echo(seen)
    return [*steps[:2], Wait(LAG_S + 0.3), *steps[2:]] if seen.json.get("stream") else steps


async def test_a_stream_that_outlasts_the_lag_leaves_a_connection_for_one_more_request(tmp_path: Path) -> None:
    """Its head said nothing of a close."""
    async with going_down(tmp_path) as each:
        each.engine.answer = slow_stream
        client = await each.begin("chat", "stream", stream=True)
        await client.head()
        await drain(each.gateway)
        stream = await client.response(10)
        assert (told(stream), stream.clean) == ((200, None), True)
        assert told(await ask(client, each, "after it")) == (200, "close")
        client.close()


async def test_a_connection_on_which_nothing_comes_holds_up_the_end_for_a_moment_only(tmp_path: Path) -> None:
    async with going_down(tmp_path) as each:
        each.engine.answer = slow_stream
        client, new = await each.begin("chat", "stream", stream=True), await connect(each.gateway.port)
        await client.head()
        await drain(each.gateway)
        assert (await client.response(10)).clean
        assert each.gateway.child is not None
        assert (
            await each.gateway.child.wait(SILENT_S + LINGERING_S + 2) == 0
        )  # kept alive it would be 7.5 s, of a grace of 20
        client.close()
        new.close()


async def test_a_request_that_crosses_the_close_is_not_processed_and_its_sender_not_reset(tmp_path: Path) -> None:
    async with going_down(tmp_path) as each:
        kept = await connect(each.gateway.port)
        assert told(await ask(kept, each, "before")) == (200, None)
        await drain(each.gateway)
        assert await kept.read_to_end() and kept.end == "fin"
        await kept.send(each.message("chat", "too late"))
        await asyncio.sleep(LINGERING_S / 4)
        assert await kept.read() == b"" and kept.end == "fin"
        assert [wire.prompt_of(one.json) for one in each.engine.seen] == ["before"]
        kept.close()


async def first_of(each: Stage) -> Any:
    return (await each.gateway.admin("/health"))["workers"][0]


@needs_redis
async def test_one_of_several_workers_goes_down_and_nobody_notices(tmp_path: Path) -> None:
    """Clients that keep their connections, and such as come anew all the time, each to the worker the kernel names."""
    async with RedisServer(tmp_path) as redis, stage(
        tmp_path,
        launch=Launch(workers=WORKERS),
        redis={"url": redis.url},
        isolation={"salt_secret": "s" * 40},
        endpoint={"max_seqs": 256},
        admission={"drain_lag_s": LAG_S * 10},
    ) as each:  # fmt: skip
        stop = asyncio.Event()
        lost: list[tuple[str, int, str]] = []

        async def load(name: str, pause_s: float) -> int:
            """Requests one after another on a connection that is kept as long as the gateway keeps it."""
            client: Connection | None = None
            number = 0
            while not stop.is_set():
                client = client or await connect(each.gateway.port)
                answer = await ask(client, each, f"{name} {number}")
                number += 1
                if answer.status != 200 or not answer.clean:
                    lost.append((f"{name} {number}", answer.status, client.end))
                if answer.header("connection") == "close" or not pause_s or client.end != "open":
                    client.close()
                    client = None
                await asyncio.sleep(pause_s or 0.02)
            if client is not None:
                client.close()
            return number

        async with asyncio.TaskGroup() as group:
            loads = [group.create_task(load(f"{at}", 0.02 * (at % 4))) for at in range(20)]
            for _ in range(2):
                victim = (await first_of(each))["pid"]
                os.kill(victim, signal.SIGTERM)

                async def replaced(before: int = victim) -> bool:
                    first = await first_of(each)
                    return first["state"] == "serving" and first["pid"] != before

                await until_async(replaced, 20, "no other took its place")
            stop.set()
        assert lost == []
        seen = Counter(wire.prompt_of(one.json) for one in each.engine.seen)
        assert set(seen.values()) == {1} and len(seen) == sum(one.result() for one in loads) > 500
