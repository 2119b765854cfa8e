"""A fault of our own is told as one, to the client and to the loop's handler: never as the fault of who sent the bytes."""

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest
import yaml

from gateway.app import Gateway
from gateway.config.load import read
from gateway.http.client import ClientConnection
from gateway.http.upstream import Sink, UpstreamConnection
from gateway.run import Run
from tests.kit.gateway import config


class Fault(Exception):
    """Nobody expects it."""


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.socket, self.other_end = socket.socketpair()

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else self.socket

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    with made.socket, made.other_end:
        yield made


def gateway() -> Gateway:
    made = config(["http://127.0.0.1:9"], listen={"port": 1}, admin={"port": 2})
    return Gateway(read(yaml.safe_dump(made), "forebay.yaml", os.environ))


@pytest.mark.parametrize("known", [False, True])
async def test_a_head_at_which_we_fail_is_answered_with_500(
    known: bool, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, faults = gateway(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    connection = ClientConnection(made._shared)
    connection.connection_made(wire)  # type: ignore[arg-type]
    message = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    if known:
        connection.data_received(message)
        await asyncio.sleep(0)  # what is written in a turn of the loop is written at its end
        assert wire.written.startswith(b"HTTP/1.1 400 ")

    def fail(*_: object) -> None:
        raise Fault

    monkeypatch.setattr(Run, "accept", fail)
    wire.written = b""
    connection.data_received(message)
    await asyncio.sleep(0)
    assert wire.written.startswith(b"HTTP/1.1 500 ") and b"\r\nx-forebay-reason: internal\r\n" in wire.written
    assert [type(fault) for fault in faults] == [Fault]
    connection.connection_lost(None)


class Failing(Sink):
    """Takes no head."""

    lost = False

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> Sink:
        raise Fault

    def on_lost(self, *, malformed: bool) -> None:
        self.lost = True


async def test_an_answer_at_which_we_fail_is_not_called_bad_http(wire: Wire) -> None:
    connection, sink = UpstreamConnection(gateway()._backends.by_name["e0"].connections), Failing()
    connection.connection_made(wire)  # type: ignore[arg-type]
    connection.send(b"", b"", sink, 0.0)
    await asyncio.sleep(0)  # it has been asked at the end of this turn
    with pytest.raises(Fault) as fault:
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert not sink.lost
    connection.connection_lost(fault.value)  # as the loop does
    assert sink.lost
