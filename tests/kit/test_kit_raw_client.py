"""The raw client and its reader tell exactly what came, when, and how it ended."""

import asyncio
import time

import pytest

from tests.kit import wire
from tests.kit.http_reader import responses
from tests.kit.raw_client import Crowd, connect, exchange
from tests.kit.script_engine import FIN, HANG, RST, ScriptEngine, Wait

GET = wire.request("/v1/chat/completions", wire.request_body("chat", "hello"))
STREAM = wire.stream([b"data: 1\n\n", b"data: 2\n\n"])


@pytest.mark.parametrize(
    ("data", "end", "found"),
    [
        (wire.answer(b"ab"), "open", ("length", b"ab")),
        (wire.answer(b""), "open", ("length", b"")),
        (b"".join(STREAM), "open", ("chunked", b"data: 1\n\ndata: 2\n\n")),
        (b"".join(STREAM[:-1]), "fin", ("cut_fin", b"data: 1\n\ndata: 2\n\n")),
        (b"".join(STREAM)[:-1], "rst", ("cut_rst", b"data: 1\n\ndata: 2\n\n")),
        (wire.head() + b"abc", "fin", ("fin", b"abc")),
        (wire.head() + b"abc", "rst", ("cut_rst", b"abc")),
        (wire.answer(b"abcdef")[:-2], "fin", ("cut_fin", b"abcd")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "open", ("empty", b"")),
        (b"HTTP/1.1 200", "fin", ("cut_fin", b"")),
    ],
)
def test_the_reader_tells_how_an_answer_ended(data: bytes, end: str, found: tuple[str, bytes]) -> None:
    (response,) = responses(data, end)
    assert (response.end, response.body) == found


def test_the_reader_gives_the_same_for_every_split() -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + b"".join(STREAM) + wire.answer(b"second")
    whole = responses(data)
    for cut in range(len(data)):
        from tests.kit.http_reader import ResponseReader

        reader = ResponseReader()
        reader.feed(data[:cut])
        reader.feed(data[cut:])
        assert reader.done == whole
    assert whole[0].interim == [100]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad line\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcXX",
    ],
)
def test_the_reader_refuses_bad_framing(data: bytes) -> None:
    with pytest.raises(ValueError):
        responses(data)


async def test_bytes_come_with_the_time_they_came() -> None:
    async with (
        ScriptEngine(lambda _: [STREAM[0], STREAM[1], Wait(0.15), *STREAM[2:]]) as engine,
        await connect(engine.port) as client,
    ):
        await client.send(GET)
        answer = await client.response()
        assert answer.clean
        assert client.pieces[-1].at - client.pieces[0].at >= 0.14


@pytest.mark.parametrize(("end", "seen"), [(FIN, "cut_fin"), (RST, "cut_rst")])
async def test_a_cut_is_seen_as_what_it_was(end: object, seen: str) -> None:
    async with ScriptEngine(lambda _: [*STREAM[:2], end]) as engine:  # type: ignore[list-item]
        answer = await exchange(engine.port, GET)
        assert (answer.end, answer.body) == (seen, b"data: 1\n\n")


async def test_a_reset_by_the_client_is_seen_by_the_server() -> None:
    async with ScriptEngine(lambda _: [HANG]) as engine:
        client = await connect(engine.port)
        await client.send_slowly(GET, step=40)
        async with asyncio.timeout(2):
            while not engine.seen:
                await asyncio.sleep(0.005)
        client.reset()
        async with asyncio.timeout(2):
            while not engine.aborted():
                await asyncio.sleep(0.005)


async def test_a_half_closed_client_still_reads() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(wire.answer(b"after the end"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, await connect(server.sockets[0].getsockname()[1]) as client:
        await client.send(GET)
        client.half_close()
        assert (await client.response()).body == b"after the end"


async def test_a_slow_reader_with_a_small_buffer_holds_the_sender_back() -> None:
    sent = 0

    def flood(_: object):  # type: ignore[no-untyped-def]
        nonlocal sent
        yield wire.stream_head()
        for _step in range(400):
            sent += 65536
            yield wire.chunk(b"x" * 65536)

    async with ScriptEngine(flood) as engine, await connect(engine.port, rcvbuf=4096) as client:
        await client.send(GET)
        came = await client.read_at(20_000, 0.3)
        assert 1000 < came < 12_000
        assert sent < 400 * 65536


async def test_a_thousand_sockets_live_in_one_task() -> None:
    async with ScriptEngine() as engine:
        crowd = await Crowd.connect(engine.port, 1000)
        try:
            crowd.send(GET)
            began = time.monotonic()
            while any(b"hello" not in member.received for member in crowd.members):
                await crowd.watch(0.05)
                assert time.monotonic() - began < 15
            assert len(engine.seen) == 1000
            engine.drop_connections()
            await crowd.watch(5)
            assert not crowd.open()
        finally:
            crowd.close()
