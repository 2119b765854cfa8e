"""One try of a request on one connection (http.md 6, 7).

Nothing reaches the client before an answer has begun well; until then the attempt can end as a bounce, and the core
may place the request again. After that a fault is told by one frame and a close without a proper end.
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

from gateway.dialects.answers import error_frame
from gateway.dialects.facts import UNTOLD, Usage
from gateway.dialects.routes import Kind, Route
from gateway.dialects.stream import read_body
from gateway.dialects.verdict import error_for
from gateway.http.exchange import Exchange
from gateway.http.upstream import Sink, UpstreamConnection
from gateway.relay.end import COMPLETED, End, How, Rules
from policies.decisions import Reason
from policies.events import Cause

_GENERATE: Final = Kind.GENERATE


class Owner(Protocol):
    """Whose attempt it is. Times are absolute on time.monotonic()."""

    exchange: Exchange
    route: Route
    first_byte_by_s: float
    deadline_s: float
    strips_usage: bool  # the usage chunk was asked for by us, not by the client

    @property
    def deadline_reason(self) -> Reason:
        """What the client is told when the deadline passes before anything was sent."""

    @property
    def request_id(self) -> str:
        """The id the client knows the request by."""

    def commit(self, status: int, content_type: bytes, coding: bytes, length: int | None) -> None:
        """Begin the answer to the client."""

    def answer(self, content_type: bytes, coding: bytes, body: bytes) -> None:
        """Give the client a whole answer."""

    def first_token(self) -> None:
        """The engine has finished its prefill."""

    def attempt_ended(self, end: End) -> None:
        """The attempt is over. Called once, unless the client leaves first."""


class Body(Sink, Protocol):
    """Who takes the body of an answer."""

    def check(self, now: float) -> None:
        """Act on the timers of the body."""

    def half_said(self) -> bytes:
        """What must be written so that a frame is not glued to half an event."""

    def ping(self) -> None:
        """Write a comment to the client, if one can stand here."""

    def add_up(self) -> None:
        """Bring the attempt's counts up to date."""

    def mute(self) -> None:
        """Write to the client no more."""


Choose = Callable[["Attempt", int, dict[bytes, bytes]], Body]


class Attempt:
    """One try of a request on a connection."""

    # Defaults stand in the class: each that is set costs every request.
    committed = False  # the client has been told that a good answer began
    over = False
    streamed = False  # the engine answers with an event stream
    usage: Usage | None = None
    events = 0  # relayed
    blank = 0  # of these had no token in them; the others are charged when the engine tells no usage
    _unsent_bytes = 0  # of the request, at the last look
    _unsent_s = 0.0  # since when

    def __init__(
        self, owner: Owner, connection: UpstreamConnection, rules: Rules, hide: tuple[bytes, ...], choose: Choose
    ) -> None:
        self.owner = owner
        self.connection: UpstreamConnection | None = connection
        self.rules = rules
        self.hide = hide  # what of the endpoint no client may read
        self._choose = choose
        self._reader: Body | None = None
        self.route = owner.route
        self.exchange = owner.exchange
        self.exchange.source = self

    def begin(self, status: int, content_type: bytes, coding: bytes, length: int | None) -> None:
        """A good answer has begun: tell the client, and stop to hold what a second attempt would need."""
        self.committed = True
        self.exchange.drop_body()
        self.owner.commit(status, content_type, coding, length)
        if self.exchange.congested and self.connection is not None:
            self.connection.pause()

    def answer(self, fields: dict[bytes, bytes], body: bytes) -> None:
        """A whole 200 that is no stream."""
        facts = read_body(self.route, body)
        self.connection = None
        if facts.aborted:
            self.finish(End(How.BOUNCED, cause=Cause.ABORTED))
        elif self.exchange.started:
            self.finish(End(How.BOUNCED, cause=Cause.PROTOCOL))  # a kept-alive stream is promised: JSON cannot follow
        else:
            self.usage = facts.usage
            self.committed = True
            content_type = fields.get(b"content-type", b"application/json")
            self.owner.answer(content_type, fields.get(b"content-encoding", b""), body)
            self.finish(COMPLETED)

    def finish(self, end: End) -> None:
        """The attempt is over. (The reader refers to the attempt: without the cycle nothing waits for a collection.)"""
        if self.over:
            return
        self.over = True
        if self._reader is not None:
            self._reader.add_up()
            self._reader = None
        self.owner.attempt_ended(end)

    def bounce(self, cause: Cause, retry_after_s: float | None = None) -> None:
        """Over, and nothing reached the client."""
        self.drop()
        self.finish(End(How.BOUNCED, cause=cause, retry_after_s=retry_after_s))

    def fail(self, reason: Reason, tail: bytes = b"") -> None:
        """Over in the middle of an answer: `tail` ends what was half said, one frame says why, then the close."""
        self.drop()
        if self.streamed:
            frame = error_frame(self.route, error_for(reason, None), self.owner.request_id, self.events)
            self.exchange.break_off(tail + frame)
        else:
            self.exchange.break_off()
        self.finish(End(How.BROKEN, reason=reason))

    def read_out(self, owner: Owner) -> None:
        """The client has left: what is still to come is read for `owner`, and thrown away."""
        self.owner = owner
        if self._reader is not None:
            self._reader.mute()
        self.resume()

    def drop(self) -> None:
        """Close the engine's connection if it is still ours: the engine stops working for nobody."""
        connection, self.connection = self.connection, None
        if self._reader is not None:
            self._reader.add_up()
        if connection is not None and connection.sink is not None:
            connection.abort()

    def pause(self) -> None:
        """The client is slower than the engine. Once its answer is whole the connection is somebody else's."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self.connection is not None:
            self.connection.resume()

    def interrupt(self, reason: Reason) -> None:
        """End it from outside: `reason` is what the client is told."""
        if self.over:
            return
        if self.committed:
            self.fail(reason, self._reader.half_said() if self._reader else b"")
        else:
            self.drop()
            self.finish(End(How.REFUSED, error=error_for(reason, None)))

    def seen_tokens(self) -> int:
        """Tokens of the answer that have come so far; a begun answer has one at least."""
        if self._reader is not None:
            self._reader.add_up()
        return max(1, self.events - self.blank) if self.committed else 0

    def told(self) -> tuple[int | None, int | None, int]:
        """Prompt and cached tokens, None where its engine has not told them yet; those of the answer as told, else as seen."""
        seen = self.seen_tokens()
        usage = self.usage or UNTOLD
        return usage.prompt_tokens, usage.cached_tokens, seen if usage.output_tokens is None else usage.output_tokens

    def tokens(self, estimate: int) -> tuple[int, int, int]:
        """Prompt, cached and output tokens by the engine's own usage; where it told none, the estimate of the prompt and
        what was seen of the answer."""
        usage = self.usage
        seen = self.seen_tokens() if self.route.kind is _GENERATE else 0
        if usage is None:
            return estimate, 0, seen
        output = seen if usage.output_tokens is None else usage.output_tokens
        return usage.prompt_tokens or 0, usage.cached_tokens or 0, output

    def ping(self) -> None:
        """Write a comment to the client, if that can stand here."""
        if self._reader is not None:
            self._reader.ping()

    def check(self, now: float) -> None:
        """Act on the timers that have run out."""
        owner = self.owner
        if self.over or self.connection is None:
            return
        if now >= owner.deadline_s:
            self.interrupt(Reason.STREAM_TIMEOUT if self.committed else owner.deadline_reason)
        elif not self.committed and now >= owner.first_byte_by_s:
            self.bounce(Cause.FIRST_BYTE_TIMEOUT)
        elif self._reader is None:
            self._check_unsent(now)
        else:
            self._reader.check(now)

    def _check_unsent(self, now: float) -> None:
        unsent = self.connection.unsent_bytes() if self.connection else 0
        if unsent == 0 or unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_s = unsent, now
        elif now - self._unsent_s > self.rules.write_stall_s:
            self.bounce(Cause.RESET)

    # -- Sink: until the head is there -----------------------------------------------------------------------------

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> Sink:
        """Choose who takes the body."""
        self._reader = reader = self._choose(self, status, fields)
        return reader

    def on_whole(self, fields: dict[bytes, bytes], body: bytes) -> None:
        """Head and body came at once."""
        self.answer(fields, body)

    def on_data(self, pieces: list[bytes]) -> None:
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
            and time.monotonic() - connection.sent_s <= self.rules.stale_s
        )
        self.finish(End(How.BOUNCED, cause=Cause.PROTOCOL if malformed else Cause.RESET, stale=stale))
