"""An upstream made of bytes: for every request a test gives the exact script of the answer.

A step is bytes to write, `Wait(s)`, or an end: `FIN`, `RST`, `HANG` (silence until the peer leaves). A script without
an end keeps the connection for the next request. `/health`, `/v1/models` and metrics are answered by themselves.
Every request is logged here, because our own counters are what is under test.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self

from tests.kit import wire
from tests.kit.raw_client import RESET_ON_CLOSE


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


class End(Enum):
    FIN = "fin"
    RST = "rst"
    HANG = "hang"


ACCEPT_TURNS = 4  # of the loop, until one that was accepted is among the open connections
FIN, RST, HANG = End.FIN, End.RST, End.HANG
Step = bytes | Wait | End


@dataclass(slots=True, eq=False)
class Seen:
    """One request as it came over the wire; times are `time.monotonic()`, 0.0 = never."""

    connection: int
    index: int  # of this connection
    head: bytes
    method: bytes
    target: bytes
    version: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    first_byte_s: float
    complete_s: float
    answered_s: float = 0.0  # the script's last step
    peer_closed_s: float = 0.0  # the peer left before that
    written: int = 0
    leftover: bytes = b""  # bytes that came after this request and before its answer was complete

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name.lower().encode()]
        return found[0].decode("latin-1") if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def aborted(self) -> bool:
        return self.peer_closed_s > 0.0


Script = Callable[[Seen], Iterable[Step]]


class ScriptEngine:
    """`async with ScriptEngine(answer) as engine`; `engine.answer` may be replaced at any time."""

    def __init__(self, answer: Script | None = None, *, port: int = 0, model: str = "m") -> None:
        self.answer: Script = answer or wire.echo
        self.once: list[Sequence[Step]] = []  # scripts for the next requests, used up first
        self.model = model
        self.healthy = True
        self.metrics: Callable[[], Sequence[Step]] = lambda: [load_page(self.active)]
        self.idle_close_s: float | None = None  # close a kept connection after so long without a request
        self.on_connect: Sequence[Step] = ()  # before any request
        self.port = port
        self.seen: list[Seen] = []
        self.forgotten = 0  # requests seen before the last clear()
        self.probes = 0
        self.connections = 0
        self.open_connections: set[_Connection] = set()
        self.active = 0
        self.peak = 0
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        self._fillers: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=2048)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is written is sent: no Nagle
        self.port = self._listener.getsockname()[1]
        self._server = await loop.create_server(lambda: _Connection(self), sock=self._listener, backlog=2048)

    def stop_listening(self) -> None:
        """New connections are refused; open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def jam(self) -> None:
        """Accept no more, and fill the backlog: from now on a connect to this port hangs, as to a frozen machine."""
        assert self._listener is not None
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.listen(0)
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._fillers.append(filler)

    def drop_connections(self, how: End = RST) -> None:
        for connection in list(self.open_connections):
            connection.end(how)

    def say(self, data: bytes) -> None:
        """Write on every open connection, asked or not."""
        for connection in self.open_connections:
            connection.transport.write(data)

    async def stop(self) -> None:
        self.stop_listening()
        for filler in self._fillers:
            filler.close()
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        tasks = [connection.task for connection in self.open_connections if connection.task is not None]
        self.drop_connections()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    def clear(self) -> None:
        """Forget what was seen, but for how many they were."""
        self.forgotten += len(self.seen)
        self.seen.clear()
        self.peak = self.active

    def aborted(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.aborted]

    def script(self, seen: Seen) -> Iterable[Step]:
        local = _LOCAL.get(seen.target)
        if local is not None:
            self.probes += 1
            return local(self)
        self.seen.append(seen)
        return self.once.pop(0) if self.once else self.answer(seen)


def _health(engine: ScriptEngine) -> list[Step]:
    return [wire.answer(b"", status=200 if engine.healthy else 503, content_type="text/plain")]


def _models(engine: ScriptEngine) -> list[Step]:
    return [wire.json_answer({"object": "list", "data": [{"id": engine.model, "object": "model", "owned_by": "kit"}]})]


def load_page(running: float | str, waiting: float | str = 0) -> bytes:
    """What vLLM's metrics say of its load."""
    text = f'vllm:num_requests_running{{model_name="m"}} {running}\nvllm:num_requests_waiting{{model_name="m"}} {waiting}\n'
    return wire.answer(text.encode(), content_type="text/plain; version=0.0.4")


def _metrics(engine: ScriptEngine) -> list[Step]:
    return list(engine.metrics())


_LOCAL: dict[bytes, Callable[[ScriptEngine], list[Step]]] = {
    b"/health": _health,
    b"/v1/models": _models,
    b"/metrics": _metrics,
    b"/prometheus/metrics": _metrics,  # where TensorRT-LLM has them
}


@dataclass(slots=True, eq=False)
class _Connection(asyncio.Protocol):
    engine: ScriptEngine
    number: int = 0
    transport: asyncio.Transport = field(init=False)
    buffer: bytearray = field(default_factory=bytearray)
    first_byte_s: float = 0.0
    current: Seen | None = None
    count: int = 0
    task: asyncio.Task[None] | None = None
    writable: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.engine.connections += 1
        self.number = self.engine.connections
        self.engine.open_connections.add(self)
        self.writable.set()
        if self.engine.on_connect:
            self.task = asyncio.create_task(self._play(self.engine.on_connect, None))

    def data_received(self, data: bytes) -> None:
        if self.idle is not None:
            self.idle.cancel()
        if self.current is not None:
            self.current.leftover += data
            return
        if not self.buffer:
            self.first_byte_s = time.monotonic()
        self.buffer += data
        self._try_request()

    def connection_lost(self, error: Exception | None) -> None:
        self.engine.open_connections.discard(self)
        if self.idle is not None:
            self.idle.cancel()
        if self.current is not None and not self.current.answered_s:
            self.current.peer_closed_s = time.monotonic()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def end(self, how: End) -> None:
        if how is RST:
            sock = self.transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self.transport.abort()
        elif how is FIN:
            self.transport.close()

    def _try_request(self) -> None:
        seen = _parse(self.buffer)
        if seen is None:
            return
        seen.connection, seen.index = self.number, self.count
        seen.first_byte_s, seen.complete_s = self.first_byte_s, time.monotonic()
        self.count += 1
        self.current = seen
        self.task = asyncio.create_task(self._play(self.engine.script(seen), seen))

    async def _play(self, steps: Iterable[Step] | AsyncIterator[Step], seen: Seen | None) -> None:
        counted = seen is not None and seen.target not in _LOCAL
        if counted:
            self.engine.active += 1
            self.engine.peak = max(self.engine.peak, self.engine.active)
        try:
            for step in steps:  # type: ignore[union-attr]
                await self._step(step, seen)
                if isinstance(step, End):
                    return
        finally:
            if counted:
                self.engine.active -= 1
        self._answered(seen)

    async def _step(self, step: Step, seen: Seen | None) -> None:
        if isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
        elif step is HANG:
            await asyncio.Event().wait()
        elif isinstance(step, End):
            if seen is not None:
                seen.answered_s = time.monotonic()
            await self._flushed(step)
            self.end(step)
        else:
            await self.writable.wait()
            if self.transport.is_closing():
                await asyncio.Event().wait()  # the peer has left: connection_lost ends this
            self.transport.write(step)
            if seen is not None:
                seen.written += len(step)

    async def _flushed(self, how: End) -> None:
        """RST destroys what is not yet read, and what is not yet sent: send all, and let the peer read."""
        while how is RST and self.transport.get_write_buffer_size():
            await asyncio.sleep(0.001)
        if how is RST:
            await asyncio.sleep(0.004)

    def _answered(self, seen: Seen | None) -> None:
        if seen is None:
            return
        seen.answered_s = time.monotonic()
        self.current = None
        if seen.leftover:
            self.buffer += seen.leftover
            self._try_request()
        elif self.engine.idle_close_s is not None:
            self.idle = asyncio.get_running_loop().call_later(self.engine.idle_close_s, self.transport.close)


def _parse(buffer: bytearray) -> Seen | None:
    """One request off the front of `buffer`, or None if it is not complete. Only content-length and chunked."""
    at = buffer.find(b"\r\n\r\n")
    if at < 0:
        return None
    head = bytes(buffer[: at + 4])
    first, *lines = head[:-4].split(b"\r\n")
    method, target, version = first.split(b" ", 2)
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    lower = {name.lower(): value for name, value in headers}
    body, used = _body(bytes(buffer[at + 4 :]), lower)
    if body is None:
        return None
    del buffer[: at + 4 + used]
    return Seen(
        connection=0, index=0, head=head, method=method, target=target, version=version,
        headers=headers, body=body, first_byte_s=0.0, complete_s=0.0,
    )  # fmt: skip


def _body(rest: bytes, headers: dict[bytes, bytes]) -> tuple[bytes | None, int]:
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return wire.dechunk(rest)
    length = int(headers.get(b"content-length", b"0"))
    return (rest[:length], length) if len(rest) >= length else (None, 0)
