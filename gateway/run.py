"""One complete request on its way, top to bottom:

  body -> read by its dialect -> model -> facts         `_describe`
  -> a slot in the core: wait, be placed, placed again  `_serve`
  -> a connection, the request, the answer relayed      `_try`
  -> settled once, counted once, one line               `_settle`, `end`

Every step raises its own GatewayError. Nothing here decides where or when a request goes: the core does.
"""

import time
from typing import cast

from gateway import describe
from gateway.backends import Backend
from gateway.compose import about, notice, reply_lines, trace_lines, waiting_lines
from gateway.describe import ServedModel, Wishes
from gateway.dialects.answers import error_answer, error_frame
from gateway.dialects.call import Call, Target, read, write
from gateway.dialects.routes import Dialect, Kind, Route
from gateway.dialects.verdict import error_for
from gateway.dispatcher import Refused, Slot
from gateway.errors import GatewayError
from gateway.http.exchange import Exchange, nothing
from gateway.http.pool import ConnectFailed
from gateway.http.upstream import UpstreamConnection
from gateway.relay.attempt import Attempt
from gateway.relay.choose import choose
from gateway.relay.end import COMPLETED, End, How
from gateway.services import Services
from gateway.steps import Steps
from gateway.telemetry.metrics import Lane
from gateway.telemetry.record import RequestRecord, ms
from gateway.tenants import Tenant
from policies.decisions import Dispatch, Reason
from policies.events import Cause, Outcome
from policies.types import InferenceRequest

_RESULTS = {How.COMPLETED: "finished", How.REFUSED: "finished", How.BOUNCED: "bounced", How.BROKEN: "broken"}

_BOUNCED = How.BOUNCED
TEXT_AT_ONCE = 2  # on one endpoint: these routes stall an engine's API process (CVE-2025-62426)
_TEXT_FULL = End(How.BOUNCED, cause=Cause.STATUS_503, retry_after_s=1.0)


class Run:
    """One request on its way, and the owner of its attempts."""

    # Defaults stand in the class: most requests change few of them, and each that is set costs every request.
    wishes: Wishes
    route: Route
    tenant: Tenant
    attempt: Attempt | None = None
    deadline_s = first_byte_by_s = 0.0
    deadline_reason = Reason.BACKEND_TIMEOUT
    strips_usage = False
    _call: Call | None = None
    _model: ServedModel
    _slot: Slot | None = None
    _steps: Steps | None = None
    _dispatch: Dispatch | None = None
    _lane: Lane | None = None  # where it is counted
    _counted = _ended = False  # in C1
    _arrived_s = _pinged_s = 0.0

    def __init__(self, services: Services, exchange: Exchange, wishes: Wishes | None) -> None:
        self.services = services
        self.exchange = exchange
        client = services.client_address(exchange)
        self.record = record = RequestRecord(request_id=services.ids.new(), client=client)
        if wishes is not None:
            self.wishes = wishes
            self.route = route = wishes.route
            record.method, record.route, record.path = wishes.method, route.name, route.path
            record.client_request_id, record.client_retry = wishes.request_id, wishes.retry_count

    @property
    def request_id(self) -> str:
        """The id the client knows the request by."""
        return self.record.client_request_id or self.record.request_id

    def identify(self, tenant: Tenant) -> None:
        """The credential is known: from here on the request counts."""
        self.tenant = tenant
        self.record.tenant = tenant.id
        self._counted = True

    def start(self) -> None:
        """The body is complete: go."""
        self.exchange.on_gone = self.gone
        self._steps = Steps(self._run())
        self._steps.go()

    # -- the path --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Take a complete request to its end, whatever that is."""
        try:
            async with self.services.dispatcher.admit(self._describe()) as slot:
                self._slot = slot
                await self._serve(slot)
        except GatewayError as error:
            self.refuse(error, "failed" if self._dispatch is not None else "rejected")
        except Refused as refused:
            decision = refused.decision
            self.refuse(error_for(decision.reason, decision.retry_after_s), refused.outcome)
        except Exception:
            self.refuse(GatewayError(Reason.INTERNAL), "failed" if self._dispatch is not None else "rejected")
            raise

    async def _serve(self, slot: Slot) -> None:
        while True:
            self._dispatch = dispatch = await slot.placed()
            end = await self._try(dispatch)
            if end.how is not _BOUNCED:
                self._settle(slot, dispatch, end)
                return
            if end is not _TEXT_FULL:
                self.services.metrics.upstream_failed(dispatch.endpoint, end.cause)
            slot.bounced(dispatch.attempt, end.cause, end.retry_after_s)

    def _describe(self) -> InferenceRequest:
        services, exchange, record, wishes = self.services, self.exchange, self.record, self.wishes
        record.bytes_in = exchange.body_bytes
        body = exchange.body[0] if len(exchange.body) == 1 else b"".join(exchange.body)
        exchange.body = []  # the call holds it now; it stays counted until the answer begins
        record.band = wishes.band
        self._call = call = read(self.route, body, self.tenant.rules)
        record.stream = streamed = call.stream
        record.stripped = call.stripped
        self._model = model = services.backends.model(call)
        record.model = model.name
        describe.check_fits(call, model)
        self.strips_usage = streamed and not call.wants_usage
        received_s = exchange.received_s
        self.deadline_s = deadline_s = received_s + wishes.total_s
        if wishes.bounds_total:
            self.deadline_reason = Reason.DEADLINE_EXCEEDED
        self._arrived_s = arrived_s = time.monotonic()
        record.read_ms = ms(arrived_s - received_s)
        self.count()
        facts = describe.Facts(record.request_id, self.tenant.id, received_s, deadline_s, self.tenant.salt)
        return describe.request(call, model, wishes, facts)

    async def _try(self, dispatch: Dispatch) -> End:
        """One attempt; on routes that run beside an engine's GPU only where few do."""
        backend = self.services.backends.by_name[dispatch.endpoint]
        if self.route.kind is not Kind.TEXT:
            return await self._attempt(dispatch, backend)
        if backend.text_running >= TEXT_AT_ONCE:
            return _TEXT_FULL
        backend.text_running += 1
        try:
            return await self._attempt(dispatch, backend)
        finally:
            backend.text_running -= 1

    async def _attempt(self, dispatch: Dispatch, backend: Backend) -> End:
        """One attempt, and the one resend that a pooled connection may need that had died unnoticed."""
        services, record = self.services, self.record
        record.attempts, record.endpoint, record.pool = dispatch.attempt, dispatch.endpoint, dispatch.why.pool
        now = time.monotonic()
        record.queue_ms = ms(now - self._arrived_s)
        self.first_byte_by_s = now + self.wishes.first_byte_s if record.stream else self.deadline_s
        backend.head(self.route)  # raises where the engine has no such route: before a connection is taken for it
        metrics = services.metrics
        metrics.attempt_started()
        connection = backend.connections.take(now)
        if connection is not None:
            end = await self._send(connection, backend)
            if not end.stale:
                return end
            metrics.attempt_started()
        try:
            connection = await backend.connect(services.timers)
        except BaseException as error:
            metrics.attempt("connect_failed")  # it gets no further: its head was never written
            if not isinstance(error, ConnectFailed):
                raise
            backend.suspect()
            return End(How.BOUNCED, cause=Cause.CONNECT)
        return await self._send(connection, backend)

    async def _send(self, connection: UpstreamConnection, backend: Backend) -> End:
        result = "aborted"
        attempt = self.attempt = Attempt(self, self.services.relay_rules, backend.hide, choose)
        try:
            head, body = self._message(backend)
            attempt.send(connection, head, body, time.monotonic())
            end = await attempt.done
            result = "stale_resent" if end.stale else _RESULTS[end.how]
        finally:
            attempt.drop()
            self.services.metrics.attempt(result)
        return end

    def _message(self, backend: Backend) -> tuple[bytes, bytes]:
        call, model, route, wishes = cast(Call, self._call), self._model, self.route, self.wishes
        salt = self.tenant.salt if route.name in backend.engine.salted_routes else None
        body = write(call, Target(served_as=model.served_as, salt=salt, output_cap=describe.output_cap(call, model)))
        attempt_id = self.services.ids.new()
        lines = trace_lines(attempt_id, wishes.trace) + wishes.lines
        return backend.head(route).render(attempt_id, lines, len(body)), body

    # -- the answer ------------------------------------------------------------------------------------------------

    def about(self) -> bytes:
        """The lines every answer carries."""
        return about(self.request_id, self.record.request_id, self.route.dialect)

    def commit(self, status: int, content_type: bytes, coding: bytes, length: int | None) -> None:
        """A good answer has begun: begin the client's."""
        if not self.exchange.started:  # a kept-alive stream begins before its answer does
            more = b"x-accel-buffering: no\r\n" if length is None else b""
            self.exchange.start(status, reply_lines(self.record, self.about(), content_type, coding) + more, length)
        self._note_begin(status)

    def answer(self, content_type: bytes, coding: bytes, body: bytes) -> None:
        """A good answer is whole."""
        self._note_begin(200)
        self.exchange.respond(200, reply_lines(self.record, self.about(), content_type, coding), body)

    def _note_begin(self, status: int) -> None:
        self.record.status = status
        self._call = None  # with the body in it: there will be no further attempt

    def first_token(self) -> None:
        """The engine has finished its prefill."""
        self.record.ttft_ms = ms(time.monotonic() - self.exchange.received_s)
        if self._slot is not None and self._dispatch is not None:
            self._slot.first_token(self._dispatch.attempt)

    def _settle(self, slot: Slot, dispatch: Dispatch, end: End) -> None:
        """The last attempt ended: tell the core what was learned, and the client what it must know."""
        good = end is COMPLETED
        usage = self.attempt.usage if self.attempt is not None else None
        tokens = None if usage is None else (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
        slot.finished(dispatch.attempt, Outcome.COMPLETED if good else Outcome.FAILED, tokens)
        if good:
            self.end(self.record.status, "completed", "")
        elif end.error is not None:
            self.services.metrics.upstream_failed(dispatch.endpoint, end.error.reason)
            self.refuse(end.error, "failed")
        else:
            self.services.metrics.upstream_failed(dispatch.endpoint, end.reason)
            self.end(self.record.status, "failed", end.reason)

    def refuse(self, error: GatewayError, outcome: str = "rejected", *, close: bool = False) -> None:
        """Answer with an error. `outcome` counts only for a request that counts at all."""
        record, exchange = self.record, self.exchange
        if exchange.started:
            exchange.break_off(error_frame(self.route, error, self.request_id, 0))
        else:
            dialect = self.route.dialect if exchange.head is not None and exchange.head.meaning else Dialect.OPENAI
            answer = error_answer(error, dialect, self.request_id)
            lines = b"".join([b"%b: %b\r\n" % line for line in answer.headers])
            lines += b"x-forebay-request-id: %b\r\n%b" % (record.request_id.encode(), notice(record.stripped))
            exchange.respond(answer.status, lines, answer.body, close=close or error.closes)
            record.status = answer.status
        self.end(record.status, outcome if self._counted else "", error.reason)

    # -- time and departure ----------------------------------------------------------------------------------------

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
            self.exchange.start(200, waiting_lines(self.about()), None)
        self.exchange.write(b": ping\n\n")

    def interrupt(self, reason: Reason) -> None:
        """End it because the gateway ends."""
        if self.attempt is not None and not self.attempt.done.is_set():
            self.attempt.interrupt(reason)
        elif not self._ended:
            self._leave()
            self.refuse(GatewayError(Reason.DRAINING), "expired")

    def gone(self, stalled: bool) -> None:
        """The client left, or reads nothing: give everything back in this very turn of the loop."""
        if self._ended:
            return
        self.record.stage = self._stage()
        self._leave()
        self.end(499, "cancelled", Reason.CLIENT_STALLED if stalled else Reason.CLIENT_CLOSED)

    def _leave(self) -> None:
        """Stop where it stands: the slot is given back, the engine's connection closed."""
        if self._slot is not None:
            self._slot.cancelled()
        if self._steps is not None:
            self._steps.stop()

    def vanished(self) -> None:
        """The client left before its request was complete."""
        self.record.stage = "body"
        self.end(499, "cancelled" if self._counted else "", Reason.CLIENT_CLOSED)

    def _stage(self) -> str:
        attempt = self.attempt
        if self._dispatch is None:
            return "queued"
        if attempt is None or attempt.connection is None:
            return "connect"
        return "stream" if attempt.committed else "sent"

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
        self.count()
        self._ended = True
        record, exchange = self.record, self.exchange
        self.services.runs.discard(self)
        record.status, record.outcome, record.reason = status, outcome, reason
        now = time.monotonic()
        record.duration_ms = ms(now - exchange.received_s)
        if record.queue_ms is None and self._arrived_s:
            record.queue_ms = ms(now - self._arrived_s)
        record.bytes_out = exchange.sent_bytes
        record.bytes_in = record.bytes_in or exchange.body_bytes
        if self.attempt is not None and self._slot is not None:
            tokens = self.attempt.tokens(self._slot.request.prompt_tokens)
            record.prompt_tokens, record.cached_tokens, record.output_tokens = tokens
        if exchange.body_bytes:
            exchange.drop_body()
        self.services.report(record, self._lane)
        # Nothing of a request refers to itself in a circle when it has ended: its memory is free at once.
        exchange.context = exchange.on_gone = self._call = self.attempt = None
        exchange.on_pause = exchange.on_resume = nothing
