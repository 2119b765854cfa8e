"""Heads and habits of clients that are allowed, or not, and seldom seen."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.script_engine import Wait
from tests.kit.stage import Stage, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("odd")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def one(house: Stage) -> AsyncIterator[Stage]:
    house.reset()
    async with house.holding():
        yield house
        house.reset()


async def test_what_comes_while_a_stream_runs_makes_it_the_last_answer_of_its_connection(one: Stage) -> None:
    first, *others = wire.stream(wire.events("chat", ("one", "two")))
    one.engine.answer = lambda seen: [first, others[0], Wait(0.2), *others[1:]]
    async with await one.begin("chat", "x", stream=True) as client:
        await client.head()
        await client.send(one.message("chat", "thrown away"))
        assert (await client.response()).end == "chunked"
        await client.read_to_end(1.0)  # 7.5 s is how long a connection may be idle
        assert (client.end, len(client.reader.done), len(one.engine.seen)) == ("fin", 1, 1)
