"""Client connections: bytes in, one checked request at a time, an answer out (http.md 3).

The parser finds where messages begin and end; `head.py` judges heads; a `Handler` decides what happens. One request is
under way on a connection at a time: whatever arrives before its answer is complete is thrown away unread, and that
answer is the connection's last. Timers are a timestamp per connection, looked at by one sweep.
"""

import asyncio
import fcntl
import math
import socket
import struct
import sys
import termios
import time
from enum import IntEnum
from typing import Any, Protocol, cast

import httptools

from gateway.errors import GatewayError
from gateway.http import head as heads
from gateway.http.exchange import Exchange
from gateway.http.known import KnownHead, learn
from policies.decisions import Reason

LINGER_BYTES = 1 << 20
LEARNED_HEADS = 4  # of one connection
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class State(IntEnum):
    """Where a connection stands."""

    IDLE = 0  # between requests, or new
    HEAD = 1
    BODY = 2
    BUSY = 3  # a request is complete, its answer is not
    LINGER = 4  # refused before its body was read: discarding what still comes
    CLOSING = 5  # flushing what was written


# The members by themselves: to find them in their class costs as much as a call.
_IDLE, _HEAD, _BODY, _BUSY, _LINGER, _CLOSING = State


class Handler(Protocol):
    """What a server does with requests. All of it is synchronous; long work goes into a task."""

    def opened(self, exchange: Exchange) -> None:
        """A head is complete and well-formed. Raises GatewayError to refuse it before its body is read."""

    def received(self, exchange: Exchange) -> None:
        """The body is complete. Must not raise."""

    def refuse(self, exchange: Exchange, error: GatewayError, *, close: bool) -> None:
        """Answer a request with an error. `exchange.head` is None when it was not even a well-formed head."""

    def vanished(self, exchange: Exchange) -> None:
        """The client left before its request was complete."""


class Timers(Protocol):
    """The client-side timers, in seconds (http.md 3.5); `gateway.config.Timers` has them."""

    @property
    def first_byte_of_connection_s(self) -> float: ...
    @property
    def head_s(self) -> float: ...
    @property
    def keepalive_idle_s(self) -> float: ...
    @property
    def body_gap_s(self) -> float: ...
    @property
    def body_rate_after_s(self) -> float: ...
    @property
    def body_total_s(self) -> float: ...
    @property
    def client_stall_s(self) -> float: ...
    @property
    def lingering_s(self) -> float: ...


class Server:
    """All client connections of one listener, and what they share."""

    def __init__(
        self, handler: Handler, limits: heads.Limits, timers: Timers, bounds: "Bounds", *, high_water_bytes: int
    ) -> None:
        self.handler = handler
        self.high_water_bytes = high_water_bytes  # bytes held for a slow reader before its engine is paused
        self.limits = limits
        self.timers = timers
        self.bounds = bounds
        self.connections: set[ClientConnection] = set()
        self.held_bytes = 0  # of request bodies in memory
        self.closing = False  # every answer from now on closes its connection
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start to accept; returns the port. Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: ClientConnection(self), host, port, backlog=4096)
        return int(self._listener.sockets[0].getsockname()[1])

    def stop_accepting(self) -> None:
        """Close the listener and every connection that is between requests."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.connections):
            if connection.state == _IDLE:
                connection.close()

    def sweep(self, now: float) -> None:
        """Act on every connection whose time is up."""
        for connection in [c for c in self.connections if c.deadline < now]:
            connection.expired(now)

    def abort(self) -> None:
        """Cut every connection."""
        for connection in list(self.connections):
            connection.close(reset=True)


class Bounds(Protocol):
    """How much a server may hold at a time."""

    @property
    def max_connections(self) -> int: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_body_began_s",
        "_deaf",
        "_error",
        "_known",
        "_last",
        "_learned",
        "_lingered",
        "_missing",
        "_parser",
        "_raw",
        "_target",
        "_touched_s",
        "_trailers",
        "_undelivered",
        "_wire",
        "deadline",
        "exchange",
        "http10",
        "keep_alive",
        "paused",
        "peer",
        "server",
        "state",
        "transport",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.state = _IDLE
        self.exchange: Exchange | None = None
        self.deadline = math.inf
        self.http10 = False
        self.keep_alive = True
        self.paused = False
        self.peer = ""
        self._parser = httptools.HttpRequestParser(self)
        self._raw: list[tuple[bytes, bytes]] = []
        self._target = b""
        self._error: GatewayError | None = None
        self._deaf = False  # what the parser still finds in this read belongs to nobody
        self._last = False  # something came that was not answered: this connection ends with its answer
        self._known: KnownHead[heads.Head] | None = None
        self._learned = 0
        self._missing = 0  # bytes of the body of a request whose head was known
        self._wire = self._trailers = self._lingered = 0
        self._body_began_s = self._touched_s = 0.0
        self._undelivered = -1  # at the last look; -1: not looked yet

    # -- transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        server = self.server
        if len(server.connections) >= server.bounds.max_connections:
            self.transport.abort()
            self.state = _CLOSING
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        self.transport.set_write_buffer_limits(server.high_water_bytes, server.high_water_bytes // 4)
        server.connections.add(self)
        self.deadline = time.monotonic() + server.timers.first_byte_of_connection_s

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        self.state = _CLOSING
        self._gone(stalled=False)
        del self._parser  # breaks the cycle between the parser and this

    def eof_received(self) -> bool:
        # Half-close is not supported: a client that has finished sending while it waits for an answer has left.
        if self.state != _CLOSING:
            self._gone(stalled=False)
        return False

    def pause_writing(self) -> None:
        self.paused = True
        self._undelivered, self.deadline = -1, 0.0
        if self.exchange is not None:
            self.exchange.on_pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self.state == _BUSY:
            self.deadline = math.inf
        elif self.state == _IDLE:
            self.deadline = time.monotonic() + self.server.timers.keepalive_idle_s
        if self.exchange is not None:
            self.exchange.on_resume()

    def data_received(self, data: bytes) -> None:
        state = self.state
        if state == _IDLE:
            known = self._known
            found = known.find(data) if known is not None else None
            exchange = self._begin()
            if known is not None and found is not None:
                self._take_known(exchange, known.meaning, data, found)
            else:
                self._feed(data)
                self._learn(data)
        elif state >= _BUSY:
            self._discard(data)
            return
        elif self._missing:
            self._wire += len(data)
            self._take_body(data)
        else:
            self._feed(data)
        self._after_feed()

    def _feed(self, data: bytes) -> None:
        self._wire += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse_malformed("Protocol upgrades are not supported.")
        except httptools.HttpParserError:
            self._refuse_malformed("This is not valid HTTP/1.1.")

    # -- heads that were seen before -------------------------------------------------------------------------------

    def _learn(self, data: bytes) -> None:
        """Remember the head of a plain request; a client whose heads always differ is not worth more than a few tries."""
        head = self.exchange.head if self.exchange is not None else None
        if head is None or self._error is not None or self.state == _HEAD or self._learned >= LEARNED_HEADS:
            return
        if head.content_length is not None and self.keep_alive and not self.http10 and not head.expects_continue:
            self._learned += 1
            self._known = learn(data, head)

    def _take_known(self, exchange: Exchange, head: heads.Head, data: bytes, found: tuple[int, int]) -> None:
        length, start = found
        exchange.head = head
        exchange.content_length = length
        self._missing = length
        self.http10, self.keep_alive = False, True
        try:
            self.server.handler.opened(exchange)
        except GatewayError as error:
            self._error = error
        else:
            self.state = _BODY
            self._body_began_s = 0.0
        self._wire = len(data)
        self._take_body(data[start:])

    def _take_body(self, data: bytes) -> None:
        """Bytes of a body whose length is all there is to know of its framing."""
        missing = self._missing
        if len(data) > missing:
            data = data[:missing]
            self._last = True
        self._missing = missing = missing - len(data)
        if data:
            self.on_body(data)
        if missing == 0:
            self.on_message_complete()

    # -- parser callbacks ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.state == _BUSY or self._error is not None:
            self._deaf = self._last = True

    def on_url(self, url: bytes) -> None:
        if not self._deaf:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.state == _HEAD:
            self._raw.append((name.lower(), value))
            return
        if self._deaf:
            return
        self._trailers += len(name) + len(value) + 4  # as on the wire: colon, space, CRLF
        if self._trailers > heads.TRAILER_BYTES and self._error is None:
            self._error = GatewayError(Reason.HEAD_TOO_LARGE, "The trailers are too long.")

    def on_headers_complete(self) -> None:
        if self._deaf or self._error is not None:
            return
        exchange = cast(Exchange, self.exchange)
        parser = self._parser
        try:
            if len(self._target) > heads.TARGET_BYTES:
                raise GatewayError(Reason.TARGET_TOO_LONG, "The request target is too long.")
            version = parser.get_http_version()
            self.http10 = version == "1.0"
            self.keep_alive = parser.should_keep_alive()
            method = parser.get_method()
            exchange.head = head = heads.check(
                (method, self._target, version), self._raw, self._wire, self.server.limits
            )
            exchange.content_length = head.content_length
            self.server.handler.opened(exchange)
        except GatewayError as error:
            self._error = error
            return
        self.state = _BODY
        self._raw, self._body_began_s = [], 0.0
        if head.expects_continue:
            self.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        exchange = self.exchange
        if self._deaf or self._error is not None or exchange is None:
            return
        server = self.server
        size = len(data)
        exchange.body.append(data)
        exchange.body_bytes += size
        server.held_bytes += size
        if exchange.body_bytes > server.bounds.body_bytes:
            self._error = GatewayError(Reason.BODY_TOO_LARGE, "The request body is too large.")
        elif server.held_bytes > server.bounds.held_bytes:
            self._error = GatewayError(Reason.OVERLOADED, "Too much is waiting here already.")

    def on_message_complete(self) -> None:
        if not self._deaf:
            self.state = _BUSY
            self.deadline = math.inf

    # -- one request after another ---------------------------------------------------------------------------------

    def _begin(self) -> Exchange:
        now = time.monotonic()
        self.exchange = exchange = Exchange(self, now)
        self.state = _HEAD
        self._raw, self._target, self._error, self._deaf = [], b"", None, False
        self._wire = self._trailers = self._missing = 0
        self.deadline = now + self.server.timers.head_s
        return exchange

    def _after_feed(self) -> None:
        exchange = self.exchange
        if exchange is None or self.state > _BUSY:
            return
        if self._error is None and self.state != _BUSY:
            self._check_incomplete(exchange)
        if self._error is None and self._wire > heads.CHUNK_OVERHEAD_BYTES and self.state >= _BODY:
            self._check_overhead(exchange)
        if self._error is not None:
            self._refuse(exchange, self._error, close=self.state != _BUSY)
        elif self.state == _BUSY:
            self.server.handler.received(exchange)

    def _check_incomplete(self, exchange: Exchange) -> None:
        if self.state == _HEAD:
            if len(self._target) > heads.TARGET_BYTES:
                self._error = GatewayError(Reason.TARGET_TOO_LONG, "The request target is too long.")
            elif self._wire > heads.HEAD_BYTES:
                self._error = GatewayError(Reason.HEAD_TOO_LARGE, f"The header exceeds {heads.HEAD_BYTES} bytes.")
            return
        now = time.monotonic()
        if not self._body_began_s:
            self._body_began_s = now
            self.deadline = now + self.server.timers.body_gap_s
        self._touched_s = now

    def _check_overhead(self, exchange: Exchange) -> None:
        head = cast(heads.Head, exchange.head)
        overhead = self._wire - exchange.body_bytes - heads.HEAD_BYTES
        if head.chunked and overhead > heads.CHUNK_OVERHEAD_BYTES + exchange.body_bytes // 4:
            self._error = GatewayError(Reason.CHUNK_OVERHEAD, "The body's chunks are too small for what they carry.")

    def _refuse_malformed(self, message: str) -> None:
        if self.state == _BUSY or self._deaf:
            self._last = True  # garbage behind a complete request
        elif self._error is None:
            self._error = GatewayError(Reason.MALFORMED_HTTP, message)

    def _refuse(self, exchange: Exchange, error: GatewayError, *, close: bool) -> None:
        exchange.drop_body()
        self.server.handler.refuse(exchange, error, close=close)
        if close and self.state < _LINGER:
            self.close()

    def answered(self, *, close: bool) -> None:
        """The answer's last byte has been handed to the transport."""
        complete = self.state == _BUSY
        self.exchange = None
        if not close:
            self.state = _IDLE
            self.deadline = time.monotonic() + self.server.timers.keepalive_idle_s
        elif complete and not self._last:
            self.close()
        else:
            self._linger()

    def must_close(self) -> bool:
        """Whether the answer that begins now is the connection's last."""
        return self._last or self.state != _BUSY or not self.keep_alive or self.server.closing

    def _linger(self) -> None:
        # A plain close while bytes are still coming would reset the connection and take our answer with it.
        self.state = _LINGER
        self._lingered = 0
        self.deadline = time.monotonic() + self.server.timers.lingering_s
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def _discard(self, data: bytes) -> None:
        if self.state == _BUSY:
            self._last = True
            return
        self._lingered += len(data)
        if self.state == _LINGER and self._lingered > LINGER_BYTES:
            self.close()

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport."""
        self.transport.write(data)

    def close(self, *, reset: bool = False) -> None:
        """Close after what was written; with `reset` so that the peer cannot take it for a proper end."""
        if self.state == _CLOSING and not reset:
            return
        self.state = _CLOSING
        self._undelivered, self.deadline = -1, 0.0
        if reset:
            _reset_on_close(self.transport)
        self.transport.close()

    # -- time and departure ----------------------------------------------------------------------------------------

    def expired(self, now: float) -> None:
        """This connection's time is up, or may be: the timers of http.md 3.5."""
        timers = self.server.timers
        if self.paused or self.state == _CLOSING:
            self._check_stall(now)
        elif self.state in (_IDLE, _LINGER):
            self.close()
        elif self.state == _HEAD:
            self._time_out()
        elif self.state == _BODY:
            age = now - (self._body_began_s or now)
            received = cast(Exchange, self.exchange).body_bytes
            slow = age > timers.body_rate_after_s and received < 1024 * age
            if slow or age > timers.body_total_s or now - self._touched_s > timers.body_gap_s:
                self._time_out()
            else:
                self.deadline = self._touched_s + timers.body_gap_s
        else:
            self.deadline = math.inf

    def _time_out(self) -> None:
        if self.exchange is not None:
            self._refuse(self.exchange, GatewayError(Reason.CLIENT_TIMEOUT, "The request came too slowly."), close=True)

    def _check_stall(self, now: float) -> None:
        # Reading is what the peer's kernel acknowledges. Our own buffer shows nothing of it for long: the kernel holds
        # megabytes for a slow reader, and takes more from us only when a third of them has gone.
        undelivered = self.transport.get_write_buffer_size() + _unacknowledged(self.transport)
        if self._undelivered < 0 or undelivered < self._undelivered:
            self._undelivered = undelivered
            self.deadline = now + self.server.timers.client_stall_s
            return
        self._gone(stalled=True)
        self.state = _CLOSING
        self.transport.abort()

    def _gone(self, *, stalled: bool) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        exchange.drop_body()
        exchange.connection = None
        if exchange.on_gone is not None:
            exchange.on_gone(stalled)
        else:
            self.server.handler.vanished(exchange)


def _unacknowledged(transport: Any) -> int:
    """Bytes that the kernel holds for the peer, sent or not; 0 where it cannot be asked."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _reset_on_close(transport: Any) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
