"""HTTP/1.1 from the server's side, bytes in and bytes out, with a hand on every one of them.

An engine that must be able to break its own answers at any byte cannot stand on a framework that mends them: here a
request is handed over whole, and whoever answers it writes heads, chunks and ends as they see fit.
Keep-alive connections close after `keep_alive_s` without a request, as uvicorn and vLLM do. No pipelining: a client
that sends a second request before the first is answered has it parked until then.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import cast

import httptools

Headers = Sequence[tuple[bytes, bytes]]
LAST_CHUNK = b"0\r\n\r\n"
REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Request:
    """One whole request. `accepted_s` is when its first byte came, on the monotonic clock."""

    __slots__ = ("accepted_s", "body", "connection", "headers", "keep_alive", "method", "path", "query", "version")

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.accepted_s = time.monotonic()
        self.method = b""
        self.path = b""
        self.query = b""
        self.version = "1.1"
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.keep_alive = True

    def header(self, name: bytes) -> bytes | None:
        """The first header of that lower-case name."""
        return next((value for key, value in self.headers if key == name), None)


class Connection(asyncio.Protocol):
    """One client connection: parses requests, hands them to `handle`, and offers the writing side.

    `on_closed` is set by whoever answers the present request and is called once if the client leaves before `done`.
    """

    def __init__(self, handle: Callable[[Request], None], keep_alive_s: Callable[[], float]) -> None:
        self.on_closed: Callable[[], None] | None = None
        self.closed = False
        self.malformed = False
        self._handle = handle
        self._keep_alive_s = keep_alive_s
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None  # being read
        self._url = b""
        self._body: list[bytes] = []
        self._answering: Request | None = None
        self._parked: deque[Request] = deque()
        self._idle: asyncio.TimerHandle | None = None

    # --- reading ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.answer(400, (), b"")
            self.close()
        except httptools.HttpParserError:
            self.malformed = True
            self.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
            )
            self.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._stop_idle_timer()
        self._parked.clear()
        called, self.on_closed = self.on_closed, None
        if called is not None:
            called()

    def on_message_begin(self) -> None:
        self._stop_idle_timer()
        self._request = Request(self)
        self._url = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is not None:
            self._request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self._request
        if request is not None and (request.header(b"expect") or b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        request.method = self._parser.get_method()
        request.version = self._parser.get_http_version()
        request.path, _, request.query = self._url.partition(b"?")
        request.body = b"".join(self._body)
        request.keep_alive = self._parser.should_keep_alive()
        if self._answering is None:
            self._begin(request)
        else:
            self._parked.append(request)

    # --- writing ---

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        if self._transport is not None and not self.closed:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def head(self, status: int, headers: Headers) -> None:
        """Status line and headers; `connection: close` is added where the client asked for it."""
        request = self._answering
        lines = [b"HTTP/1.1 %d %b" % (status, REASONS.get(status, b"Unknown"))]
        lines += [b"%b: %b" % pair for pair in headers]
        if request is not None and not request.keep_alive:
            lines.append(b"connection: close")
        self.write(b"\r\n".join(lines) + b"\r\n\r\n")

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer with its length; the body of a HEAD request stays away."""
        self.head(status, [*headers, (b"content-length", b"%d" % len(body))])
        if body and not (self._answering is not None and self._answering.method == b"HEAD"):
            self.write(body)
        self.done()

    def done(self) -> None:
        """The present answer is complete: go on to the next request, or close."""
        request, self._answering = self._answering, None
        self.on_closed = None
        if self.closed or request is None:
            return
        if not request.keep_alive:
            self.close()
        elif self._parked:
            self._begin(self._parked.popleft())
        else:
            self._wait_for_request()

    @property
    def unsent(self) -> int:
        """Bytes the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """FIN after what was written."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """RST at once; what the kernel has not sent is lost."""
        if self._transport is None or self.closed:
            return
        raw = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def pause(self) -> None:
        """Read nothing more, as if the connection had not been accepted yet."""
        self._stop_idle_timer()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def _begin(self, request: Request) -> None:
        self._answering = request
        self._handle(request)

    def _wait_for_request(self) -> None:
        self._stop_idle_timer()
        self._idle = asyncio.get_running_loop().call_later(self._keep_alive_s(), self.close)

    def _stop_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
