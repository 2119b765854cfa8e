"""Event streams: whole events, byte for byte, the true end, and the usage that was asked for in the client's stead.

Until the first token every event is decoded. From then on an event of the known shape passes unread; others are
searched for what matters and decoded when it may be there. An event of more than `tail_bytes` flows in pieces.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.dialects.facts import EventFacts, EventKind
from gateway.dialects.stream import read_event, tokens_in, watch
from gateway.dialects.verdict import judge_event
from gateway.http import sse
from gateway.http.upstream import Sink
from gateway.relay.attempt import Attempt
from gateway.relay.end import COMPLETED, End, How, end_of
from gateway.relay.shape import Shape, shape_of
from policies.decisions import Reason
from policies.events import Cause

HELD_EVENT_BYTES: Final = 65536  # so much of an event, or of comments, waits for the first whole event of an answer
RELEARN: Final = 16  # every so many reads of events of another shape, theirs is learned
_COLON: Final = 58
_LF: Final = 10
_ERROR: Final = EventKind.ERROR
_ABORT: Final = EventKind.ABORT
_END: Final = EventKind.END
_USAGE: Final = EventKind.USAGE
_TOKEN: Final = EventKind.TOKEN
_OTHER: Final = EventKind.OTHER
_COMMENT: Final = EventKind.COMMENT


class StreamReader:
    """Relays one event stream."""

    __slots__ = (
        "_attempt",
        "_checked_s",
        "_comment_bytes",
        "_content_type",
        "_edge",
        "_ended",
        "_ended_s",
        "_failed",
        "_flowing",
        "_forward",
        "_good",
        "_held",
        "_line",
        "_misses",
        "_seen_events",
        "_shape",
        "_steady",
        "_tail",
        "_token_seen",
        "_watch",
        "_write",
    )

    def __init__(self, attempt: Attempt, content_type: bytes, fields: dict[bytes, bytes]) -> None:
        self._attempt = attempt
        attempt.streamed = True
        self._content_type = content_type
        self._watch = watch(attempt.route)
        self._write = attempt.exchange.write
        self._forward: Callable[[bytes], None] | None = None  # takes chunks that are framed already
        self._held: list[bytes] = []  # events to be written at the end of a read, once one is more than a comment
        self._good = False  # such an event has come
        self._tail = b""  # the unfinished event at the end of the last read
        self._shape: Shape | None = None
        self._misses = self._comment_bytes = 0  # the latter of comments that wait for an event
        self._steady = False  # past the first token, and between two events
        self._token_seen = False
        self._failed = False  # the engine itself reported an error within its stream
        self._ended, self._ended_s = False, 0.0
        self._flowing = False  # inside an event too long to hold
        self._edge = b""  # last bytes that flowed: an event's end may be torn
        self._line = 0  # length so far of the line that flows
        self._seen_events, self._checked_s = -1, 0.0
        if fields.get(b"content-encoding", b"identity").lower() != b"identity":
            attempt.bounce(Cause.PROTOCOL)  # nothing in it could be read: neither its end nor its usage

    # -- Sink ------------------------------------------------------------------------------------------------------

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> Sink:
        """There is one head."""
        raise NotImplementedError

    def on_whole(self, fields: dict[bytes, bytes], body: bytes) -> None:
        """Only an attempt is told that."""
        raise NotImplementedError

    def on_data(self, pieces: list[bytes]) -> Callable[[bytes], bool] | None:
        """What a read held of the body; who may be asked first about the next, while events have a known shape."""
        self.add_up()
        shape = self._shape
        fit = shape.run(pieces, 0) if self._steady and shape is not None else 0
        self._attempt.events += fit
        if fit == len(pieces):  # token events only, and nothing is held from before
            self._write(b"".join(pieces))
        else:
            self._held += pieces[:fit]
            self._take_pieces(pieces, fit)
        shape = self._shape
        return shape.pass_on if self._steady and shape is not None else None

    def _take_pieces(self, pieces: list[bytes], at: int) -> None:
        attempt, count = self._attempt, len(pieces)
        while at < count:
            if self._ended or attempt.over:
                return  # behind the end marker nothing is relayed
            piece = pieces[at]
            at += 1
            if self._flowing:
                self._flow(piece)
            else:
                self._take(self._tail + piece if self._tail else piece)
            if self._steady and (shape := self._shape) is not None:
                end = shape.run(pieces, at)
                self._held += pieces[at:end]
                attempt.events += end - at
                at = end
        if self._good and not self._ended:
            self._flush()

    def add_up(self) -> None:
        """Take over what the shape has counted."""
        shape = self._shape
        if shape is not None and shape.passed:
            self._attempt.events += shape.passed
            self._attempt.exchange.sent_bytes += shape.passed_bytes
            shape.passed = shape.passed_bytes = 0

    def on_end(self, *, by_close: bool) -> None:
        """The engine ended its message: properly only if its end marker came."""
        self.add_up()
        attempt = self._attempt
        if attempt.over:
            return
        if self._tail and not self._ended:
            self._take_last(self._tail)
            if attempt.over:
                return
        attempt.connection = None
        if self._ended:
            self._conclude()
        elif attempt.committed:
            attempt.fail(Reason.BACKEND_BAD_STREAM, self.half_said())
        else:
            attempt.finish(End(How.BOUNCED, cause=Cause.PROTOCOL))

    def on_lost(self, *, malformed: bool) -> None:
        """The connection ended within the body; behind the end marker that takes nothing away."""
        self.add_up()
        attempt = self._attempt
        attempt.connection = None
        if self._tail and not self._ended:
            self._take_last(self._tail)
            if attempt.over:
                return
        if self._ended:
            self._conclude()
        elif attempt.committed:
            attempt.fail(Reason.BACKEND_STREAM_INTERRUPTED, self.half_said())
        else:
            attempt.finish(End(How.BOUNCED, cause=Cause.PROTOCOL if malformed else Cause.RESET))

    # -- asked by the attempt --------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """The gap between events, and the wait for the end of a message whose last event has come."""
        self.add_up()
        attempt = self._attempt
        if self._ended:
            self._ended_s = self._ended_s or now
            if now - self._ended_s > attempt.rules.after_end_s:
                attempt.drop()
                self._conclude()
        elif attempt.events != self._seen_events or attempt.exchange.congested or not attempt.committed:
            self._seen_events, self._checked_s = attempt.events, now
        elif now - self._checked_s > attempt.rules.idle_s:
            attempt.fail(Reason.BACKEND_STALL, self.half_said())

    def half_said(self) -> bytes:
        """An empty line, when part of an event has been sent."""
        return b"\n\n" if self._flowing else b""

    def mute(self) -> None:
        """The client has left: what passed by unread has to be read from now on. All else goes through its exchange."""
        self.add_up()
        self._forward = None
        if self._shape is not None:
            self._shape.forward = None

    def ping(self) -> None:
        """Write a comment, but only between two events."""
        if self._steady and not self._ended:
            self._write(b": ping\n\n")

    # -- events ----------------------------------------------------------------------------------------------------

    def _take(self, block: bytes) -> None:
        """Take over the whole events of a block and keep what is left."""
        end = sse.last_end(block)
        tail = block[end:] if end else block
        self._tail = b""
        if end:
            self._take_whole(block[:end] if tail else block)
        attempt = self._attempt
        if attempt.over or self._ended:
            return
        if len(tail) > (attempt.rules.tail_bytes if self._good else HELD_EVENT_BYTES):
            self._start_to_flow(tail)
        else:
            self._tail = tail
        self._steady = not tail and self._token_seen

    def _take_whole(self, events: bytes) -> None:
        self._misses += 1
        if not self._token_seen or self._misses % RELEARN == 0 or events[0] == _COLON or self._watch(events):
            self._read_events(sse.split(events))
        else:
            attempt = self._attempt
            lines = events.count(b"data:")
            attempt.events += lines
            attempt.blank += lines - tokens_in(attempt.route, events)
            self._held.append(events)

    def _take_last(self, tail: bytes) -> None:
        """The last event came without its empty line. An end marker is enough of one; of anything else nobody knows
        whether it is whole, and half an event before our frame would break the client's parser."""
        self._tail = b""
        kind = read_event(self._attempt.route, tail).kind
        told = not self._attempt.committed and kind in (_ERROR, _ABORT)
        if kind is _END or told:
            self._read_events([tail])

    def _read_events(self, events: list[bytes]) -> None:
        attempt = self._attempt
        for event in events:
            facts = read_event(attempt.route, event)
            kind = facts.kind
            if facts.usage is not None:
                attempt.usage = facts.usage.over(attempt.usage)
            if kind is _ABORT or (kind is _ERROR and not attempt.committed):
                self._refuse(facts)
                return
            if kind is _TOKEN:
                self._note_token(event)
            self._failed |= kind is _ERROR or facts.failed
            if kind is _USAGE and attempt.owner.strips_usage:
                if event[0] == _LF:
                    self._held.append(b"\n")  # the end of the event before it: a read may part CR from LF
                continue
            self._held.append(event)
            if kind is not _COMMENT:
                self._good = True
                attempt.events += 1
                attempt.blank += kind is not _TOKEN
            elif not self._good:
                self._comment_bytes += len(event)
                self._good = self._comment_bytes > HELD_EVENT_BYTES
            if kind is _END:
                self._ended, self._steady = True, False
                # Usually the message ends in this same read: then the last events leave together with its end.
                asyncio.get_running_loop().call_soon(self._flush_unended)
                return

    def _note_token(self, event: bytes) -> None:
        attempt = self._attempt
        if not self._token_seen:
            self._token_seen = True
            attempt.owner.first_token()
        self.add_up()
        self._shape = shape = shape_of(attempt.route.name, event)
        if shape is not None:
            shape.forward = self._forward

    def _flush_unended(self) -> None:
        if not self._attempt.over:
            self._flush()

    def _flush(self) -> None:
        attempt = self._attempt
        if not attempt.committed:
            attempt.begin(200, self._content_type, b"", None)
            self._forward = attempt.exchange.forwarder()
            if self._shape is not None:
                self._shape.forward = self._forward
        if self._held:
            held = self._held
            self._write(held[0] if len(held) == 1 else b"".join(held))
            held.clear()

    def _refuse(self, facts: EventFacts) -> None:
        attempt = self._attempt
        if attempt.committed:
            self._flush()  # what came before it in the same read is whole and true
            attempt.fail(Reason.BACKEND_STREAM_INTERRUPTED)
        elif facts.kind is _ABORT:
            attempt.bounce(Cause.ABORTED)
        else:
            attempt.drop()
            attempt.finish(end_of(judge_event(facts, attempt.hide)))

    def _conclude(self) -> None:
        attempt = self._attempt
        if attempt.over:
            return
        if not attempt.committed:
            attempt.begin(200, self._content_type, b"", None)
        last = b"".join(self._held)
        if self._failed:
            attempt.exchange.break_off(last)
            attempt.finish(End(How.BROKEN, reason=Reason.BACKEND_ERROR))
        else:
            attempt.exchange.end(last)
            attempt.finish(COMPLETED)

    # -- an event that is too long to hold ---------------------------------------------------------------------------

    def _start_to_flow(self, head: bytes) -> None:
        self._held.append(head)
        self._good = self._flowing = True
        self._edge = head[-3:]
        self._count_line(head)

    def _flow(self, data: bytes) -> None:
        seam = self._edge + data
        end = sse.first_end(seam) - len(self._edge)
        if end <= 0:
            self._edge = seam[-3:]
            self._held.append(data)
            self._count_line(data)
            return
        self._flowing, self._line = False, 0
        self._attempt.events += 1
        self._held.append(data[:end])
        self._steady = self._token_seen
        if end < len(data):
            self._take(data[end:])

    def _count_line(self, data: bytes) -> None:
        newline = data.rfind(b"\n")
        self._line = self._line + len(data) if newline < 0 else len(data) - newline - 1
        if self._line > self._attempt.rules.line_bytes:
            self._flush()
            self._attempt.fail(Reason.BACKEND_BAD_STREAM, self.half_said())
