"""One connection of a client: its requests one after another, the answers on their way out, its timers (http.md 3).

One request is under way at a time: whatever arrives before its answer is complete is thrown away unread, and that
answer is the connection's last.
"""

import asyncio
import math
import termios
from enum import IntEnum
from typing import Final, cast

from gateway.clock import monotonic
from gateway.errors import GatewayError
from gateway.http.exchange import Exchange
from gateway.http.message import NOBODY, Progress, RequestReader
from gateway.http.outbox import TO_CLIENTS
from gateway.http.shared import Shared
from gateway.http.sockets import held_by_kernel, reset_on_close
from policies.decisions import Reason

LINGER_BYTES: Final = 1 << 20
LONG_BYTES: Final = 16384  # such a prompt takes as long as several others: nothing waits meanwhile to be written
_HEAD: Final = Progress.HEAD
_BODY: Final = Progress.BODY
_COMPLETE: Final = Progress.COMPLETE


class State(IntEnum):
    """Where a connection stands."""

    IDLE = 0  # between requests, or new
    READING = 1
    BUSY = 2  # a request is complete, its answer is not
    LINGER = 3  # refused before its body was read, or silent for too long: discarding what still comes
    CLOSING = 4  # flushing what was written


# The members by themselves: to find them in their class costs as much as a call.
_IDLE: Final = State.IDLE
_READING: Final = State.READING
_BUSY: Final = State.BUSY
_LINGER: Final = State.LINGER
_CLOSING: Final = State.CLOSING
_NEVER: Final = math.inf


class ClientConnection:
    """One connection of a client, an asyncio protocol. (Derived from none: a class that is compiled has no bases that are not.)"""

    __slots__ = (
        "_body_began_s",
        "_lingered",
        "_touched_s",
        "_undelivered",
        "deadline",
        "exchange",
        "paused",
        "peer",
        "reader",
        "shared",
        "state",
        "transport",
        "waiting",
    )

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.reader = RequestReader(shared)
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.state = _IDLE
        self.exchange: Exchange | None = None
        self.deadline = _NEVER
        self.paused = self.waiting = False
        self.peer = ""
        self._lingered = 0
        self._body_began_s = self._touched_s = 0.0
        self._undelivered = -1  # at the last look; -1: not looked yet

    def forget_heads(self) -> None:
        """What was concluded from heads that came before holds no longer."""
        self.reader.forget()

    def give_back(self, held_bytes: int) -> None:
        """So many bytes of a body are held no longer."""
        self.shared.held_bytes -= held_bytes

    def write(self, data: bytes) -> None:
        """The next piece of an answer, written at the end of this turn; the answer to a long prompt at once."""
        exchange = self.exchange
        if exchange is not None and exchange.body_bytes > LONG_BYTES:
            self.forward(data)
        else:
            self.shared.outbox.write(TO_CLIENTS, self, data)

    def forward(self, data: bytes) -> None:
        """The same, written at once."""
        if self.waiting:
            self.shared.outbox.flush()
        self.transport.write(data)

    # -- transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        shared = self.shared
        if len(shared.connections) >= shared.bounds.max_connections:
            self.transport.abort()
            self.state = _CLOSING
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        self.transport.set_write_buffer_limits(shared.high_water_bytes, shared.high_water_bytes // 4)
        shared.connections.add(self)
        self.deadline = monotonic() + shared.timers.first_byte_of_connection_s

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.connections.discard(self)
        self.state = _CLOSING
        self._gone(stalled=False)
        self.reader.end()

    def eof_received(self) -> bool:
        # Half-close is not supported: a client that has finished sending while it waits for an answer has left.
        if self.state is not _CLOSING:
            self.shared.outbox.flush()
            self._gone(stalled=False)
        return False

    def pause_writing(self) -> None:
        self.paused = True
        self._undelivered, self.deadline = -1, 0.0
        if self.exchange is not None and self.exchange.source is not None:
            self.exchange.source.pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self.state is _BUSY:
            self.deadline = _NEVER
        elif self.state is _IDLE:
            self.deadline = monotonic() + self.shared.timers.keepalive_idle_s
        if self.exchange is not None and self.exchange.source is not None:
            self.exchange.source.resume()

    def data_received(self, data: bytes) -> None:
        reader = self.reader
        if self.state is _IDLE:
            now = monotonic()
            self.exchange = reader.exchange = Exchange(self, now)
            self.state = _READING
            reader.begin(data)
            if reader.progress is _HEAD:
                self.deadline = now + self.shared.timers.head_s
        elif self.state is _READING:
            reader.feed(data)
        else:
            self._discard(data)
            return
        complete = reader.progress is _COMPLETE
        if complete:
            self.state = _BUSY
            self.deadline = _NEVER
        if reader.error is not None:
            self._refuse(reader.exchange, reader.error, close=not complete)
        elif complete:
            if reader.exchange.body_bytes > LONG_BYTES:
                self.shared.outbox.flush()
            self.shared.handler.received(reader.exchange)
        elif reader.progress is _BODY:
            self._note_body(reader.exchange)

    # -- one request after another ---------------------------------------------------------------------------------

    def _note_body(self, exchange: Exchange) -> None:
        now = monotonic()
        if self._body_began_s < exchange.received_s:  # of an earlier request
            self._body_began_s = now
            self.deadline = now + self.shared.timers.body_gap_s
        self._touched_s = now

    def _refuse(self, exchange: Exchange, error: GatewayError, *, close: bool) -> None:
        exchange.drop_body()
        self.shared.handler.refuse(exchange, error, close=close)
        if close and self.state < _LINGER:
            self.close()

    def answered(self, held_bytes: int, *, close: bool) -> None:
        """The answer's last byte has been handed to the transport."""
        shared, reader = self.shared, self.reader
        shared.held_bytes -= held_bytes
        self.exchange = None
        reader.exchange = NOBODY
        if reader.excess:  # perhaps since the head was sent: what was thrown away must not be waited for
            self._linger()
        elif not close:
            self.state = _IDLE
            self.deadline = monotonic() + shared.timers.keepalive_idle_s
        elif self.state is _BUSY:
            self.close()
        else:
            self._linger()

    def must_close(self) -> bool:
        """Whether the answer that begins now is the connection's last."""
        reader = self.reader
        return reader.excess or self.state is not _BUSY or not reader.keep_alive or self.shared.closing

    def hurry(self, deadline: float) -> None:
        """Be closed by then if nothing comes."""
        if self.state is _IDLE and not self.paused:
            self.deadline = min(self.deadline, deadline)

    def _part(self) -> None:
        """Nothing has come for long enough. What crosses this on its way is never processed, and its sender can tell."""
        if held_by_kernel(self.transport, termios.FIONREAD):
            return  # it has: a close would reset it
        if self.transport.can_write_eof():
            self._linger()
        else:
            self.close()  # TLS says goodbye by itself, and waits for the answer

    def _linger(self) -> None:
        # A plain close while bytes are still coming would reset the connection and take our answer with it.
        self.state = _LINGER
        self._lingered = 0
        self.deadline = monotonic() + self.shared.timers.lingering_s
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.shared.outbox.flush()
            self.transport.write_eof()

    def _discard(self, data: bytes) -> None:
        if self.state is _BUSY:
            self.reader.excess = True
            return
        self._lingered += len(data)
        if self.state is _LINGER and self._lingered > LINGER_BYTES:
            self.close()

    def close(self, *, reset: bool = False) -> None:
        """Close after what was written; with `reset` so that the peer cannot take it for a proper end."""
        if self.state is _CLOSING and not reset:
            return
        self.shared.outbox.flush()
        self.state = _CLOSING
        self._undelivered, self.deadline = -1, 0.0
        if reset:
            reset_on_close(self.transport)
        self.transport.close()

    # -- time and departure ----------------------------------------------------------------------------------------

    def expired(self, now: float) -> None:
        """This connection's time is up, or may be: the timers of http.md 3.5."""
        timers = self.shared.timers
        if self.paused or self.state is _CLOSING:
            self._check_stall(now)
        elif self.state is _IDLE:
            self._part()
        elif self.state is _LINGER:
            self.close()
        elif self.state is _READING and self.reader.progress is _HEAD:
            self._time_out()
        elif self.state is _READING:
            age = now - self._body_began_s
            received = cast(Exchange, self.exchange).body_bytes
            slow = age > timers.body_rate_after_s and received < 1024 * age
            if slow or age > timers.body_total_s or now - self._touched_s > timers.body_gap_s:
                self._time_out()
            else:
                self.deadline = self._touched_s + timers.body_gap_s
        else:
            self.deadline = _NEVER

    def _time_out(self) -> None:
        if self.exchange is not None:
            self._refuse(self.exchange, GatewayError(Reason.CLIENT_TIMEOUT, "The request came too slowly."), close=True)

    def _check_stall(self, now: float) -> None:
        # Reading is what the peer's kernel acknowledges. Our own buffer shows nothing of it for long: the kernel holds
        # megabytes for a slow reader, and takes more from us only when a third of them has gone.
        undelivered = self.transport.get_write_buffer_size() + held_by_kernel(self.transport, termios.TIOCOUTQ)
        if self._undelivered < 0 or undelivered < self._undelivered:
            self._undelivered = undelivered
            self.deadline = now + self.shared.timers.client_stall_s
            return
        self._gone(stalled=True)
        self.state = _CLOSING
        self.transport.abort()

    def _gone(self, *, stalled: bool) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        exchange.drop_body()
        exchange.connection = None
        self.shared.handler.vanished(exchange, stalled=stalled)
