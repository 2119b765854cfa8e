"""A request from its head to its line in the log: who asks, what the client is told, counted once.

Where a request to an engine goes in between is told in `run.py`.
"""

from typing import Final

from msgspec.structs import replace

from gateway.callers import Caller
from gateway.clock import monotonic
from gateway.compose import about, error_lines, reply_lines, waiting_lines
from gateway.describe import Wishes, client_request_id
from gateway.dialects import quota
from gateway.dialects.answers import error_answer, error_frame
from gateway.dialects.call import Call
from gateway.dialects.routes import Dialect
from gateway.errors import GatewayError
from gateway.http.exchange import Exchange
from gateway.relay.attempt import Attempt
from gateway.services import Services
from gateway.telemetry.metrics import Lane
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.units import ms
from policies.decisions import Reason

_ANTHROPIC: Final = Dialect.ANTHROPIC  # a member found in its class costs as much as a call


class Request:
    """One request. `wishes` None: its head was refused."""

    # Defaults of what few requests change stand in the class: each that is set costs every request.
    wishes: Wishes
    caller: Caller
    strips_usage = False
    is_known = False  # who asks, of one that is answered here and counts nowhere
    attempt: Attempt | None = None  # the last one
    _call: Call | None = None
    _lane: Lane | None = None  # where it is counted
    _counted = False  # in C1
    _ended = False
    _arrived_s = 0.0
    _prompt_tokens = 0  # the estimate
    _pinged_s = 0.0

    def __init__(self, services: Services, exchange: Exchange, wishes: Wishes | None) -> None:
        self.services = services
        self.exchange = exchange
        request_id = services.ids.new()
        if wishes is None:
            head = exchange.head
            theirs = client_request_id(head.get(b"x-request-id")) if head is not None else ""
            client = services.client_address(exchange)
            self.record = RequestRecord(request_id=request_id, client_request_id=theirs, client=client)
        else:
            self.wishes = wishes
            self.route = wishes.route
            self.record = replace(wishes.record, request_id=request_id)

    @property
    def request_id(self) -> str:
        """The id the client knows the request by."""
        return self.record.client_request_id or self.record.request_id

    def accept(self, caller: Caller) -> None:
        """The credential is known, and in the record: from here on the request counts."""
        self.caller = caller
        self._counted = True

    # -- the answer ------------------------------------------------------------------------------------------------

    def about(self) -> bytes:
        """The lines every answer carries."""
        return about(self.record, self.route.dialect)

    def commit(self, status: int, content_type: bytes, coding: bytes, length: int | None) -> None:
        """A good answer has begun: begin the client's."""
        if not self.exchange.started:  # a kept-alive stream begins before its answer does
            more = b"x-accel-buffering: no\r\n" if length is None else b""
            lines = reply_lines(self.record, self.about(), content_type, coding)
            if self.services.dispatcher.core.metering.limited:
                lines += self.limit_lines()
            self.exchange.start(status, lines + more, length)
        self._note_begin(status)

    def answer(self, content_type: bytes, coding: bytes, body: bytes) -> None:
        """A good answer is whole."""
        record = self.record
        record.status = 200
        lines = reply_lines(record, about(record, self.route.dialect), content_type, coding)
        if self.services.dispatcher.core.metering.limited:
            lines += self.limit_lines()
        self.exchange.respond(200, lines, body)

    def limit_lines(self, refused_by: str = "") -> bytes:
        """The lines about the limits of the caller, where it has any."""
        metering = self.services.dispatcher.core.metering
        if not metering.limited:
            return b""
        record = self.record
        dialect = self.route.dialect
        whose = record.tenant, record.key, record.model
        standing = metering.standing(whose, monotonic(), apart=dialect is _ANTHROPIC)
        if standing is None:
            return b""
        lines = quota.lines(standing, dialect, refused_by)
        return lines + b"x-forebay-limits: degraded\r\n" if metering.leasing.down else lines

    def _note_begin(self, status: int) -> None:
        self.record.status = status
        self._call = None  # with the body in it: there will be no further attempt

    def refuse(self, error: GatewayError, outcome: str = "rejected", *, close: bool = False) -> None:
        """Answer with an error. `outcome` counts only for a request that counts at all."""
        record, exchange = self.record, self.exchange
        if exchange.started:
            exchange.break_off(error_frame(self.route, error, self.request_id, 0))
        else:
            dialect = self.route.dialect if exchange.head is not None and exchange.head.meaning else Dialect.OPENAI
            answer = error_answer(error, dialect, self.request_id)
            lines = error_lines(record, answer)
            if self._counted or self.is_known:
                lines += self.limit_lines(error.param or "" if error.row.type == "rate_limit_error" else "")
            exchange.respond(answer.status, lines, answer.body, close=close or error.closes)
            record.status = answer.status
        self.end(record.status, outcome if self._counted else "", error.reason)

    def check(self, now: float) -> None:
        """The timers of the attempt, and the comments that keep an idle stream open where that is asked for."""
        if self.attempt is not None:
            self.attempt.check(now)
        every_s = self.services.timers.sse_keepalive_s
        since_s = self._pinged_s or self.exchange.received_s
        if every_s > 0 and self.record.stream and not self._ended and now - since_s >= every_s:
            self._pinged_s = now
            self._keep_alive()

    def _keep_alive(self) -> None:
        if self.attempt is not None and self.attempt.committed:
            self.attempt.ping()
            return
        if not self.exchange.started:
            self.record.status = 200
            self.exchange.start(200, waiting_lines(self.record, self.about()) + self.limit_lines(), None)
        self.exchange.write(b": ping\n\n")

    def interrupt(self, reason: Reason) -> None:
        """End it because the gateway ends."""
        if not self._ended:
            self.refuse(GatewayError(Reason.DRAINING), "expired")

    # -- counting --------------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Count it as received (C1), once."""
        if self._counted and self._lane is None:
            self.services.runs.add(self)
            self._lane = self.services.metrics.received(self.record)

    def end(self, status: int, outcome: str, reason: str) -> None:
        """The request is over: count it and write its line, once."""
        if self._ended:
            return
        if self._lane is None:
            self.count()
        self._ended = True
        services, record, exchange, attempt = self.services, self.record, self.exchange, self.attempt
        services.runs.discard(self)
        record.status, record.outcome, record.reason = status, outcome, reason
        now = monotonic()
        record.duration_ms = ms(now - exchange.received_s)
        if record.queue_ms is None and self._arrived_s:
            record.queue_ms = ms(now - self._arrived_s)
        record.bytes_out = exchange.sent_bytes
        if attempt is not None:
            tokens = attempt.tokens(self._prompt_tokens)
            record.prompt_tokens, record.cached_tokens, record.output_tokens = tokens
        if exchange.body_bytes:
            record.bytes_in = exchange.body_bytes
            exchange.drop_body()
        services.metrics.ended(record, self._lane)
        services.access_log.write(record)
        # Nothing of a request refers to itself in a circle when it has ended: its memory is free at once.
        exchange.context = exchange.source = self._call = self.attempt = None
