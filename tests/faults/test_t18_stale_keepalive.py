"""T18: a pooled connection that its engine has closed, or is just closing, costs nobody an error (faults.md 4; C001).

Every lane has a model and an engine of its own, so that the gap on its one connection is exactly what the lane waits.
"""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.raw_client import connect, exchange
from tests.kit.script_engine import FIN, RST, Seen, Step
from tests.kit.stage import Stage, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.serial]

LANES = 50
EACH = 10  # 500 requests
TABLE_S = 0.3  # vLLM's 5 s less 2, at a tenth


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lanes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("t18"), engines=LANES, own_models=True, upstream={"probe_s": 30}) as made:
        yield made


async def lane(made: Stage, at: int, gaps: list[float]) -> list[int]:
    """One request after each gap, on a client connection that stays."""
    statuses = []
    async with await connect(made.gateway.port) as client:
        for number, gap in enumerate(gaps):
            await asyncio.sleep(gap)
            text = f"lane {at} number {number}"
            await client.send(made.message("chat", text, model=f"m{at}"))
            response = await client.response()
            statuses.append(response.status if text.encode() in response.body else -response.status)
    return statuses


@pytest.mark.parametrize(("edge_s", "engine_closes_s"), [(TABLE_S, None), (0.2, 0.2), (0.5, 0.5)])
async def test_no_gap_around_an_idle_limit_fails(
    lanes: Stage, edge_s: float, engine_closes_s: float | None, seed: int
) -> None:
    """Around our own limit; around that of an engine that closes earlier than its table says; and of one that keeps it."""
    r = random.Random(seed)
    for engine in lanes.engines:
        engine.clear()
        engine.idle_close_s = engine_closes_s
    async with lanes.holding():
        gaps = [[edge_s + r.uniform(-0.02, 0.02) for _ in range(EACH)] for _ in range(LANES)]
        statuses = await asyncio.gather(*(lane(lanes, at, gaps[at]) for at in range(LANES)))
        assert Counter(status for one in statuses for status in one) == {200: LANES * EACH}
        for engine in lanes.engines:
            texts = [wire.prompt_of(seen.json) for seen in engine.seen]
            assert len(texts) == len(set(texts)) == EACH


async def test_a_pooled_connection_that_dies_silently_is_resent_once(lanes: Stage) -> None:
    """The engine takes the request on a reused connection and closes without a byte: the resend is on a fresh one."""
    engine = lanes.engine
    engine.idle_close_s = None
    message = lanes.message("chat", "warm", model="m0")
    for how in (FIN, RST):
        async with lanes.holding():
            reused = False
            while not reused:  # a machine that stands still for longer than a connection is kept has none to reuse
                engine.clear()
                before = await lanes.gateway.metrics()
                assert (await exchange(lanes.gateway.port, message)).status == 200
                engine.once.append([how])
                answer = await exchange(lanes.gateway.port, message)
                reused = engine.seen[1].connection == engine.seen[0].connection
            after = await lanes.gateway.metrics()
        resent = [one.sum("forebay_attempts_total", result="stale_resent") for one in (before, after)]
        assert (answer.status, resent[1] - resent[0]) == (200, 1)
        places = [(seen.index, seen.connection == engine.seen[0].connection) for seen in engine.seen]
        assert places[1:] == [(places[0][0] + 1, True), (0, False)]


async def test_the_death_of_a_fresh_connection_is_an_ordinary_failure(lanes: Stage) -> None:
    engine = lanes.engine
    engine.clear()
    engine.drop_connections()
    await asyncio.sleep(TABLE_S + 0.1)  # nothing pooled any more
    async with lanes.holding():
        engine.once.append([FIN])
        response = await exchange(lanes.gateway.port, lanes.message("chat", "fresh", model="m0"))
        assert (response.status, response.header("x-forebay-reason")) == (502, "backend_unavailable")
        assert len(engine.seen) == 1


EXCESS = {
    "a second answer": wire.json_answer({"choices": [], "stale": "not yours"}),
    "a head without its body": wire.head(extra=[("content-length", "400")]),
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "more body than was told": b'{"stale": "not yours"}',
}


@pytest.mark.parametrize("excess", EXCESS)
async def test_what_an_engine_says_unasked_is_never_an_answer(lanes: Stage, excess: str) -> None:
    """Its connection is not used again, whether that came with the answer or behind it (aiohttp#12953, Pingora)."""
    engine = lanes.engine
    engine.clear()

    def apart(seen: Seen) -> list[Step]:
        return [*wire.echo(seen), EXCESS[excess]]

    def together(seen: Seen) -> list[Step]:
        return [b"".join([*wire.echo(seen), EXCESS[excess]])]  # type: ignore[list-item]

    async with lanes.holding():
        for at in range(24):
            engine.answer = (apart, wire.echo, together, wire.echo)[at % 4]
            response = await exchange(lanes.gateway.port, lanes.message("chat", f"own {at}", model="m0"))
            assert (
                response.status == 200 and f"own {at}".encode() in response.body and b"not yours" not in response.body
            )
        engine.answer = wire.echo


async def test_bytes_that_wait_unread_on_a_pooled_connection_are_nobodys_answer(lanes: Stage) -> None:
    """The gateway wakes up to an unasked answer and a new request in the same moment: nothing unread is reused."""
    engine = lanes.engine
    engine.clear()
    async with lanes.holding():
        for at in range(10):
            message = lanes.message("chat", f"own {at}", model="m0")
            assert (await exchange(lanes.gateway.port, message)).status == 200
            async with await connect(lanes.gateway.port) as client:
                lanes.gateway.signal(signal.SIGSTOP)
                await client.send(message)
                engine.say(wire.json_answer({"choices": [], "stale": "not yours"}))
                lanes.gateway.signal(signal.SIGCONT)
                assert f"own {at}".encode() in (await client.response()).body


async def test_a_connection_whose_client_reads_slowly_is_not_pooled_asleep(lanes: Stage) -> None:
    """Backpressure pauses the engine's connection; the next request on it must be read again."""
    engine = lanes.engine
    engine.clear()
    big = wire.body("chat", "x" * 900_000)
    async with lanes.holding():
        engine.answer = lambda seen: [wire.json_answer(big)]
        async with await connect(lanes.gateway.port, rcvbuf=4096) as slow:
            await slow.send(lanes.message("chat", "large", model="m0"))
            await slow.head()
            engine.answer = wire.echo
            for at in range(3):
                response = await exchange(
                    lanes.gateway.port, lanes.message("chat", f"after {at}", model="m0"), timeout_s=1
                )
                assert f"after {at}".encode() in response.body
            assert (await slow.response()).clean
