"""Requests in the bytes of a connection: where one begins, whether it is well-formed, and when it is whole.

llhttp finds the ends; everything it is too lenient about is bounded or refused here and in `head.py`. A head that came
before on the same connection is known by its bytes and needs no parser (`known.py`). One request is read at a time:
what else is found in a read belongs to nobody and makes this request the connection's last.
"""

import asyncio
from enum import IntEnum
from typing import Final

import httptools

from gateway.errors import GatewayError
from gateway.http import head as heads
from gateway.http.exchange import Exchange
from gateway.http.known import KnownHead, learn
from gateway.http.shared import Shared
from policies.decisions import Reason

LEARNED_HEADS: Final = 4  # of one connection: a client whose heads always differ is not worth more tries
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Progress(IntEnum):
    """How much of a request is here."""

    HEAD = 0
    BODY = 1
    COMPLETE = 2


# The members by themselves: to find them in their class costs as much as a call.
_HEAD: Final = Progress.HEAD
_BODY: Final = Progress.BODY
_COMPLETE: Final = Progress.COMPLETE
NOBODY: Final = Exchange(None, 0.0)  # whose request is read between two of them


class RequestReader:
    """Reads the requests of one connection, one after another: `begin`, then `feed` until `error` or COMPLETE."""

    __deletable__ = ("_parser",)
    __slots__ = (
        "_deaf",
        "_known",
        "_learned",
        "_missing",
        "_parser",
        "_raw",
        "_shared",
        "_target",
        "_trailers",
        "_wire",
        "error",
        "excess",
        "exchange",
        "keep_alive",
        "progress",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._parser = httptools.HttpRequestParser(self)
        self._known: KnownHead[heads.Head] | None = None
        self._learned = 0
        self.exchange = NOBODY
        self.progress = _HEAD
        self.error: GatewayError | None = None  # why this request is refused
        self.excess = False  # something came that is not answered: this connection ends with its answer
        self.keep_alive = True  # where it is not, this request is the last
        self._missing = 0  # bytes of the body of a request whose head was known

    def begin(self, data: bytes) -> None:
        """Take a read that begins a new request, that of `exchange`."""
        self.progress = _HEAD
        self.error = None
        known = self._known
        if known is not None and (found := known.find(data)) is not None:
            self._take_known(known.meaning, data, found)
            return
        self._raw: list[tuple[bytes, bytes]] = []
        self._target = b""
        self._deaf = False  # what the parser still finds in this read belongs to nobody
        self._wire = self._trailers = 0  # bytes since the request began; bytes of its trailers
        self._parse(data)
        self._learn(data)

    def feed(self, data: bytes) -> None:
        """Take a further read."""
        if self._missing:
            self._take_body(data)
        else:
            self._parse(data)

    def forget(self) -> None:
        """A head that comes again is to be judged again."""
        self._known = None
        self._learned = 0

    def end(self) -> None:
        """The connection is gone. (The parser refers to this: without the cycle nothing waits for a collection.)"""
        del self._parser

    def _parse(self, data: bytes) -> None:
        self._wire += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._malformed("Protocol upgrades are not supported.")
        except httptools.HttpParserError:
            self._malformed("This is not valid HTTP/1.1.")
        if self.error is None:
            self._check_bounds()

    def _malformed(self, message: str) -> None:
        if self.progress is _COMPLETE or self._deaf:
            self.excess = True  # garbage behind a complete request
        elif self.error is None:
            self.error = GatewayError(Reason.MALFORMED_HTTP, message)

    def _check_bounds(self) -> None:
        """What llhttp does not count, and what it has not delivered yet."""
        if self.progress is _HEAD:
            if len(self._target) > heads.TARGET_BYTES:
                self.error = GatewayError(Reason.TARGET_TOO_LONG)
            elif self._wire > heads.HEAD_BYTES:
                self.error = GatewayError(Reason.HEAD_TOO_LARGE, f"The header exceeds {heads.HEAD_BYTES} bytes.")
        elif self._wire > heads.CHUNK_OVERHEAD_BYTES:
            carried = self.exchange.body_bytes
            overhead = self._wire - carried - heads.HEAD_BYTES
            head = self.exchange.head
            if head is not None and head.chunked and overhead > heads.CHUNK_OVERHEAD_BYTES + carried // 4:
                self.error = GatewayError(Reason.CHUNK_OVERHEAD)

    # -- heads that were seen before -------------------------------------------------------------------------------

    def _learn(self, data: bytes) -> None:
        head = self.exchange.head
        if head is None or self.error is not None or self.progress is _HEAD or self._learned >= LEARNED_HEADS:
            return
        has_body = head.content_length is not None and head.method == b"POST"  # of a GET 0 is the only length
        if has_body and self.keep_alive and not head.http10 and not head.expects_continue:
            self._learned += 1
            self._known = learn(data, head)

    def _take_known(self, head: heads.Head, data: bytes, found: tuple[int, int]) -> None:
        length, start = found
        exchange = self.exchange
        exchange.head, exchange.content_length = head, length
        try:
            self._shared.handler.opened(exchange, head)
        except GatewayError as error:
            self.error = error
        except Exception as error:
            self.error = _fault(error)
        else:
            self.progress = _BODY
        self._missing = length
        self._take_body(data[start:])

    def _take_body(self, data: bytes) -> None:
        """Bytes of a body whose length is all there is to know of its framing."""
        missing = self._missing - len(data)
        if missing < 0:
            data = data[:missing]
            self.excess = True
            missing = 0
        self._missing = missing
        if data and self.error is None:
            self._hold(data)
        if not missing:
            self.progress = _COMPLETE

    # -- parser callbacks ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self.progress is _COMPLETE or self.error is not None:
            self._deaf = self.excess = True

    def on_url(self, url: bytes) -> None:
        """Called by the parser, perhaps more than once."""
        if not self._deaf:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser, for trailers too."""
        if self.progress is _HEAD:
            self._raw.append((name.lower(), value))
            return
        if self._deaf:
            return
        self._trailers += len(name) + len(value) + 4  # as on the wire: colon, space, CRLF
        if self._trailers > heads.TRAILER_BYTES and self.error is None:
            self.error = GatewayError(Reason.HEAD_TOO_LARGE, "The trailers are too long.")

    def on_headers_complete(self) -> None:
        """Called by the parser. Only here it knows whether the connection may be kept."""
        if self._deaf or self.error is not None:
            return
        exchange, parser = self.exchange, self._parser
        try:
            if len(self._target) > heads.TARGET_BYTES:
                raise GatewayError(Reason.TARGET_TOO_LONG)
            version = parser.get_http_version()
            exchange.http10 = version == "1.0"
            self.keep_alive = parser.should_keep_alive()
            line = (parser.get_method(), self._target, version)
            exchange.head = head = heads.check(line, self._raw, self._wire, self._shared.limits)
            exchange.content_length = head.content_length
            self._shared.handler.opened(exchange, head)
        except GatewayError as error:
            self.error = error
            return
        except Exception as error:  # the parser would call it bad HTTP
            self.error = _fault(error)
            return
        self.progress = _BODY
        self._raw = []
        if head.expects_continue and exchange.connection is not None:
            exchange.connection.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        """Called by the parser for each piece of the body."""
        if not self._deaf and self.error is None:
            self._hold(data)

    def _hold(self, data: bytes) -> None:
        exchange, shared = self.exchange, self._shared
        size, bounds = len(data), shared.bounds
        exchange.body.append(data)
        exchange.body_bytes = held = exchange.body_bytes + size
        shared.held_bytes = held_by_all = shared.held_bytes + size
        if held > bounds.body_bytes:
            self.error = GatewayError(Reason.BODY_TOO_LARGE)
        elif held_by_all > bounds.held_bytes:
            self.error = GatewayError(Reason.OVERLOADED, "Too much is waiting here already.")

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if not self._deaf:
            self.progress = _COMPLETE


def _fault(error: Exception) -> GatewayError:
    """A fault of ours, which the loop's handler is told; what the client is told."""
    asyncio.get_running_loop().call_exception_handler({"message": "a head could not be judged", "exception": error})
    return GatewayError(Reason.INTERNAL)
