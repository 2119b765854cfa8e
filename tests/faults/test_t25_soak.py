"""T25, the smoke size: mixed traffic while something breaks every second (faults.md 4; C094).

C1 is asked again and again while it runs, canaries never mix, and at the end everything is back where it was. One leg
runs under asyncio's debug mode, one under `python -O`. At night a leg is 2 hours.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit import wire
from tests.kit.fault_proxy import FaultProxy
from tests.kit.gateway import Gateway, Launch, config
from tests.kit.invariants import holding
from tests.kit.processes import until_async
from tests.kit.raw_client import connect
from tests.kit.script_engine import FIN, HANG, RST, ScriptEngine, Seen, Step, Wait
from tests.kit.sizes import patience, sized
from tests.kit.sockets import rss_bytes
from tests.kit.stage import PATHS, gathered, paced

pytestmark = [pytest.mark.serial, pytest.mark.timeout(patience(120, 8000))]

SOAK_S = sized(9, 7200)
RATE_PER_S = 60
FAULT_S = 0.7
MIB = 1024 * 1024
STREAMED = ("chat", "completions", "messages", "responses")


@dataclass(slots=True)
class Soak:
    """Three engines, each behind a proxy, one gateway."""

    gateway: Gateway
    engines: list[ScriptEngine]
    proxies: list[FaultProxy]
    random: random.Random
    ended: Counter[str] = field(default_factory=Counter)
    mixed: list[str] = field(default_factory=list)
    told: set[int] = field(default_factory=set)

    async def traffic(self) -> None:
        async with asyncio.TaskGroup() as group:
            async for at in paced(RATE_PER_S, SOAK_S):
                group.create_task(self.one(at))

    async def one(self, at: int) -> None:
        """One client: any route, streamed or not; one in five leaves at some moment."""
        r = self.random
        route = r.choice(list(PATHS))
        stream = route in STREAMED and r.random() < 0.6
        leaves = r.uniform(0, 0.3) if r.random() < 0.2 else 15.0
        canary = f"canary-{at:06}-"
        body = wire.request_body(route, canary, stream=stream, model="m" if route in STREAMED else "emb")
        async with await connect(self.gateway.port) as client:
            await client.send(wire.request(PATHS[route], body))
            try:
                response = await client.response(leaves)
            except TimeoutError:
                self.ended["left" if leaves < 15 else "hung"] += 1
                return
        self.told.add(response.status)
        good = response.status == 200 and response.clean
        self.ended["good" if good else "failed"] += 1
        others = [word for word in response.body.split(b"canary-")[1:] if not word.startswith(canary[7:].encode())]
        if others or (
            good and route in STREAMED and canary.encode() not in response.body and b"error" not in response.body
        ):
            self.mixed.append(f"{canary}: {response.status} {response.body[:200]!r}")

    async def faults(self) -> None:
        """One fault at a time, on one engine, for a while."""
        kinds: list[Callable[[int], Awaitable[None]]] = [
            self.refuses, self.resets, self.freezes, self.cuts, self.answers_503, self.hangs, self.slows, self.lies, self.goes_sick,
        ]  # fmt: skip
        while True:
            await self.random.choice(kinds)(self.random.randrange(len(self.proxies)))
            await asyncio.sleep(0.3)

    async def refuses(self, at: int) -> None:
        self.proxies[at].refusing = True
        self.proxies[at].reset_all()
        await asyncio.sleep(FAULT_S)
        self.proxies[at].refusing = False

    async def resets(self, at: int) -> None:
        for _ in range(3):
            self.proxies[at].reset_all()
            await asyncio.sleep(FAULT_S / 3)

    async def freezes(self, at: int) -> None:
        self.proxies[at].down.freeze()
        await asyncio.sleep(FAULT_S)
        self.proxies[at].down.thaw()

    async def cuts(self, at: int) -> None:
        down = self.proxies[at].down
        down.cut_at, down.cut_how = self.random.randrange(1, 1500), self.random.choice(("fin", "rst", "hang"))
        await asyncio.sleep(FAULT_S)
        down.clear()
        self.proxies[at].reset_all()

    async def slows(self, at: int) -> None:
        down = self.proxies[at].down
        down.latency_s, down.jitter_s, down.slice_bytes = 0.05, 0.02, 11
        await asyncio.sleep(FAULT_S)
        down.clear()

    async def answers_503(self, at: int) -> None:
        await self._answers(
            at, lambda seen: [wire.json_answer({"error": {"message": "full", "code": 503}}, status=503)]
        )

    async def hangs(self, at: int) -> None:
        await self._answers(at, lambda seen: [HANG])

    async def lies(self, at: int) -> None:
        spoilt = (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n12", b"nonsense\r\n\r\n", b"")
        await self._answers(at, lambda seen: [self.random.choice(spoilt), self.random.choice((FIN, RST))])

    async def goes_sick(self, at: int) -> None:
        self.engines[at].healthy = False
        await asyncio.sleep(FAULT_S)
        self.engines[at].healthy = True

    async def _answers(self, at: int, answer: Callable[[Seen], list[Step]]) -> None:
        self.engines[at].answer = answer
        await asyncio.sleep(FAULT_S)
        self.engines[at].answer = unhurried


def unhurried(seen: Seen) -> list[Step]:
    """An echo that takes its time, so that there is always something under way."""
    return [step for one in wire.echo(seen) for step in (Wait(0.02), one)]


LEGS = {"debug": Launch(env={"PYTHONASYNCIODEBUG": "1"}), "optimized": Launch(optimize=True)}


async def test_soaks_with_random_faults_end_where_they_began(tmp_path: Path, seed: int) -> None:
    """Both legs at the same time: each mostly waits, and has engines of its own."""
    async with asyncio.TaskGroup() as group:
        for leg in LEGS:
            group.create_task(soaked(leg, tmp_path, seed), name=leg)


async def soaked(leg: str, directory: Path, seed: int) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptEngine(unhurried)) for _ in range(3)]
        proxies = [await stack.enter_async_context(FaultProxy(one.port)) for one in engines]
        urls = [f"http://127.0.0.1:{one.port}" for one in proxies]
        timeouts = {"first_byte_s": 5, "idle_s": 5, "total_s": 20}
        gateway = Gateway(config(urls, timeouts=timeouts), directory, launch=LEGS[leg], name=leg)
        await stack.enter_async_context(gateway)
        soak = Soak(gateway, engines, proxies, random.Random(seed))
        await warm(soak)
        before = rss_bytes(gateway.pid)
        async with holding(gateway) as invariants:
            faults, sampling = asyncio.create_task(soak.faults()), asyncio.create_task(sampled(invariants.sample))
            await soak.traffic()
            for task in (faults, sampling):
                task.cancel()
            await asyncio.gather(faults, sampling, return_exceptions=True)
            if not sampling.cancelled() and sampling.exception() is not None:
                raise sampling.exception()  # type: ignore[misc]
            await recovered(soak)
        assert soak.mixed == [] and soak.ended["hung"] == 0, (soak.mixed[:5], soak.ended)
        assert soak.ended["good"] > 0.5 * SOAK_S * RATE_PER_S, soak.ended
        assert soak.told <= {200, 500, 502, 503, 504, 529}
        assert rss_bytes(gateway.pid) - before < 20 * MIB
        print(leg, soak.ended, soak.told)


async def warm(soak: Soak) -> None:
    await gathered([soak.one(at) for at in range(300)], at_once=30)


async def sampled(sample: Callable[[], Awaitable[None]]) -> None:
    while True:
        await sample()
        await asyncio.sleep(0.1)


async def recovered(soak: Soak) -> None:
    """All faults off: every endpoint is up again, and requests are served."""
    for engine, proxy in zip(soak.engines, soak.proxies, strict=True):
        engine.answer, engine.healthy, proxy.refusing = unhurried, True, False
        for toxics in (proxy.up, proxy.down):
            toxics.clear()
        proxy.reset_all()
    await soak.gateway.wait_up(len(soak.engines), 5)

    async def served() -> bool:
        before = soak.ended["good"]
        for at in range(5):
            await soak.one(10**6 + at)
        return soak.ended["good"] > before

    await until_async(served, 5, "nothing is served after the faults")
