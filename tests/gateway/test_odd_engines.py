"""Answers that no engine should give: each is told to the client as what it is, and costs nobody else anything."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.http_reader import Response
from tests.kit.script_engine import HANG, Step, Wait
from tests.kit.stage import Stage, error_of, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

WORDS = ("one", "two", "three", "four")


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


async def told(one: Stage, steps: list[Step], *, route: str = "chat", stream: bool = False) -> Response:
    """What a client hears of an engine that answers with these."""
    one.engine.answer = lambda seen: steps
    return await one.ask(route, "x", stream=stream)


def reason(response: Response) -> tuple[int, str | None]:
    return response.status, response.header("x-forebay-reason")


@pytest.mark.parametrize("status", [419, 420, 430, 444, 452, 498, 499])
async def test_a_refusal_passes_under_a_status_that_has_no_name(one: Stage, status: int) -> None:
    refusal = {"error": {"message": "not like this", "type": "odd", "code": status}}
    answer = await told(one, [wire.json_answer(refusal, status=status)])
    assert (reason(answer), json.loads(answer.body)) == ((status, "backend_rejected"), refusal)
    first_event = await told(one, wire.stream([wire.event(refusal)]), stream=True)
    assert (reason(first_event), json.loads(first_event.body)) == ((status, "backend_rejected"), refusal)


@pytest.mark.parametrize("status", [204, 205])
async def test_a_good_status_that_has_no_body_is_no_answer(one: Stage, status: int) -> None:
    framed = b"" if status == 204 else b"content-length: 2\r\n"
    answer = await told(one, [b"HTTP/1.1 %d Nothing\r\n%b\r\n" % (status, framed) + b"{}"[: len(framed)]])
    assert reason(answer) == (502, "backend_protocol_error") and error_of(answer)["code"] == "backend_protocol_error"


@pytest.mark.parametrize("route", ["embeddings", "rerank", "score"])
async def test_events_on_a_route_that_has_none_pass_as_they_are(one: Stage, route: str) -> None:
    events = wire.events("chat", WORDS)
    answer = await told(one, wire.stream(events), route=route)
    assert (answer.status, answer.body, answer.clean) == (200, b"".join(events), True)


@pytest.mark.parametrize(("comments", "status"), [(5_900, 422), (6_000, 200)])
async def test_comments_wait_for_an_event_until_they_are_64_kib(one: Stage, comments: int, status: int) -> None:
    refusal = wire.event({"error": {"message": "after all", "code": 422}})
    waiting = b": waiting\n\n" * 100
    steps = wire.stream([*[waiting] * (comments // 100), refusal])
    answer = await told(one, [*steps[:-2], Wait(0.2), *steps[-2:]], stream=True)
    assert answer.status == status and b"after all" in answer.body
    assert answer.body.count(b": waiting") == (comments if status == 200 else 0)


ANSWER = wire.json_answer(wire.body("chat", "good"))
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" + wire.chunk(b"{}")


@pytest.mark.parametrize(
    "begins", [b"HTTP/2.0 200 OK", b"HTTP/0.9 200 OK", b"HTTP/1.2 200 OK", b"\r\nHTTP/1.1 200 OK", b"RTSP/1.0 200 OK"]
)
async def test_a_status_line_of_something_else_is_no_answer(one: Stage, begins: bytes) -> None:
    answer = await told(one, [ANSWER.replace(b"HTTP/1.1 200 OK", begins)])
    assert reason(answer) == (502, "backend_protocol_error")
    assert len({seen.connection for seen in one.engine.seen}) == len(one.engine.seen)  # no connection is used again


@pytest.mark.parametrize(("fields", "status"), [(6, 200), (7, 502)])
async def test_a_head_measures_64_kib_at_most_in_however_few_reads(one: Stage, fields: int, status: int) -> None:
    line_end = ANSWER.index(b"\r\n") + 2
    large = b"".join(b"x-%d: %b\r\n" % (at, b"a" * 10_000) for at in range(fields))
    assert (await told(one, [ANSWER[:line_end] + large + ANSWER[line_end:]])).status == status


async def test_a_trailer_without_an_end_is_not_kept(one: Stage) -> None:
    endless = [b"0\r\nx: ", Wait(0.1), *[b"y" * 10_000] * 10, HANG]
    answer = await told(one, [CHUNKED, *endless])
    assert reason(answer) == (502, "backend_protocol_error")
    events = wire.events("chat", WORDS)
    answer = await told(one, [*wire.stream(events, end=False), *endless], stream=True)
    assert (answer.status, answer.clean, answer.body.endswith(wire.DONE)) == (200, True, True)


async def test_chunks_with_long_names_are_no_trailers(one: Stage) -> None:
    chunks = [b"1;%b\r\n%c\r\n" % (b"n" * 10_000, byte) for byte in ANSWER.partition(b"\r\n\r\n")[2][:20]]
    answer = await told(one, [CHUNKED.replace(wire.chunk(b"{}"), b""), *chunks, wire.LAST_CHUNK])
    assert (answer.status, len(answer.body)) == (200, 20)
