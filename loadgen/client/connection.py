"""One connection to a server: a request at a time, its answer stamped in the read callback before anything is parsed.

A read costs its taker one stamp and one append. What it says is looked at later, where no other read waits for it.
"""

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Protocol, cast

import httptools

JOINED_BYTES = 16384  # up to here one copy is cheaper than a vectored write


class Taker(Protocol):
    """Who takes an answer. `stamps` and `datas` get the time and the bytes of each read that held some of the body.

    Times are of the monotonic clock.
    """

    stamps: "array[float]"
    datas: list[bytes]

    def on_head(self, now: float, status: int, fields: dict[bytes, bytes]) -> None:
        """The final head (never 1xx), with field names in lower case."""

    def on_crowded(self) -> None:
        """So many reads have come that they should be looked at."""

    def on_end(self, now: float) -> None:
        """The message is complete as HTTP sees it; the connection may be in use again already."""

    def on_lost(self, now: float, why: str, *, received: bool) -> None:
        """The connection ended, or spoke no HTTP (`why` says so), before that; `received`: some byte had come."""


CROWD = 64
MALFORMED = "the answer is no HTTP"


class Connection(asyncio.Protocol):
    """One connection. `release` is told when it may be used again, `forget` when it is gone."""

    def __init__(self, release: Callable[["Connection"], None], forget: Callable[["Connection"], None]) -> None:
        self._release = release
        self._forget = forget
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # called by the parser
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.idle_since_s = 0.0
        self.reused = False
        self._taker: Taker | None = None
        self._begin()

    def _begin(self) -> None:
        self._fields: dict[bytes, bytes] = {}
        self._status = 0
        self._told = self._complete = self._excess = self._keep = self._received = False

    def send(self, taker: Taker, head: bytes, body: bytes) -> None:
        """Write a request; its answer goes to `taker`."""
        self._begin()
        self._taker = taker
        if len(body) <= JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def abort(self) -> None:
        """Close at once and say nothing more to anybody."""
        self._taker = None
        self.transport.abort()

    def close(self) -> None:
        """Close an idle connection."""
        self.transport.close()

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        taker = self._taker
        if taker is None:  # nothing was asked
            self.transport.abort()
            return
        self._received, malformed = True, False
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            malformed = True  # what came before it in this read did come
        if self._status and not self._told:
            self._told = True
            taker.on_head(now, self._status, self._fields)
        pieces = self._pieces
        if pieces:
            taker.stamps.append(now)
            taker.datas.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            pieces.clear()
            if len(taker.datas) >= CROWD:
                taker.on_crowded()
        if self._complete:
            self._end(taker, now, reusable=not malformed)
        elif malformed:
            self._lose(now, MALFORMED)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        now = time.monotonic()
        self._forget(self)
        taker = self._taker
        if taker is not None and exc is None and self._told and self._ends_by_close():
            self._taker = None
            taker.on_end(now)
        else:
            self._lose(now, str(exc) if exc else "the connection was closed")
        del self._parser, self._feed, self.on_body  # no cycle: a run collects no garbage

    # ---- parser

    def on_message_begin(self) -> None:
        self._excess = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._status = status

    def on_message_complete(self) -> None:
        if self._status:
            self._complete = True
            self._keep = self._parser.should_keep_alive()
        else:  # an interim answer
            self._fields = {}

    # ---- ends

    def _end(self, taker: Taker, now: float, *, reusable: bool) -> None:
        self._taker = None
        if reusable and self._keep and not self._excess and not self.transport.is_closing():
            self.reused = True
            self.idle_since_s = now
            self._release(self)
        else:
            self.transport.abort()
        taker.on_end(now)

    def _lose(self, now: float, why: str) -> None:
        taker, self._taker = self._taker, None
        self._pieces.clear()
        if taker is not None:
            taker.on_lost(now, why, received=self._received)
        if not self.transport.is_closing():
            self.transport.abort()

    def _ends_by_close(self) -> bool:
        return b"content-length" not in self._fields and b"transfer-encoding" not in self._fields
