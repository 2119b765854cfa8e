"""A client made of bytes: what is sent, when, and how the connection ends are the test's to say.

Nothing is added, corrected or retried. Every read is kept with the time it came.
"""

import asyncio
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.kit.http_reader import Response, ResponseReader

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close() sends RST


@dataclass(slots=True)
class Piece:
    """What one read brought, and when (`time.monotonic()`)."""

    at: float
    data: bytes


@dataclass(slots=True)
class Connection:
    """One TCP connection. `end` is open | fin | rst, as seen from here."""

    sock: socket.socket
    pieces: list[Piece] = field(default_factory=list)
    end: str = "open"
    ended_at: float = 0.0
    reader: ResponseReader = field(default_factory=ResponseReader)

    @property
    def received(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def local_port(self) -> int:
        port: int = self.sock.getsockname()[1]
        return port

    def left(self) -> bool:
        """Whether the peer has closed it, or said something, since its last answer."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def send_slowly(self, data: bytes, *, step: int = 1, pause_s: float = 0.0) -> None:
        """`step` bytes per segment (TCP_NODELAY is on), `pause_s` between them."""
        for at in range(0, len(data), step):
            await self.send(data[at : at + step])
            await asyncio.sleep(pause_s)

    async def read(self, size: int = 65536) -> bytes:
        """The next bytes, b"" at the end; never raises for a reset, `end` tells."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self.sock, size)
        except (ConnectionResetError, BrokenPipeError):
            self._ended("rst")
            return b""
        if not data:
            self._ended("fin")
            return b""
        self.pieces.append(Piece(time.monotonic(), data))
        self.reader.feed(data)
        return data

    async def read_to_end(self, timeout_s: float = 10.0) -> bytes:
        """Everything until the peer closes; TimeoutError if it does not."""
        async with asyncio.timeout(timeout_s):
            while await self.read():
                pass
        return self.received

    async def read_until(self, mark: bytes, timeout_s: float = 10.0) -> bytes:
        """Everything received once `mark` is in it or the connection has ended."""
        async with asyncio.timeout(timeout_s):
            while mark not in self.received and await self.read():
                pass
        return self.received

    async def read_at(self, bytes_per_s: float, seconds: float) -> int:
        """Read that slowly for that long; how many bytes came."""
        step = max(1, round(bytes_per_s / 20))
        came, until = 0, time.monotonic() + seconds
        while time.monotonic() < until and self.end == "open":
            came += len(await self.read(step))
            await asyncio.sleep(step / bytes_per_s)
        return came

    async def response(self, timeout_s: float = 10.0) -> Response:
        """The next whole answer, or what there was of it when the connection ended."""
        before = len(self.reader.done)
        async with asyncio.timeout(timeout_s):
            while len(self.reader.done) == before and self.end == "open":
                await self.read()
        return self.reader.done[before] if len(self.reader.done) > before else self.reader.current

    async def head(self, timeout_s: float = 10.0) -> Response:
        """The answer as far as it is known once its head is complete."""
        async with asyncio.timeout(timeout_s):
            while not self.reader.headers_complete and not self.reader.done and self.end == "open":
                await self.read()
        return self.reader.done[-1] if self.reader.done else self.reader.current

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """RST, whatever is unread or unsent."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close()

    def close(self) -> None:
        self.sock.close()

    def _ended(self, how: str) -> None:
        if self.end == "open":
            self.end, self.ended_at = how, time.monotonic()
            self.reader.ended(how)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


async def connect(port: int, *, host: str = "127.0.0.1", rcvbuf: int = 0, sndbuf: int = 0) -> Connection:
    """A connection; small buffers make backpressure visible on loopback, which is otherwise too kind."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if rcvbuf:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    if sndbuf:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return Connection(sock)


async def exchange(port: int, data: bytes, *, timeout_s: float = 10.0) -> Response:
    """Send one message on a connection of its own and read one answer."""
    async with await connect(port) as connection:
        connection.reader = ResponseReader(head_only=data.startswith(b"HEAD "))
        await connection.send(data)
        return await connection.response(timeout_s)


@dataclass(slots=True)
class Member:
    """One socket of a crowd."""

    sock: socket.socket
    received: bytes = b""
    end: str = "open"
    ended_at: float = 0.0


class Crowd:
    """Many sockets in one task: a selector of its own, polled from the loop, because 1,000 tasks would be the load."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members = list(members)
        self._selector = selectors.DefaultSelector()
        for member in self.members:
            self._selector.register(member.sock, selectors.EVENT_READ, member)

    @classmethod
    async def connect(cls, port: int, count: int, *, host: str = "127.0.0.1") -> "Crowd":
        connections = [await connect(port, host=host) for _ in range(count)]
        return cls(Member(connection.sock) for connection in connections)

    def send(self, data: bytes) -> None:
        """`data` to every open member; it must fit the socket's buffer."""
        for member in self.open():
            try:
                member.sock.sendall(data)
            except OSError as error:
                self._end(member, "rst" if isinstance(error, ConnectionError) else "full")

    def open(self) -> list[Member]:
        return [member for member in self.members if member.end == "open"]

    async def watch(self, seconds: float, *, until_closed: bool = True) -> None:
        """Read whatever comes for so long, or until every member has been closed by the peer."""
        stop = time.monotonic() + seconds
        while time.monotonic() < stop and not (until_closed and not self.open()):
            for key, _ in self._selector.select(0):
                self._read(key.data)
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self._selector.close()
        for member in self.members:
            member.sock.close()

    def _read(self, member: Member) -> None:
        try:
            data = member.sock.recv(65536)
        except ConnectionError:
            self._end(member, "rst")
            return
        if data:
            member.received += data
        else:
            self._end(member, "fin")

    def _end(self, member: Member, how: str) -> None:
        member.end, member.ended_at = how, time.monotonic()
        self._selector.unregister(member.sock)
