"""Bodies that are no event streams: a whole JSON answer, and an error to be judged."""

from typing import Final

import msgspec

from gateway.dialects.verdict import judge
from gateway.http.upstream import Sink
from gateway.relay.attempt import Attempt
from gateway.relay.end import COMPLETED, End, How, end_of
from policies.decisions import Reason
from policies.events import Cause

HELD_BODY_BYTES: Final = 1 << 20
ERROR_BODY_BYTES: Final = 65536


class _Whole:
    """A body that is held as it comes."""

    __slots__ = ("_attempt", "_fields", "_held", "_size", "_status")

    def __init__(self, attempt: Attempt, status: int, fields: dict[bytes, bytes]) -> None:
        self._attempt = attempt
        self._status = status
        self._fields = fields
        self._held: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> Sink:
        """There is one head."""
        raise NotImplementedError

    def on_whole(self, fields: dict[bytes, bytes], body: bytes) -> None:
        """Only an attempt is told that."""
        raise NotImplementedError

    def add_up(self) -> None:
        """Nothing is counted apart."""

    def mute(self) -> None:
        """Whatever is written goes through the client's exchange, which knows that it has left."""

    def check(self, now: float) -> None:
        """The attempt's own timers are enough."""

    def half_said(self) -> bytes:
        """A body that is no stream has no frames."""
        return b""

    def ping(self) -> None:
        """Nothing can stand in the middle of JSON."""

    def _hold(self, pieces: list[bytes]) -> None:
        self._held += pieces
        self._size += sum(map(len, pieces))


class PlainReader(_Whole):
    """Holds a body of up to 1 MiB and sends it in one piece; a longer one is begun, and streams on."""

    __slots__ = ()

    def __init__(self, attempt: Attempt, status: int, fields: dict[bytes, bytes]) -> None:
        super().__init__(attempt, status, fields)
        if attempt.exchange.started:
            attempt.bounce(Cause.PROTOCOL)  # a kept-alive stream is promised: JSON cannot follow

    def on_data(self, pieces: list[bytes]) -> None:
        """Pieces of the body."""
        attempt = self._attempt
        if attempt.committed:
            attempt.exchange.write(b"".join(pieces))
            return
        self._hold(pieces)
        if self._size > HELD_BODY_BYTES:
            length = self._fields.get(b"content-length")
            self._begin(int(length) if length is not None else None)
            attempt.exchange.write(b"".join(self._held))
            self._held = []

    def on_end(self, *, by_close: bool) -> None:
        """The body is complete, if it was not the close that ended it; then it must at least be whole JSON."""
        attempt = self._attempt
        attempt.connection = None
        if attempt.committed:
            if by_close:
                attempt.fail(Reason.BACKEND_STREAM_INTERRUPTED)
                return
            attempt.exchange.end()
            attempt.finish(COMPLETED)
            return
        body = b"".join(self._held)
        if by_close and not _is_json(body):
            attempt.finish(End(How.BOUNCED, cause=Cause.RESET))
        elif self._status == 200:
            attempt.answer(self._fields, body)
        else:
            self._begin(len(body))
            attempt.exchange.end(body)
            attempt.finish(COMPLETED)

    def on_lost(self, *, malformed: bool) -> None:
        """The connection ended within the body."""
        attempt = self._attempt
        attempt.connection = None
        if attempt.committed:
            attempt.fail(Reason.BACKEND_STREAM_INTERRUPTED)
        else:
            attempt.finish(End(How.BOUNCED, cause=Cause.PROTOCOL if malformed else Cause.RESET))

    def _begin(self, length: int | None) -> None:
        fields = self._fields
        coding = fields.get(b"content-encoding", b"")
        self._attempt.begin(self._status, fields.get(b"content-type", b"application/json"), coding, length)


class ErrorReader(_Whole):
    """Reads an error's body, up to a bound, and judges it."""

    __slots__ = ()

    def on_data(self, pieces: list[bytes]) -> None:
        """Pieces of the body."""
        self._hold(pieces)
        if self._size > ERROR_BODY_BYTES:
            self._attempt.drop()
            self._judge(b"")

    def on_end(self, *, by_close: bool) -> None:
        """The error is complete."""
        self._attempt.connection = None
        self._judge(b"".join(self._held))

    def on_lost(self, *, malformed: bool) -> None:
        """The status was seen: it counts, whatever became of the body."""
        self._attempt.connection = None
        self._judge(b"")

    def _judge(self, body: bytes) -> None:
        fields, hide = self._fields, self._attempt.hide
        content_type, retry_after = fields.get(b"content-type", b""), fields.get(b"retry-after")
        self._attempt.finish(end_of(judge(self._status, content_type, retry_after, body, hide)))


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
