"""What a turn of the loop writes: together, engine by engine, clients last, and never anything out of its order."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.http.client import ClientConnection
from gateway.http.coalesce import Coalescer
from gateway.http.known import KnownHead
from gateway.http.outbox import LARGE_BYTES, MOST, TO_CLIENTS, Outbox
from gateway.http.upstream import Sink, UpstreamConnection
from tests.kit import wire
from tests.kit.raw_client import exchange
from tests.kit.script_engine import FIN, Seen, Step
from tests.kit.stage import stage

A, B = 1, 2


class Connection:
    """One that writes, and notes what is written and in which order among all."""

    def __init__(self, written: list[str], name: str) -> None:
        self.written, self.name, self.waiting, self.closing = written, name, False, False
        self.transport = cast(asyncio.Transport, self)

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written.append(f"{self.name} {data.decode()}")


async def test_a_turn_writes_at_its_end_to_one_engine_after_the_other_and_to_clients_last() -> None:
    written: list[str] = []
    one, two, three, client = (Connection(written, name) for name in ("one", "two", "three", "client"))
    outbox = Outbox()
    outbox.write(B, one, b"first")
    outbox.write(TO_CLIENTS, client, b"head")
    outbox.write(A, two, b"second")
    outbox.write(TO_CLIENTS, client, b"end")
    outbox.write(B, three, b"third")
    assert written == []
    assert all(each.waiting for each in (one, two, three, client))
    await asyncio.sleep(0)
    assert written == ["two second", "one first", "three third", "client head", "client end"]
    assert not any(each.waiting for each in (one, two, three, client))
    outbox.write(A, one, b"of the next turn")
    await asyncio.sleep(0)
    assert written[5:] == ["one of the next turn"]


async def test_a_long_turn_does_not_keep_everything_until_its_end() -> None:
    written: list[str] = []
    outbox, client = Outbox(), Connection(written, "client")
    for number in range(2 * MOST + 1):
        outbox.write(TO_CLIENTS, client, b"%d" % number)
    assert len(written) == 2 * MOST
    await asyncio.sleep(0)
    assert written == [f"client {number}" for number in range(2 * MOST + 1)]


async def test_large_pieces_do_not_gather() -> None:
    written: list[str] = []
    outbox, client = Outbox(), Connection(written, "client")
    outbox.write(TO_CLIENTS, client, b"head")
    outbox.write(TO_CLIENTS, client, b"x" * (LARGE_BYTES + 1))
    assert [len(each) for each in written] == [len("client head"), len("client ") + LARGE_BYTES + 1]
    assert not client.waiting


async def test_nothing_is_written_to_a_connection_that_is_closing() -> None:
    written: list[str] = []
    outbox, gone, there = Outbox(), Connection(written, "gone"), Connection(written, "there")
    outbox.write(A, gone, b"")
    outbox.write(A, there, b"this")
    gone.closing = True
    outbox.flush()
    assert written == ["there this"]


async def test_a_loop_that_rests_has_written_before(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("gateway.http.coalesce.sleep", lambda seconds: written.append("rest"))
    monkeypatch.setattr("gateway.http.coalesce.thread_time", lambda: 0.0)
    coalescer = Coalescer(Outbox())
    coalescer.change(1.0)
    coalescer.read(coalescer.read(0.0))
    coalescer.outbox.write(TO_CLIENTS, Connection(written, "client"), b"token")
    await asyncio.sleep(0)
    assert written == ["client token", "rest"]


async def test_what_is_written_at_once_does_not_overtake_what_waits() -> None:
    written: list[str] = []
    client = ClientConnection(cast(Any, SimpleNamespace(outbox=Outbox())))
    client.transport = Connection(written, "client").transport
    client.write(b"head")
    client.forward(b"token")
    client.forward(b"another")
    client.write(b"end")
    await asyncio.sleep(0)
    assert written == ["client head", "client token", "client another", "client end"]


class Pool:
    """Where one connection belongs."""

    known: KnownHead[dict[bytes, bytes]] | None = None

    def __init__(self) -> None:
        self.coalescer = Coalescer(Outbox())
        self.released = 0

    def opened(self, connection: UpstreamConnection) -> None: ...

    def closed(self, connection: UpstreamConnection) -> None: ...

    def release(self, connection: UpstreamConnection) -> None:
        self.released += 1

    def learn(self, data: bytes, fields: dict[bytes, bytes], *, keep: bool) -> None: ...


class Told:
    """A sink that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> Sink:
        self.heard.append("head")
        return self

    def on_whole(self, fields: dict[bytes, bytes], body: bytes) -> None:
        self.heard.append("whole")

    def on_data(self, pieces: list[bytes]) -> Callable[[bytes], bool] | None:
        self.heard.append("data")
        return None

    def on_end(self, *, by_close: bool) -> None:
        self.heard.append("end")

    def on_lost(self, *, malformed: bool) -> None:
        self.heard.append("lost")


async def test_an_engine_that_speaks_before_the_request_is_written_has_answered_something_else() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        pool, told = Pool(), Told()
        connection = UpstreamConnection(pool)
        loop = asyncio.get_running_loop()
        await loop.create_connection(cast(Any, lambda: connection), sock=ours)
        connection.send(b"POST / HTTP/1.1\r\n\r\n", b"", told, 0.0)
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")  # read in the same turn
        assert told.heard == ["lost"]
        assert await loop.sock_recv(theirs, 100) == b""  # closed, and never asked
        assert pool.released == 0


def last_words(seen: Seen) -> list[Step]:
    """Everything in one write, and the end of the connection with it."""
    return [b"".join(wire.stream(wire.events("chat", ["one", " two"]))), FIN]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_whose_connection_closes_in_the_same_turn_arrives_whole(tmp_path: Path, stream: bool) -> None:
    async with stage(tmp_path) as each:
        if stream:
            each.engine.answer = last_words
        message = each.message("chat", "hello", stream=stream, extra=[("connection", "close")])
        response = await exchange(each.gateway.port, message)
        assert response.status == 200
        assert response.clean
        assert stream is (response.body.endswith(b"data: [DONE]\n\n"))


def in_large_reads(seen: Seen) -> list[Step]:
    """A stream of more than what one read takes, written at once."""
    return wire.stream(wire.events("chat", [f" word{number:06}" for number in range(8000)]))


async def test_a_stream_that_takes_several_reads_of_one_turn_keeps_its_order(tmp_path: Path) -> None:
    async with stage(tmp_path) as each:
        each.engine.answer = in_large_reads
        response = await each.ask("chat", "a long answer", stream=True)
        assert response.clean
        words = [int(word[:6]) for word in response.body.split(b" word")[1:]]
        assert words == list(range(8000))
