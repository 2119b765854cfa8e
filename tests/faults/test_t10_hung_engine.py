"""T10: one engine of three hangs; the others do not feel it, and what it holds ends at its timer (faults.md 4; C003)."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.http_reader import Response
from tests.kit.script_engine import HANG, Script, Seen, Step, Wait
from tests.kit.stage import Stage, paced, quantile, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.serial, pytest.mark.timeout(90)]

TIMEOUT_S = 1.0  # first byte and idle, at a tenth of 10 s
RATE_PER_S = 60
SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Took:
    seconds: float
    response: Response

    @property
    def good(self) -> bool:
        return self.response.status == 200 and self.response.clean

    @property
    def elsewhere(self) -> bool:
        """Never placed on the engine that hangs."""
        return self.good and self.response.header("x-forebay-attempts") == "1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    timeouts = {"first_byte_s": 10, "idle_s": 10, "total_s": 30}
    async with stage(tmp_path_factory.mktemp("t10"), engines=3, timeouts=timeouts) as made:
        yield made


def healthy(seen: Seen) -> list[Step]:
    head, *events = wire.stream(wire.events("chat", ["a", "b", "c"]))
    return [Wait(0.08), head, *(step for event in events for step in (event, Wait(0.01)))]


def silent(seen: Seen) -> list[Step]:
    return [HANG]


def stalling(seen: Seen) -> list[Step]:
    return [*wire.stream(wire.events("chat", ["a", "b", "c", "d"])[:5], end=False), HANG]


async def load(stage: Stage) -> list[Took]:
    """Streams at a fixed rate, whatever becomes of earlier ones."""

    async def one(at: int) -> Took:
        began = time.monotonic()
        response = await stage.ask("chat", f"n{at}", stream=True)
        return Took(time.monotonic() - began, response)

    running = [asyncio.create_task(one(at)) async for at in paced(RATE_PER_S, SECONDS)]
    return list(await asyncio.gather(*running))


async def compared(stage: Stage, fault: Script) -> tuple[float, float, list[Took]]:
    """p99 without and with the fault. A baseline that moves says nothing, and a busy machine may move what follows it:
    measured once more then, and no third time."""
    for last in (False, True):
        stage.reset()
        for engine in stage.engines:
            engine.answer = healthy
        before = [one.seconds for one in await load(stage)]
        half = len(before) // 2
        first, second = quantile(before[:half], 0.99), quantile(before[half:], 0.99)
        steady = abs(first - second) <= 0.2 * max(first, second)
        if not steady and last:
            raise AssertionError(f"inconclusive: the baseline's p99 moved from {first:.3f} to {second:.3f} s")
        stage.engine.answer = fault
        during = await load(stage)
        alone, beside = quantile(before, 0.99), quantile([one.seconds for one in during if one.elsewhere], 0.99)
        if last or (steady and within(alone, beside)):
            return alone, beside, during
    raise AssertionError("never reached")


def within(alone: float, beside: float) -> bool:
    """Less than 10 % more, and 10 ms for the clock of a test machine."""
    return beside <= alone * 1.1 + 0.01


@pytest.mark.parametrize(("fault", "reason"), [(silent, "backend_timeout"), (stalling, "backend_stall")])
async def test_a_hung_engine_is_felt_by_nobody_else(three: Stage, fault: Script, reason: str) -> None:
    async with three.holding():
        alone, beside, during = await compared(three, fault)
        hung = [one for one in during if not one.elsewhere]
        assert beside <= alone * 1.1 + 0.01, (
            f"p99 {alone * 1e3:.0f} ms alone, {beside * 1e3:.0f} ms beside a hung engine"
        )
        assert hung and len(during) - len(hung) >= 0.4 * len(during)
        assert max(one.seconds for one in hung) <= TIMEOUT_S + 1.0
        failed = [one.response for one in hung if not one.good]  # before its first byte it may be placed once more
        assert {said(one) for one in failed} <= {reason}
        assert all(not one.clean or one.status == 504 for one in failed)
        three.reset()


def said(response: Response) -> str:
    """The reason the client was given, in the head or in the frame."""
    frame = response.body.rpartition(b'"code":')[2].lstrip().split(b'"')
    return response.header("x-forebay-reason") or (frame[1].decode() if len(frame) > 1 else "none")


async def test_an_answer_that_is_not_streamed_ends_at_the_total_timer(three: Stage) -> None:
    async with three.holding():
        for engine in three.engines:
            engine.answer = silent
        began = time.monotonic()
        answers = await asyncio.gather(*(three.ask("chat", f"x{at}") for at in range(6)))
        assert {one.status for one in answers} == {504}
        assert 2.5 <= time.monotonic() - began <= 4.0
        three.reset()
