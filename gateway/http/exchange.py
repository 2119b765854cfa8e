"""One request on a client connection, and the way its answer goes out.

An exchange is told once how its answer begins and once how it ends. `end` is the only proper end; `break_off` closes
without one, so that a client can never take a cut answer for a whole one (http.md 7). When the client is gone every
call here does nothing.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

from gateway.http.head import Head

_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus} | {529: b"Overloaded"}
# Of every final status: an engine's refusal is passed on under its own, whether that has a name or not.
_STATUS_LINES: Final = {code: b"HTTP/1.1 %d %b\r\n" % (code, _PHRASES.get(code, b"")) for code in range(200, 600)}
_CLOSE: Final = b"connection: close\r\n"
_KEEP: Final = b"connection: keep-alive\r\n"


class Source(Protocol):
    """Where the body of an answer comes from."""

    def pause(self) -> None:
        """Bring no more: the client is slower."""

    def resume(self) -> None:
        """Bring more."""


class Carrier(Protocol):
    """The connection that carries an exchange."""

    exchange: "Exchange | None"
    peer: str  # address of the client's socket
    paused: bool  # more is waiting for the client than its buffer should hold

    def write(self, data: bytes) -> None:
        """The next piece of an answer, at the end of this turn of the loop."""

    def forward(self, data: bytes) -> None:
        """The same at once."""

    def must_close(self) -> bool:
        """Whether the answer that begins now is the connection's last."""

    def close(self, *, reset: bool = False) -> None:
        """Close after what was written; `reset`: so that the peer cannot take it for a proper end."""

    def answered(self, held_bytes: int, *, close: bool) -> None:
        """The answer's last byte has been handed over; so many bytes of the request's body are held no longer."""

    def give_back(self, held_bytes: int) -> None:
        """So many bytes of a body are held no longer."""


class Exchange:
    """A request with its body, and its answer. `context` belongs to whoever handles it."""

    # Defaults stand in the class: each that is set costs every request.
    head: Head | None = None
    http10 = False
    content_length: int | None = None
    body_bytes = 0
    context: Any = None
    started = False  # the answer's head has been handed over
    sent_bytes = 0  # of the answer's body
    _chunked = False
    _closes = False
    _head = b""  # of the answer, until it leaves together with the first piece of the body

    def __init__(self, connection: Carrier | None, received_s: float) -> None:
        self.connection = connection
        self.received_s = received_s  # first byte of the head, time.monotonic()
        self.body: list[bytes] = []
        self.source: Source | None = None  # what is to be held up while the client is congested

    @property
    def peer(self) -> str:
        """The address of the client's socket."""
        return self.connection.peer if self.connection else ""

    @property
    def congested(self) -> bool:
        """More is waiting for the client than its buffer should hold."""
        return self.connection is not None and self.connection.paused

    def drop_body(self) -> None:
        """The body is needed no longer: give its memory back."""
        if self.body_bytes and self.connection is not None:
            self.connection.give_back(self.body_bytes)
        self.body_bytes = 0
        self.body.clear()

    def respond(self, status: int, headers: bytes, body: bytes, *, close: bool = False) -> None:
        """A whole answer in one write. `headers` are complete lines; length and connection are added here."""
        connection = self.connection
        if connection is None:
            return
        self.started = True
        self._closes = closes = close or connection.must_close()
        self.sent_bytes = length = len(body)
        if self.head is not None and self.head.method == b"HEAD":
            body = b""  # no answer to HEAD has a body, and a proxy in front would read one as the next answer
            self.sent_bytes = 0
        line = _CLOSE if closes else _KEEP if self.http10 else b""
        connection.write(b"%b%bcontent-length: %d\r\n%b\r\n%b" % (_STATUS_LINES[status], headers, length, line, body))
        self._done(connection)

    def start(self, status: int, headers: bytes, length: int | None) -> None:
        """Begin an answer whose body follows, in this turn of the loop or later; `length` None: as long as it takes."""
        connection = self.connection
        if connection is None:
            return
        self.started = True
        self._chunked = length is None and not self.http10
        self._closes = closes = connection.must_close() or (length is None and self.http10)
        if self._chunked:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing = b"" if length is None else b"content-length: %d\r\n" % length
        keeping = _CLOSE if closes else _KEEP if self.http10 else b""
        self._head = b"%b%b%b%b\r\n" % (_STATUS_LINES[status], headers, framing, keeping)

    def write(self, data: bytes) -> None:
        """The next piece of the body."""
        connection = self.connection
        if connection is None:
            return
        self.sent_bytes += len(data)
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        connection.write(data)

    def forwarder(self) -> Callable[[bytes], None] | None:
        """A way to pass on chunks that are framed already; None where the body is not chunked."""
        connection = self.connection
        return connection.forward if self._chunked and connection is not None else None

    def end(self, last: bytes = b"") -> None:
        """The proper end of a body given in pieces, with its last piece."""
        connection = self.connection
        if connection is None:
            return
        self.sent_bytes += len(last)
        if self._chunked:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last) if last else b"0\r\n\r\n"
        if self._head:
            last, self._head = self._head + last, b""
        if last:
            connection.write(last)
        self._done(connection)

    def break_off(self, last: bytes = b"") -> None:
        """End the answer visibly broken: what is left, then a close without the body's proper end."""
        connection = self.connection
        if connection is None:
            return
        if last or self._head:
            self.write(last)
        self.drop_body()  # it is still held where the answer began before the engine's
        self.connection = connection.exchange = None
        # A close is how HTTP/1.0 says "complete": there only a reset tells the truth, as where nothing could be said.
        connection.close(reset=not self._chunked)

    def _done(self, connection: Carrier) -> None:
        held_bytes, self.body_bytes = self.body_bytes, 0
        self.connection = None
        connection.answered(held_bytes, close=self._closes)
