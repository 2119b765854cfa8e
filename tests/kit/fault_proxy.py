"""A TCP proxy that does harm, one set of toxics per direction, changed at any time from the test.

The eight toxics of toxiproxy (latency with jitter, bandwidth, slow close, timeout, reset peer, slicer, limit data),
and two of our own: freeze, and a cut at an exact byte by FIN, RST or silence.
"""

import asyncio
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.kit.raw_client import RESET_ON_CLOSE

PIECE = 65536
Queue = asyncio.Queue[tuple[float, bytes]]  # when it is due, what; b"" = the end


@dataclass(slots=True)
class Toxics:
    """What happens to the bytes of one direction. Everything off by default; read anew for every piece.

    `timeout_s` swallows all bytes and closes after that time (0 = never closes); `reset_after_s` sends RST to the
    receiver so long after the connection began; `cut_at` counts this direction's bytes of one connection.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    slice_bytes: int = 0
    slice_pause_s: float = 0.0
    slow_close_s: float = 0.0
    timeout_s: float | None = None
    reset_after_s: float | None = None
    cut_at: int | None = None
    cut_how: str = "fin"  # fin (= limit data) | rst | hang
    frozen: bool = False
    thawed: asyncio.Event = field(default_factory=asyncio.Event)

    def freeze(self) -> None:
        """Bytes wait, connections stay."""
        self.frozen = True
        self.thawed.clear()

    def thaw(self) -> None:
        self.frozen = False
        self.thawed.set()

    def clear(self) -> None:
        """Everything off; what is frozen flows again."""
        fresh = Toxics()
        for name in Toxics.__dataclass_fields__:
            if name not in ("frozen", "thawed"):
                setattr(self, name, getattr(fresh, name))
        self.thaw()


@dataclass(slots=True)
class Pair:
    """One client connection and its upstream one."""

    client: asyncio.StreamWriter
    upstream: asyncio.StreamWriter
    up_bytes: int = 0
    down_bytes: int = 0


class FaultProxy:
    """`up` is client to server, `down` server to client. `async with FaultProxy(port)`, then use `.port`."""

    def __init__(self, target_port: int, *, target_host: str = "127.0.0.1", seed: int = 1) -> None:
        self.up, self.down = Toxics(), Toxics()
        self.port = 0
        self.accepted = 0
        self.refusing = False
        self.pairs: list[Pair] = []
        self._target = (target_host, target_port)
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=PIECE)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def aim(self, port: int) -> None:
        """New connections go there, and those that are open end."""
        self.lead(port)
        self.reset_all()

    def lead(self, port: int) -> None:
        """New connections go there, and those that are open stay as they are."""
        self._target = (self._target[0], port)

    def reset_all(self) -> None:
        """RST to both sides of every connection there is."""
        for pair in list(self.pairs):
            reset(pair.client)
            reset(pair.upstream)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            reset(writer)
        finally:
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            reset(writer)
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target, limit=PIECE)
        except OSError:
            reset(writer)
            return
        pair = Pair(writer, up_writer)
        self.pairs.append(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer, self.up, pair, "up_bytes"))
                group.create_task(self._pump(up_reader, writer, self.down, pair, "down_bytes"))
        finally:
            self.pairs.remove(pair)
            for one in (writer, up_writer):
                one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, toxics: Toxics, pair: Pair, count: str
    ) -> None:
        due: Queue = asyncio.Queue(64)
        filler = asyncio.create_task(self._fill(reader, due, toxics))
        try:
            async with asyncio.timeout(toxics.reset_after_s):
                await self._drain(due, writer, toxics, pair, count)
        except TimeoutError:
            reset(writer)
        except (OSError, _CutError):
            pass
        finally:
            filler.cancel()
            await asyncio.gather(filler, return_exceptions=True)

    async def _fill(self, reader: asyncio.StreamReader, due: Queue, toxics: Toxics) -> None:
        """Latency belongs to the piece, not to the line: pieces in flight do not wait for each other."""
        try:
            while data := await reader.read(PIECE):
                wait = toxics.latency_s + self._random.uniform(-1, 1) * toxics.jitter_s
                await due.put((time.monotonic() + max(0.0, wait), data))
        except ConnectionError:
            pass
        await due.put((time.monotonic() + toxics.latency_s, b""))

    async def _drain(self, due: Queue, writer: asyncio.StreamWriter, toxics: Toxics, pair: Pair, count: str) -> None:
        while True:
            at, data = await due.get()
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            if toxics.timeout_s is not None:
                await self._swallow(due, writer, toxics.timeout_s)
                return
            if not data:
                break
            for piece in _slices(data, toxics.slice_bytes):
                await self._write(piece, writer, toxics, pair, count)
        await asyncio.sleep(toxics.slow_close_s)
        if writer.can_write_eof():
            writer.write_eof()

    async def _write(self, piece: bytes, writer: asyncio.StreamWriter, toxics: Toxics, pair: Pair, count: str) -> None:
        await self._hold(piece, toxics)
        done = getattr(pair, count)
        keep = len(piece) if toxics.cut_at is None else max(0, min(len(piece), toxics.cut_at - done))
        setattr(pair, count, done + keep)
        if keep:
            writer.write(piece[:keep])
            await writer.drain()
        if toxics.cut_at is not None and done + keep >= toxics.cut_at:
            await self._cut(writer, toxics)

    async def _hold(self, piece: bytes, toxics: Toxics) -> None:
        wait = toxics.slice_pause_s
        if toxics.bytes_per_s:
            wait += len(piece) / toxics.bytes_per_s
        if wait > 0:
            await asyncio.sleep(wait)
        if toxics.frozen:
            await toxics.thawed.wait()

    async def _cut(self, writer: asyncio.StreamWriter, toxics: Toxics) -> None:
        if toxics.cut_how == "hang":
            await asyncio.Event().wait()
        if toxics.cut_how == "rst":
            await asyncio.sleep(0.005)  # a RST destroys what the receiver has not read yet: let it read
            reset(writer)
        else:
            writer.write_eof()
        raise _CutError

    async def _swallow(self, due: Queue, writer: asyncio.StreamWriter, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s or None):
                while (await due.get())[1]:
                    pass
        except TimeoutError:
            writer.close()


class _CutError(Exception):
    """This direction is over."""


def reset(writer: asyncio.StreamWriter) -> None:
    """End that connection by RST."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


def _slices(data: bytes, size: int) -> Iterator[bytes]:
    step = size or len(data)
    for at in range(0, len(data), step):
        yield data[at : at + step]
