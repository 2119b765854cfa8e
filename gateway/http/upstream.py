"""A connection to an engine: one request at a time (http.md 6.1, 10).

A `Sink` gets an answer as it comes, inside the read callback. A connection is used again only when nothing about the
last answer was odd: complete, keep-alive, the request fully written, not a byte too many.
"""

import asyncio
import select
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol, cast

import httptools

from gateway.http.coalesce import Coalescer
from gateway.http.known import KnownHead
from gateway.http.sockets import hang_up, watch_peer

HEAD_BYTES: Final = 65536  # of a head, and of what comes in a row and is no head and no body: trailers
FIELD_BYTES: Final = 16384
INTERIM_ANSWERS: Final = 8
JOINED_BYTES: Final = 16384  # up to here one copy is cheaper than a vectored write
_BEGINS: Final = b"HTTP/1."
_KEPT: Final = frozenset(
    (b"content-type", b"content-length", b"content-encoding", b"transfer-encoding", b"retry-after")
)


class Sink(Protocol):
    """Who takes an answer, piece by piece."""

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> "Sink":
        """The final head (never 1xx); returns who takes the body. `fields` holds the lower-case names that matter."""

    def on_whole(self, fields: dict[bytes, bytes], body: bytes) -> None:
        """Instead of everything else: a complete 200 that is no stream."""

    def on_data(self, pieces: list[bytes]) -> Callable[[bytes], bool] | None:
        """What a read held of the body. May name who is to be asked first about a whole read, unparsed, that comes
        between two chunks: it answers True when it has dealt with all of it."""

    def on_end(self, *, by_close: bool) -> None:
        """The message is complete as HTTP sees it; `by_close`: only the end of the connection says so."""

    def on_lost(self, *, malformed: bool) -> None:
        """The connection ended, or spoke no HTTP, before the message was complete."""


class Pool(Protocol):
    """Where a connection belongs."""

    coalescer: Coalescer
    known: KnownHead[dict[bytes, bytes]] | None  # the head of this engine's last whole answer

    def opened(self, connection: "UpstreamConnection") -> None:
        """It stands."""

    def closed(self, connection: "UpstreamConnection") -> None:
        """It is gone."""

    def release(self, connection: "UpstreamConnection") -> None:
        """Its answer ended cleanly: it may be used again."""

    def learn(self, data: bytes, fields: dict[bytes, bytes], *, keep: bool) -> None:
        """A whole answer came in one read."""


class Progress(IntEnum):
    """How far an answer is."""

    HEAD = 0
    BODY = 1
    COMPLETE = 2
    MALFORMED = 3


_HEAD: Final = Progress.HEAD
_BODY: Final = Progress.BODY
_COMPLETE: Final = Progress.COMPLETE
_MALFORMED: Final = Progress.MALFORMED


class UpstreamConnection:
    """One connection to an engine, an asyncio protocol. (Derived from none: a class that is compiled has no bases that are not.)"""

    __deletable__ = ("_parser",)
    __slots__ = (
        "_at_chunk",
        "_bare_bytes",
        "_body_pieces",
        "_coalescer",
        "_excess",
        "_field_bytes",
        "_fields",
        "_head_bytes",
        "_held_up",
        "_interim",
        "_keep",
        "_outbox",
        "_parser",
        "_pieces",
        "_pool",
        "_progress",
        "_read_s",
        "_unread",
        "idle_since_s",
        "on_body",
        "received",
        "reused",
        "sent_s",
        "sink",
        "transport",
        "waiting",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._coalescer = pool.coalescer
        self._outbox = pool.coalescer.outbox
        self._read_s = 0.0  # when the last piece of an answer under way came
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # called by the parser: no frame of ours for each chunk of a burst
        self._parser = httptools.HttpResponseParser(self)
        self._unread = select.poll()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.sink: Sink | None = None
        self.idle_since_s = self.sent_s = 0.0
        self.reused = self.waiting = False
        self.received = False  # any byte since the request was sent
        self._reset()

    def _reset(self) -> None:
        self._fields: dict[bytes, bytes] = {}
        self._progress = _HEAD
        self._head_bytes = self._field_bytes = self._bare_bytes = self._interim = self._body_pieces = 0
        self._excess = self._keep = self._held_up = False
        # Set while the parser stands between two chunks and the sink knows what chunks look like.
        self._at_chunk: Callable[[bytes], bool] | None = None

    def send(self, head: bytes, body: bytes, sink: Sink, now: float) -> None:
        """Write a request; its answer goes to `sink`."""
        self.received = False
        self.sink = sink
        self.sent_s = now
        if len(body) <= JOINED_BYTES:
            self._outbox.write(id(self._pool), self, head + body)
        else:
            self.transport.writelines((head, body))

    def unsent_bytes(self) -> int:
        """How much of the request the engine has not taken yet."""
        return self.transport.get_write_buffer_size()

    def quiet(self) -> bool:
        """Whether it stands and nothing unread waits on it: bytes nobody asked for would be the next one's answer."""
        return not self.transport.is_closing() and not self._unread.poll(0)

    def abort(self) -> None:
        """Give the request up: the engine sees its connection closed, and nobody hears of it again."""
        self.sink = self._at_chunk = None
        hang_up(self.transport)
        self.transport.abort()

    def pause(self) -> None:
        """Stop to read until `resume` or the end of this answer: the client is slower than the engine."""
        if not self.transport.is_closing():
            self._held_up = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._held_up = False
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # -- transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._unread.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._pool.opened(self)
        watch_peer(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.closed(self)
        sink, self.sink = self.sink, None
        del self._parser  # breaks the cycle between the parser and this
        if sink is None:
            return
        if exc is None and self._progress is _BODY and self._is_close_delimited():
            sink.on_end(by_close=True)
        else:
            sink.on_lost(malformed=False)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The engine reads slowly: the attempt looks at `unsent_bytes` from time to time."""

    def resume_writing(self) -> None:
        """It has read on."""

    def data_received(self, data: bytes) -> None:
        if self._progress is _BODY:
            self._read_s = self._coalescer.read(self._read_s)
        at_chunk = self._at_chunk
        if at_chunk is not None and at_chunk(data):
            return  # the parser still stands between two chunks
        sink = self.sink
        if sink is None or self.waiting:
            self._give_up()  # nobody asked, or not yet: this is no answer, and such a connection is never used again
            return
        first = not self.received
        self.received = True
        if self._progress is _HEAD:
            if first:
                if self._take_known(data, sink):
                    return
                if not data.startswith(_BEGINS) and len(data) >= len(_BEGINS):
                    self._progress = _MALFORMED  # llhttp takes HTTP/0.9, HTTP/2.0 and others too
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._note_bad(error)
        if self._pieces:
            self._hand_over(data)
        elif self._progress is _BODY:
            self._note_bare(len(data))
        if self._progress is not _BODY:
            if first and self._progress is _COMPLETE:
                self._pool.learn(data, self._fields, keep=self._keep and not self._excess)
            self._look()

    def _note_bad(self, error: Exception) -> None:
        if isinstance(error, httptools.HttpParserCallbackError):
            # A fault of ours is not bad HTTP: the loop closes the connection and is told why.
            raise error.__context__ or error
        self._excess = True
        if self._progress is not _COMPLETE:
            self._progress = _MALFORMED

    def _note_bare(self, size: int) -> None:
        """A read within a body that held nothing of it: the parser keeps a trailer until it is whole."""
        self._bare_bytes += size
        if self._bare_bytes > HEAD_BYTES:
            self._progress = _MALFORMED

    def _take_known(self, data: bytes, sink: Sink) -> bool:
        """A whole answer behind a head that was seen before needs no parser."""
        known = self._pool.known
        if known is None or (found := known.find(data)) is None:
            return False
        length, start = found
        if start + length != len(data):
            return False
        self.sink = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self._pool.release(self)
        sink.on_whole(known.meaning, data[start:])
        return True

    def _hand_over(self, data: bytes) -> None:
        pieces = self._pieces
        if self._progress is _COMPLETE:
            del pieces[self._body_pieces :]  # what follows the end is nobody's
        sink = self.sink
        at_chunk = None
        if sink is not None and self._progress is not _HEAD and pieces:
            at_chunk = sink.on_data(pieces[:])
        pieces.clear()
        self._bare_bytes = 0
        # A piece that ends in an empty line cannot have taken the CRLF behind it: that one ended the chunk.
        self._at_chunk = at_chunk if self.sink is not None and data.endswith(b"\n\n\r\n") else None

    def _look(self) -> None:
        if self._progress is _COMPLETE:
            self._settle()
        elif self._progress is _MALFORMED or self._head_bytes > HEAD_BYTES:
            self._give_up()

    # -- parser callbacks ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._progress is not _HEAD:
            self._excess = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._progress is not _HEAD:
            return
        size = len(name) + len(value)
        self._field_bytes += size
        if size > FIELD_BYTES or self._field_bytes > HEAD_BYTES:
            self._progress = _MALFORMED
        name = name.lower()
        if name in _KEPT:
            self._fields[name] = value

    def on_headers_complete(self) -> None:
        if self._progress is not _HEAD or self.sink is None:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            self._fields = {}
            if self._interim > INTERIM_ANSWERS:
                self._progress = _MALFORMED
            return
        coding = self._fields.get(b"transfer-encoding")
        if not 200 <= status <= 599 or 300 <= status < 400 or (coding is not None and coding.lower() != b"chunked"):
            self._progress = _MALFORMED
            return
        self._progress = _BODY
        self._keep = self._parser.should_keep_alive()
        reader = self.sink.on_head(status, self._fields)
        self.sink = None if self.transport.is_closing() else reader

    def on_message_complete(self) -> None:
        if self._progress is _BODY:
            self._progress = _COMPLETE
            self._body_pieces = len(self._pieces)

    # -- the end of an answer --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        sink, self.sink, self._at_chunk = self.sink, None, None
        if sink is None:
            return  # given up while its last bytes were relayed; already closed
        clean = self._keep and not self._excess and self.unsent_bytes() == 0
        if clean:
            if self._held_up:  # in the very read that brought the end: who asks next is another client
                self.resume()
            self._reset()
            self._pool.release(self)
        else:
            self.transport.abort()
        sink.on_end(by_close=False)

    def _give_up(self) -> None:
        sink, self.sink, self._at_chunk = self.sink, None, None
        self.transport.abort()
        if sink is not None:
            sink.on_lost(malformed=True)

    def _is_close_delimited(self) -> bool:
        return b"content-length" not in self._fields and b"transfer-encoding" not in self._fields
