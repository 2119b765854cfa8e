"""One try of a request on one connection (http.md 6, 7).

Nothing reaches the client before an answer has begun well; until then the attempt can end as a bounce, and the core
may place the request again. After that a fault is told by one frame and a close without a proper end.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gateway.dialects.answers import error_frame
from gateway.dialects.facts import Usage
from gateway.dialects.routes import Route
from gateway.dialects.verdict import Bounce, error_for
from gateway.errors import GatewayError
from gateway.http.exchange import Exchange
from gateway.http.upstream import Sink, UpstreamConnection
from policies.decisions import Reason
from policies.events import Cause


class Reader(Protocol):
    """Who takes the body of an answer: a Sink that can also be asked."""

    def check(self, now: float) -> None:
        """Act on the timers of the body."""

    def half_said(self) -> bytes:
        """What must be written so that a frame is not glued to half an event."""

    def ping(self) -> None:
        """Write a comment to the client, if one can stand here."""


Choose = Callable[["Attempt", int, dict[bytes, bytes]], "Body"]


class Body(Sink, Reader, Protocol):
    """A Sink that is a Reader."""


class How(Enum):
    """How an attempt ended."""

    COMPLETED = "completed"
    BOUNCED = "bounced"  # nothing reached the client: may be placed again
    REFUSED = "refused"  # the engine's own error, to be told to the client
    BROKEN = "broken"  # the client has part of an answer


@dataclass(slots=True)
class End:
    """The end of an attempt; `cause` goes with BOUNCED, `error` with REFUSED, `reason` with BROKEN.

    `stale`: a pooled connection had died unnoticed, and the engine never saw the request.
    """

    how: How
    cause: Cause = Cause.RESET
    retry_after_s: float | None = None
    error: GatewayError | None = None
    reason: Reason = Reason.BACKEND_STREAM_INTERRUPTED
    stale: bool = False


@dataclass(slots=True)
class Terms:
    """What an attempt keeps to. Times are absolute on time.monotonic()."""

    first_byte_by_s: float
    deadline_s: float
    deadline_reason: Reason  # what the client is told when it passes before anything was sent
    idle_s: float
    stale_s: float  # a reused connection that closes this soon after the write was dead before it
    write_stall_s: float
    after_end_s: float  # how long a stream may stay open behind its end marker
    tail_bytes: int
    line_bytes: int
    strip_usage: bool
    request_id: str
    hide: tuple[bytes, ...]


@dataclass(slots=True)
class Hooks:
    """Whom an attempt tells. `choose` gives the reader for a head; `commit` begins the answer to the client with
    status, content type, content coding and length; `first_token` is called once."""

    choose: Choose
    commit: Callable[[int, bytes, bytes, int | None], None]
    first_token: Callable[[], None]


class Attempt:
    """One try of a request on a connection. `done` is set once, unless the client leaves first."""

    __slots__ = (
        "_choose",
        "_commit",
        "_first_token",
        "_reader",
        "_stalled",
        "committed",
        "connection",
        "done",
        "events",
        "exchange",
        "route",
        "streamed",
        "terms",
        "usage",
    )

    def __init__(
        self,
        exchange: Exchange,
        route: Route,
        terms: Terms,
        hooks: "Hooks",
    ) -> None:
        self.exchange = exchange
        self.route = route
        self.terms = terms
        self.done: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.connection: UpstreamConnection | None = None
        self.committed = False  # the client has been told that a good answer began
        self.streamed = False  # the engine answers with an event stream
        self.usage: Usage | None = None
        self.events = 0  # data lines relayed: what is charged when the engine tells no usage
        self._choose = hooks.choose
        self._commit = hooks.commit
        self._first_token = hooks.first_token
        self._reader: Reader | None = None
        self._stalled = (0, 0.0)  # unsent bytes of the request, and since when

    def send(self, connection: UpstreamConnection, head: bytes, body: bytes, now: float) -> None:
        """Write the request; the answer comes by itself."""
        self.connection = connection
        self.exchange.on_pause = connection.pause
        self.exchange.on_resume = connection.resume
        connection.send(head, body, self, now)

    def begin(self, status: int, content_type: bytes, coding: bytes, length: int | None) -> None:
        """A good answer has begun: tell the client, and stop to hold what a second attempt would need."""
        self.committed = True
        self.exchange.drop_body()
        self._commit(status, content_type, coding, length)
        if self.exchange.congested and self.connection is not None:
            self.connection.pause()

    def saw_first_token(self) -> None:
        """The engine has finished its prefill."""
        self._first_token()

    def finish(self, end: End) -> None:
        """The attempt is over."""
        if not self.done.done():
            self.done.set_result(end)

    def bounce(self, cause: Cause, retry_after_s: float | None = None) -> None:
        """Over, and nothing reached the client."""
        self.drop()
        self.finish(End(How.BOUNCED, cause=cause, retry_after_s=retry_after_s))

    def fail(self, reason: Reason, tail: bytes = b"") -> None:
        """Over in the middle of an answer: `tail` ends what was half said, one frame says why, then the close."""
        self.drop()
        if self.streamed:
            frame = error_frame(self.route, error_for(reason, None), self.terms.request_id, self.events)
            self.exchange.break_off(tail + frame)
        else:
            self.exchange.break_off()
        self.finish(End(How.BROKEN, reason=reason))

    def drop(self) -> None:
        """Close the engine's connection if it is still ours: the engine stops working for nobody."""
        connection, self.connection = self.connection, None
        if connection is not None and connection.sink is not None:
            connection.abort()

    def interrupt(self, reason: Reason) -> None:
        """End it from outside: `reason` is what the client is told."""
        if self.done.done():
            return
        if self.committed:
            self.fail(reason, self._reader.half_said() if self._reader else b"")
        else:
            self.drop()
            self.finish(End(How.REFUSED, error=error_for(reason, None)))

    def ping(self) -> None:
        """Write a comment to the client, if that can stand here."""
        if self._reader is not None:
            self._reader.ping()

    def check(self, now: float) -> None:
        """Act on the timers that have run out."""
        terms = self.terms
        if self.done.done() or self.connection is None:
            return
        if now >= terms.deadline_s:
            self.interrupt(Reason.STREAM_TIMEOUT if self.committed else terms.deadline_reason)
        elif not self.committed and now >= terms.first_byte_by_s:
            self.bounce(Cause.FIRST_BYTE_TIMEOUT)
        elif self._reader is None:
            self._check_unsent(now)
        else:
            self._reader.check(now)

    def _check_unsent(self, now: float) -> None:
        unsent = self.connection.unsent_bytes() if self.connection else 0
        if unsent == 0 or unsent != self._stalled[0]:
            self._stalled = (unsent, now)
        elif now - self._stalled[1] > self.terms.write_stall_s:
            self.bounce(Cause.RESET)

    # -- Sink: until the head is there -----------------------------------------------------------------------------

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> Sink:
        """Choose who takes the body."""
        self._reader = reader = self._choose(self, status, fields)
        return reader

    def on_data(self, pieces: list[bytes]) -> bool:
        """Never called: the head comes first."""
        return False

    def on_chunk(self, data: bytes) -> bool:
        """Never called: the head comes first."""
        return False

    def on_end(self, *, by_close: bool) -> None:
        """Never called: the head comes first."""

    def on_lost(self, *, malformed: bool) -> None:
        """The connection ended without a head."""
        connection, self.connection = self.connection, None
        stale = (
            connection is not None
            and connection.reused
            and not connection.received
            and time.monotonic() - connection.sent_s <= self.terms.stale_s
        )
        self.finish(End(How.BOUNCED, cause=Cause.PROTOCOL if malformed else Cause.RESET, stale=stale))


def end_of(verdict: Bounce | GatewayError) -> End:
    """The end of an attempt whose error has been judged."""
    if isinstance(verdict, Bounce):
        return End(How.BOUNCED, cause=verdict.cause, retry_after_s=verdict.retry_after_s)
    return End(How.REFUSED, error=verdict)
