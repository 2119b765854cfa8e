"""T15, what a slow reader leaves behind: an engine's connection that was held up for it serves the next request (C023).

A connection is held up in the read that is too much for the client's buffer, and that may be the one with the answer's last bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.processes import until
from tests.kit.raw_client import connect
from tests.kit.script_engine import Seen, Step
from tests.kit.stage import Stage, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

KIB = 1024
MOST = 5000 * KIB  # the kernel holds half of it
TOKEN = wire.event({"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * 1000}, "finish_reason": None}]})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    changes = {
        "limits": {"stream_buffer_bytes": "64KiB"},
        "timeouts": {"client_stall_s": 600},
        "upstream": {"probe_s": 60},
    }
    async with stage(tmp_path_factory.mktemp("t15"), **changes) as made:
        yield made


def plain(size: int) -> list[Step]:
    return [wire.json_answer(wire.body("chat", "x" * size))]


def chunked(size: int) -> list[Step]:
    body = b'{"text":"' + b"x" * size + b'"}'
    head = wire.head(200, extra=[("content-type", "application/json"), ("transfer-encoding", "chunked")])
    return [head + wire.chunk(body) + wire.LAST_CHUNK]


def stream(size: int) -> list[Step]:
    chunks = wire.chunk(TOKEN) * (size // len(TOKEN))
    return [wire.stream_head() + chunks + wire.chunk(wire.DONE) + wire.LAST_CHUNK]


@pytest.mark.parametrize("size", [100 * KIB, 500 * KIB, 1000 * KIB])
@pytest.mark.parametrize("kind", [plain, chunked, stream])
async def test_the_next_request_of_a_held_up_connection_is_answered(
    one: Stage, kind: Callable[[int], list[Step]], size: int
) -> None:
    """A client that takes nothing asks for one large answer after another, until neither the kernel nor the gateway
    holds more for it. In between somebody else asks for a small one."""

    def answer(seen: Seen) -> Any:
        return kind(size) if wire.prompt_of(seen.json) == "large" else wire.echo(seen)

    one.reset()
    one.engine.answer = answer
    sent = same = 0
    async with one.holding(), await connect(one.gateway.port, rcvbuf=4096) as slow:
        while same * size < MOST:
            one.engine.clear()
            sent += 1
            await slow.send(one.message("chat", "large", stream=kind is stream))
            await until(lambda: bool(one.engine.seen) and one.engine.seen[0].answered_s > 0, 15, "not answered")
            await asyncio.sleep(0.02)
            assert (await one.ask("chat", "small", timeout_s=3)).status == 200
            large, small = one.engine.seen
            if large.connection != small.connection:
                break  # held up in the middle of an answer: it is not free
            same += 1
        assert same * size > 500 * KIB
        for _ in range(sent):
            response = await slow.response(20)
            assert response.clean and len(response.body) > size * 0.9
