"""Cases C012 and C013: many at once are all served, and none is ever given what was another's.

C012 at its full size, 2,000 streams, is `tests/bench/streams_bench.py`; its file limit at full size is T22.
"""

import asyncio
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.streams import stream_of
from tests.kit import wire
from tests.kit.gateway import Launch
from tests.kit.processes import until, until_async
from tests.kit.raw_client import Crowd, connect
from tests.kit.script_engine import FIN, RST, Seen, Step, Wait
from tests.kit.sockets import cpu_s
from tests.kit.stage import Stage, quantile, stage

pytestmark = pytest.mark.timeout(90)

STREAMS = 200
CHUNKS = 4


def unhurried(seen: Seen) -> Iterator[Step]:
    """One chunk a second."""
    head, *rest = wire.stream(stream_of("chat", [f" {at}" for at in range(CHUNKS - 2)]))
    yield head
    for step in rest[:CHUNKS]:
        yield step
        yield Wait(1.0)
    yield from rest[CHUNKS:]


async def probed(stage: Stage, done: asyncio.Event) -> list[float]:
    took: list[float] = []
    while not done.is_set():
        began = time.monotonic()
        for port in (stage.gateway.port, stage.gateway.admin_port):
            assert (await stage.gateway.get("/livez", port=port)).status == 200
        took.append(time.monotonic() - began)
        await asyncio.sleep(0.1)
    return took


@pytest.mark.serial
async def test_c012_every_stream_of_a_crowd_runs_at_once_and_probes_are_quick(tmp_path: Path) -> None:
    endpoint = {"max_seqs": STREAMS, "max_prefill_tokens": 1_000_000}
    async with stage(tmp_path, engines=2, endpoint=endpoint, timeouts={"scale": 1}) as made, made.holding():
        for engine in made.engines:
            engine.answer = unhurried
        done = asyncio.Event()
        running = [asyncio.create_task(made.ask("chat", f"n{at}", stream=True)) for at in range(STREAMS)]
        await until(lambda: sum(engine.active for engine in made.engines) == STREAMS, 5, "not all at the engines")
        probes = asyncio.create_task(probed(made, done))
        answers = await asyncio.gather(*running)
        done.set()
        assert Counter((one.status, one.end) for one in answers) == {(200, "chunked"): STREAMS}
        assert sum(engine.peak for engine in made.engines) == STREAMS
        took = await probes
        assert len(took) >= 20 and quantile(took, 0.99) < 2 * 0.05  # two probes each


@pytest.mark.serial
async def test_c012_a_thousand_connections_do_not_hurt_a_gateway_of_256_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    async with stage(tmp_path, launch=Launch(files=256), timeouts={"scale": 1}) as made, made.holding():
        crowd = await Crowd.connect(made.gateway.port, 1000)
        crowd.send(b"POST /v1/chat/completions HTTP/1.1\r\n")
        before, began = cpu_s(made.gateway.pid), time.monotonic()
        await crowd.watch(1.5, until_closed=False)
        used = (cpu_s(made.gateway.pid) - before) / (time.monotonic() - began)
        assert used < 0.5 and 64 <= len(crowd.open()) <= 128
        assert (await made.gateway.get("/livez", port=made.gateway.admin_port)).status == 200
        crowd.close()
        left = time.monotonic()

        async def served() -> bool:
            try:
                return (await made.ask("chat", "well")).status == 200
            except OSError:
                return False

        await until_async(served, 5, "it does not recover")
        answers = await asyncio.gather(*(made.ask("chat", f"n{at}", stream=True) for at in range(60)))
        assert {one.status for one in answers} == {200} and time.monotonic() - left < 5
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# C013: fuzzed answers are T16, what comes unasked on an idle connection is T18.


class Liar:
    """An engine that answers with its caller's canary, and often with something more, less or else.

    What it says unasked it says in the same breath: said later it may cross the next request, and no reader can tell.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def answer(self, seen: Seen) -> Iterator[Step]:
        canary = wire.prompt_of(seen.json)
        stale = wire.json_answer(wire.body("chat", f"stale {canary}"))
        good = list(wire.echo(seen))
        whole = b"".join(step for step in good if isinstance(step, bytes))
        body = wire.json_answer(wire.body("chat", canary))
        at = body.index(b"\r\n\r\n") + 4
        lies: list[list[Step]] = [
            [whole + stale],  # a second answer in the same breath
            [whole + stale[: len(stale) // 2]],  # half of one
            [body + b"excess"],
            [body.replace(b"content-length: ", b"content-length: 1"), Wait(0.01), FIN],  # longer than what comes
            [wire.head(extra=[("content-length", "10")]) + body[at:]],  # shorter than what comes
            [wire.head(extra=[("transfer-encoding", "chunked")]) + b"3\r\n" + body[at:] + b"\r\n0\r\n\r\n"],  # wrong chunk size
            [wire.head(extra=[("transfer-encoding", "chunked")]) + wire.chunk(body[at:]) + b"5\r\nab", Wait(0.01), FIN],
            [whole[: len(whole) // 2], Wait(0.002), RST],
            [b"HTTP/1.1 100 Continue\r\n\r\n" * 3, *good],
            [whole + b"HTTP/1.1 200 OK\r\n"],
        ]  # fmt: skip
        yield from self.random.choice(lies) if self.random.random() < 0.4 else good


async def asked(stage: Stage, at: int, r: random.Random) -> list[str]:
    """Ten requests on a connection; now and then the client leaves in the middle. What was wrong with the answers."""
    wrong = []
    client = await connect(stage.gateway.port)
    for number in range(10):
        canary = f"canary-{at:05}-{number}-"
        await client.send(stage.message("chat", canary, stream=r.random() < 0.5))
        try:
            answer = await client.response(r.uniform(0, 0.01) if r.random() < 0.2 else 10)
        except TimeoutError:
            client.close()
            client = await connect(stage.gateway.port)
            continue
        others = [word for word in answer.body.split(b"canary-")[1:] if not word.startswith(canary[7:].encode())]
        good = answer.status == 200 and answer.clean
        # An answer of ten bytes is what the engine declared.
        if (
            others
            or b"stale" in answer.body
            or (good and canary.encode() not in answer.body and len(answer.body) != 10)
        ):
            wrong.append(f"{canary} {answer.status} {answer.body[:300]!r}")
        if client.end != "open" or answer.header("connection") == "close":
            client.close()
            client = await connect(stage.gateway.port)
    client.close()
    return wrong


@pytest.mark.parametrize(
    "requests", [1_500, pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
async def test_c013_nobody_gets_what_was_anothers(tmp_path: Path, requests: int, seed: int) -> None:
    r = random.Random(seed)
    async with stage(tmp_path, engines=2, timeouts={"scale": 1}, upstream={"probe_s": 30}) as made, made.holding():
        for at, engine in enumerate(made.engines):
            engine.answer = Liar(seed + at).answer
        room = asyncio.Semaphore(8)

        async def one(at: int) -> list[str]:
            async with room:
                return await asked(made, at, r)

        wrong = await asyncio.gather(*(one(at) for at in range(requests // 10)))
        assert [line for lines in wrong for line in lines] == []
        assert sum(len(engine.seen) for engine in made.engines) > requests * 0.9


@pytest.mark.parametrize("lie", range(10))
async def test_c013_a_connection_that_lied_is_never_used_again(tmp_path: Path, lie: int) -> None:
    """Every lie by itself: the next request comes on another connection. Its twin: after a true answer, on the same."""
    async with stage(tmp_path, timeouts={"scale": 1}, upstream={"probe_s": 30}) as made, made.holding():

        class Chosen(random.Random):
            def random(self) -> float:
                return 0.0

            def choice(self, seq):  # type: ignore[no-untyped-def]
                return seq[lie]

        liar = Liar(0)
        liar.random = Chosen()
        for _ in range(3):
            await made.ask("chat", "canary-true")
        assert len({seen.connection for seen in made.engine.seen}) == 1
        made.engine.answer = liar.answer
        told = await made.ask("chat", "canary-lie")
        made.engine.answer = wire.echo
        after = await made.ask("chat", "canary-next")
        assert after.status == 200 and b"canary-next" in after.body and b"canary-lie" not in after.body
        assert b"stale" not in told.body
        honest = lie == 8  # interim answers are no lie
        last, following = made.engine.seen[-2:]
        assert (last.connection == following.connection) == honest
