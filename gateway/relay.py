"""An engine's answer to a client, protocol to protocol: no task switch, no copy, no JSON per token (http.md 6, 7).

An `Attempt` is one try on one connection. It waits for the head, then hands the body to one of three readers:
`StreamReader` for event streams, `PlainReader` for everything else that is 2xx, `ErrorReader` for the rest.
Nothing reaches the client before an answer has begun well; until then the attempt can end as a bounce, and the core
may place the request again. After that a fault is told by one frame and a close without a proper end.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import msgspec

from gateway.dialects.answers import error_frame
from gateway.dialects.facts import EventFacts, EventKind, Usage
from gateway.dialects.routes import Route
from gateway.dialects.stream import read_body, read_event, watch
from gateway.dialects.verdict import Bounce, error_for, judge, judge_event
from gateway.errors import GatewayError
from gateway.http import sse
from gateway.http.exchange import Exchange
from gateway.http.upstream import Sink, UpstreamConnection
from policies.decisions import Reason
from policies.events import Cause

HELD_EVENT_BYTES = 65536  # an uncommitted answer waits for its first event no longer than this
HELD_BODY_BYTES = 1 << 20
ERROR_BODY_BYTES = 65536


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


class Attempt:
    """One try of a request on a connection. `done` is set once, unless the client leaves first."""

    __slots__ = (
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
        commit: Callable[[int, bytes, bytes, int | None], None],
        first_token: Callable[[], None],
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
        self._commit = commit
        self._first_token = first_token
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
        if isinstance(self._reader, StreamReader):
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
        content_type = fields.get(b"content-type", b"")
        if not 200 <= status < 300:
            self._reader = ErrorReader(self, status, fields)
        elif status == 200 and content_type.partition(b";")[0].strip().lower() == b"text/event-stream":
            self.streamed = True
            self._reader = StreamReader(self, content_type, fields)
        else:
            self._reader = PlainReader(self, status, fields)
        return self._reader

    def on_data(self, data: bytes) -> None:
        """Never called: the head comes first."""

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


class Reader:
    """What the three kinds of bodies have in common."""

    __slots__ = ("attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> Sink:
        """There is one head."""
        return self

    def on_data(self, data: bytes) -> None:
        """A piece of the body."""
        raise NotImplementedError

    def on_end(self, *, by_close: bool) -> None:
        """The body is complete."""
        raise NotImplementedError

    def on_lost(self, *, malformed: bool) -> None:
        """The connection ended within the body."""
        attempt = self.attempt
        attempt.connection = None
        if attempt.committed:
            attempt.fail(Reason.BACKEND_STREAM_INTERRUPTED, self.half_said())
        else:
            attempt.finish(End(How.BOUNCED, cause=Cause.PROTOCOL if malformed else Cause.RESET))

    def check(self, now: float) -> None:
        """Timers of the body."""

    def half_said(self) -> bytes:
        """What must be written so that a frame is not glued to half an event."""
        return b""


class StreamReader(Reader):
    """Relays events whole. In the common case a read is whole events without anything to look at: then it costs two
    searches and a write. An event of more than `tail_bytes` flows in pieces."""

    __slots__ = (
        "_checked_s",
        "_content_type",
        "_edge",
        "_ended",
        "_ended_s",
        "_failed",
        "_flowing",
        "_held",
        "_line",
        "_seen_events",
        "_steady",
        "_tail",
        "_token_seen",
        "_watch",
        "_write",
    )

    def __init__(self, attempt: Attempt, content_type: bytes, fields: dict[bytes, bytes]) -> None:
        super().__init__(attempt)
        self._content_type = content_type
        self._watch = watch(attempt.route)
        self._write = attempt.exchange.write
        self._held: list[bytes] = []  # events before the first that is more than a comment
        self._tail = b""  # the unfinished event at the end of the last read
        self._steady = False  # committed, past the first token, and between two events
        self._token_seen = False
        self._failed = False  # the engine itself reported an error within its stream
        self._ended = False
        self._ended_s = 0.0
        self._flowing = False  # inside an event too long to hold
        self._edge = b""  # last bytes that flowed: an event's end may be torn
        self._line = 0  # length so far of the line that flows
        self._seen_events, self._checked_s = -1, 0.0
        if fields.get(b"content-encoding", b"identity").lower() != b"identity":
            attempt.bounce(Cause.PROTOCOL)  # nothing in it could be read: neither its end nor its usage

    def on_data(self, data: bytes) -> None:
        """A read from the engine."""
        if self._steady and data.endswith(sse.WHOLE) and data[0] != 58 and not self._watch(data):
            self.attempt.events += data.count(b"data:")
            self._write(data)
        elif self.attempt.done.done() or self._ended:
            return  # behind the end marker nothing is relayed
        elif self._flowing:
            self._flow(data)
        else:
            self._take(self._tail + data)

    def on_end(self, *, by_close: bool) -> None:
        """The engine ended its message: properly only if its end marker came."""
        attempt = self.attempt
        if attempt.done.done():
            return
        if self._tail and not self._ended:
            self._take_last(self._tail)
            if attempt.done.done():
                return
        attempt.connection = None
        if self._ended:
            self._conclude()
        elif attempt.committed:
            attempt.fail(Reason.BACKEND_BAD_STREAM, self.half_said())
        else:
            attempt.finish(End(How.BOUNCED, cause=Cause.PROTOCOL))

    def on_lost(self, *, malformed: bool) -> None:
        """A connection cut behind the end marker took nothing with it."""
        if self._ended:
            self.attempt.connection = None
            self._conclude()
        else:
            super().on_lost(malformed=malformed)

    def check(self, now: float) -> None:
        """The gap between events, and the wait for the end of a message whose last event has come."""
        attempt = self.attempt
        if self._ended:
            self._ended_s = self._ended_s or now
            if now - self._ended_s > attempt.terms.after_end_s:
                attempt.drop()
                self._conclude()
        elif attempt.events != self._seen_events or attempt.exchange.congested or not attempt.committed:
            self._seen_events, self._checked_s = attempt.events, now
        elif now - self._checked_s > attempt.terms.idle_s:
            attempt.fail(Reason.BACKEND_STALL, self.half_said())

    def half_said(self) -> bytes:
        """An empty line, when part of an event has been sent."""
        return b"\n\n" if self._flowing else b""

    def ping(self) -> None:
        """Write a comment, but only between two events."""
        if self._steady and not self._ended:
            self._write(b": ping\n\n")

    # -- events ----------------------------------------------------------------------------------------------------

    def _take(self, block: bytes) -> None:
        end = sse.last_end(block)
        tail = block[end:] if end else block
        self._tail = b""
        if end:
            whole = block[:end] if tail else block
            if self._steady_but_for_tail() and not self._watch(whole) and whole[0] != 58:
                self.attempt.events += whole.count(b"data:")
                self._write(whole)
            else:
                self._read_events(sse.split(whole))
        if self.attempt.done.done() or self._ended:
            return
        if len(tail) > (self.attempt.terms.tail_bytes if self.attempt.committed else HELD_EVENT_BYTES):
            self._start_to_flow(tail)
        else:
            self._tail = tail
        self._steady = not tail and self._steady_but_for_tail()

    def _take_last(self, tail: bytes) -> None:
        """The last event came without its empty line. An end marker is enough of one; of anything else nobody knows
        whether it is whole, and half an event before our frame would break the client's parser."""
        self._tail = b""
        kind = read_event(self.attempt.route, tail).kind
        told = not self.attempt.committed and kind in (EventKind.ERROR, EventKind.ABORT)
        if kind is EventKind.END or told:
            self._read_events([tail])

    def _steady_but_for_tail(self) -> bool:
        return self.attempt.committed and self._token_seen

    def _read_events(self, events: list[bytes]) -> None:
        attempt = self.attempt
        route = attempt.route
        out, good = self._held, attempt.committed
        for event in events:
            facts = read_event(route, event)
            kind = facts.kind
            if facts.usage is not None:
                self._note(facts.usage)
            if kind is EventKind.ABORT or (kind is EventKind.ERROR and not attempt.committed):
                self._refuse(facts)
                return
            if kind is EventKind.TOKEN and not self._token_seen:
                self._token_seen = True
                attempt.saw_first_token()
            self._failed |= kind is EventKind.ERROR or facts.failed
            if kind is EventKind.USAGE and attempt.terms.strip_usage:
                continue
            out.append(event)
            if kind is not EventKind.COMMENT:
                good = True
                attempt.events += 1
            if kind is EventKind.END:
                self._ended, self._steady = True, False
                # Usually the message ends in this same read: then the last events leave together with its end.
                asyncio.get_running_loop().call_soon(self._flush_unended)
                return
        if good:
            self._flush()

    def _flush_unended(self) -> None:
        if not self.attempt.done.done():
            self._flush()

    def _flush(self) -> None:
        if not self.attempt.committed:
            self.attempt.begin(200, self._content_type, b"", None)
        if self._held:
            self._write(b"".join(self._held))
            self._held = []

    def _note(self, usage: Usage) -> None:
        self.attempt.usage = usage.over(self.attempt.usage)

    def _refuse(self, facts: EventFacts) -> None:
        attempt = self.attempt
        if attempt.committed:
            self._flush()  # what came before it in the same read is whole and true
            attempt.fail(Reason.BACKEND_STREAM_INTERRUPTED)
        elif facts.kind is EventKind.ABORT:
            attempt.bounce(Cause.ABORTED)
        else:
            attempt.drop()
            attempt.finish(_end_of(judge_event(facts, attempt.terms.hide)))

    def _conclude(self) -> None:
        attempt = self.attempt
        if attempt.done.done():
            return
        if not attempt.committed:
            attempt.begin(200, self._content_type, b"", None)
        last = b"".join(self._held)
        if self._failed:
            attempt.exchange.break_off(last)
            attempt.finish(End(How.BROKEN, reason=Reason.BACKEND_ERROR))
        else:
            attempt.exchange.end(last)
            attempt.finish(End(How.COMPLETED))

    # -- an event that is too long to hold ---------------------------------------------------------------------------

    def _start_to_flow(self, head: bytes) -> None:
        self._held.append(head)
        self._flush()
        self._flowing = True
        self._edge = head[-3:]
        self._count_line(head)

    def _flow(self, data: bytes) -> None:
        seam = self._edge + data
        end = sse.first_end(seam) - len(self._edge)
        if end <= 0:
            self._edge = seam[-3:]
            self._write(data)
            self._count_line(data)
            return
        self._flowing, self._line = False, 0
        self.attempt.events += 1
        self._write(data[:end])
        if end < len(data):
            self._take(data[end:])
        else:
            self._steady = self._steady_but_for_tail()

    def _count_line(self, data: bytes) -> None:
        newline = data.rfind(b"\n")
        self._line = self._line + len(data) if newline < 0 else len(data) - newline - 1
        if self._line > self.attempt.terms.line_bytes:
            self.attempt.fail(Reason.BACKEND_BAD_STREAM, self.half_said())


class PlainReader(Reader):
    """Holds a body of up to 1 MiB and sends it in one piece; a longer one is begun, and streams on."""

    __slots__ = ("_fields", "_held", "_size", "_status")

    def __init__(self, attempt: Attempt, status: int, fields: dict[bytes, bytes]) -> None:
        super().__init__(attempt)
        self._status = status
        self._fields = fields
        self._held: list[bytes] = []
        self._size = 0
        if attempt.exchange.started:
            attempt.bounce(Cause.PROTOCOL)  # a kept-alive stream is promised: JSON cannot follow

    def on_data(self, data: bytes) -> None:
        """A piece of the body."""
        if self.attempt.committed:
            self.attempt.exchange.write(data)
            return
        self._held.append(data)
        self._size += len(data)
        if self._size > HELD_BODY_BYTES:
            length = self._fields.get(b"content-length")
            self._begin(int(length) if length is not None else None)
            self.attempt.exchange.write(b"".join(self._held))
            self._held = []

    def on_end(self, *, by_close: bool) -> None:
        """The body is complete, if it was not the close that ended it; then it must at least be whole JSON."""
        attempt = self.attempt
        attempt.connection = None
        if attempt.committed:
            if by_close:
                attempt.fail(Reason.BACKEND_STREAM_INTERRUPTED)
                return
            attempt.exchange.end()
            attempt.finish(End(How.COMPLETED))
            return
        body = b"".join(self._held)
        facts = read_body(attempt.route, body)
        if facts.aborted:
            attempt.finish(End(How.BOUNCED, cause=Cause.ABORTED))
        elif by_close and not _is_json(body):
            attempt.finish(End(How.BOUNCED, cause=Cause.RESET))
        else:
            attempt.usage = facts.usage
            self._begin(len(body))
            attempt.exchange.end(body)
            attempt.finish(End(How.COMPLETED))

    def _begin(self, length: int | None) -> None:
        fields = self._fields
        coding = fields.get(b"content-encoding", b"")
        self.attempt.begin(self._status, fields.get(b"content-type", b"application/json"), coding, length)


class ErrorReader(Reader):
    """Reads an error's body, up to a bound, and judges it."""

    __slots__ = ("_fields", "_held", "_size", "_status")

    def __init__(self, attempt: Attempt, status: int, fields: dict[bytes, bytes]) -> None:
        super().__init__(attempt)
        self._status = status
        self._fields = fields
        self._held: list[bytes] = []
        self._size = 0

    def on_data(self, data: bytes) -> None:
        """A piece of the body."""
        self._held.append(data)
        self._size += len(data)
        if self._size > ERROR_BODY_BYTES:
            self.attempt.drop()
            self._judge(b"")

    def on_end(self, *, by_close: bool) -> None:
        """The error is complete."""
        self.attempt.connection = None
        self._judge(b"".join(self._held))

    def on_lost(self, *, malformed: bool) -> None:
        """The status was seen: it counts, whatever became of the body."""
        self.attempt.connection = None
        self._judge(b"")

    def _judge(self, body: bytes) -> None:
        fields = self._fields
        verdict = judge(
            self._status,
            fields.get(b"content-type", b""),
            fields.get(b"retry-after"),
            body,
            self.attempt.terms.hide,
        )
        self.attempt.finish(_end_of(verdict))


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def _end_of(verdict: Bounce | GatewayError) -> End:
    if isinstance(verdict, Bounce):
        return End(How.BOUNCED, cause=verdict.cause, retry_after_s=verdict.retry_after_s)
    return End(How.REFUSED, error=verdict)
