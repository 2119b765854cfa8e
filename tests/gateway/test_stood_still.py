"""A gateway that stood still (a frozen machine, a debugger) for longer than its timers: what came meanwhile came in time."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.kit import wire
from tests.kit.raw_client import connect
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.stage import stage

pytestmark = pytest.mark.timeout(60)

CONNECT_S, HEAD_S, BODY_GAP_S, SILENCE_S = 1.0, 1.0, 1.0, 0.5  # at a tenth of the time
STILL_S = 1.5


def with_a_gap(seen: Seen) -> list[Step]:
    steps = wire.echo(seen)
    return [*steps[:2], Wait(SILENCE_S * 0.8), *steps[2:]] if seen.json.get("stream") else steps


async def test_what_came_while_it_stood_still_came_in_time(tmp_path: Path) -> None:
    timeouts = {"client_header_s": HEAD_S * 10, "idle_s": SILENCE_S * 10}
    async with stage(tmp_path, timeouts=timeouts, upstream={"probe_s": 60}) as each:
        each.engine.answer = with_a_gap
        message = each.message("chat", "of two halves")
        end_of_head = message.index(b"\r\n\r\n")
        stream = await each.begin("chat", "a stream", stream=True)
        await stream.head()
        halves = {0: await connect(each.gateway.port), 40: await connect(each.gateway.port)}
        halves[end_of_head + 20] = await connect(each.gateway.port)
        for at, client in halves.items():
            await client.send(message[:at])
        await asyncio.sleep(0.05)
        each.gateway.signal(signal.SIGSTOP)
        for at, client in halves.items():
            await client.send(message[at:])
        await asyncio.sleep(STILL_S)
        each.gateway.signal(signal.SIGCONT)
        assert [(await client.response()).status for client in halves.values()] == [200, 200, 200]
        response = await stream.response()
        assert response.clean and b"[DONE]" in response.body
        for client in (*halves.values(), stream):
            client.close()
