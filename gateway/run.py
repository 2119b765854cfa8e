"""One complete request on its way, top to bottom:

  body -> read by its dialect -> model -> facts        `_describe`
  -> a slot in the core: wait, be placed, placed again `_serve`
  -> a connection, the request, the answer relayed     `_try`
  -> settled once, counted once, one line              `_settle`, `end`

Every step raises its own GatewayError. Nothing here decides where or when a request goes: the core does.
"""

import asyncio
import time
from typing import cast

from gateway import describe, tasks
from gateway.backends import Backend
from gateway.compose import about, client_lines, notice
from gateway.dialects.answers import error_answer, error_frame
from gateway.dialects.call import Call, Target, read, write
from gateway.dialects.routes import Dialect, Route
from gateway.dialects.verdict import error_for
from gateway.dispatcher import Refused, Slot
from gateway.errors import GatewayError
from gateway.http.exchange import Exchange
from gateway.http.head import Head
from gateway.http.upstream import ConnectFailed, UpstreamConnection
from gateway.relay import Attempt, End, Hooks, How, Terms, choose
from gateway.services import Services
from gateway.telemetry.record import RequestRecord
from gateway.tenants import Tenant
from policies.decisions import Dispatch, Evict, Reason, Reject
from policies.events import Cause, Outcome
from policies.types import InferenceRequest

AFTER_END_S = 1.0  # a stream that stays open behind its end marker is closed after this
_RESULTS = {How.COMPLETED: "finished", How.REFUSED: "finished", How.BOUNCED: "bounced", How.BROKEN: "broken"}


class Run:
    """One request on its way."""

    __slots__ = (
        "__weakref__",
        "_counted",
        "_dispatch",
        "_ended",
        "_pinged_s",
        "attempt",
        "call",
        "client_bound",
        "deadline_s",
        "exchange",
        "first_byte_s",
        "model",
        "record",
        "route",
        "services",
        "slot",
        "tenant",
    )

    def __init__(self, services: Services, exchange: Exchange, route: Route | None) -> None:
        self.services = services
        self.exchange = exchange
        self.route = cast(Route, route)
        self.tenant: Tenant = cast(Tenant, None)
        self.call: Call = cast(Call, None)
        self.model: describe.ServedModel = cast(describe.ServedModel, None)
        self.slot: Slot | None = None
        self.attempt: Attempt | None = None
        self.deadline_s = 0.0
        self.first_byte_s = 0.0
        self.client_bound = False  # the deadline is the client's own
        self._dispatch: Dispatch | None = None
        self._counted = False  # in C1
        self._ended = False
        self._pinged_s = 0.0
        self.record = self._open_record(route)

    def _open_record(self, route: Route | None) -> RequestRecord:
        exchange, head = self.exchange, self.exchange.head
        record = RequestRecord(id=self.services.ids.new(), received_s=exchange.received_s)
        record.client = self.services.client_address(exchange)
        if head is not None:
            record.method = head.method.decode("ascii")
            record.client_request_id = describe.client_request_id(head)
            record.retry_count = head.get(b"x-stainless-retry-count").decode("ascii")
        if route is not None:
            record.route, record.path = route.name, route.path
        return record

    def identify(self, tenant: Tenant) -> None:
        """The credential is known: from here on the request counts."""
        self.tenant = tenant
        self.record.tenant = tenant.id
        self._counted = True

    def start(self) -> None:
        """The body is complete: go."""
        self.exchange.on_gone = self.gone
        self.exchange.task = tasks.start(self.serve(), "request")

    # -- the path --------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Take a complete request to its end, whatever that is."""
        try:
            await self._serve()
        except GatewayError as error:
            self.refuse(error)
        except Refused as refused:
            decision = refused.decision
            self.refuse(error_for(decision.reason, decision.retry_after_s), _outcome(decision))
        except asyncio.CancelledError:
            if not self._ended:
                raise  # not the client's doing: the gateway is going down
        except Exception:
            self.refuse(GatewayError(Reason.INTERNAL), "failed")
            raise

    async def _serve(self) -> None:
        request = self._describe()
        async with self.services.dispatcher.admit(request) as slot:
            self.slot = slot
            while True:
                self._dispatch = dispatch = await slot.placed()
                end = await self._try(dispatch)
                if end.how is not How.BOUNCED:
                    break
                self.services.metrics.upstream_failed(dispatch.endpoint, end.cause)
                slot.bounced(dispatch.attempt, end.cause, end.retry_after_s)
            self._settle(slot, dispatch, end)

    def _describe(self) -> InferenceRequest:
        services, exchange, record = self.services, self.exchange, self.record
        head = cast(Head, exchange.head)
        record.bytes_in = exchange.body_bytes
        record.band = describe.band(head, services.bands)
        self.call = call = read(self.route, b"".join(exchange.body), self.tenant.rules)
        exchange.body = []  # the call holds it now; `body_bytes` stay counted until the answer begins
        record.streamed, record.stripped = call.stream, call.stripped
        self.model = services.backends.model(call)
        record.model = self.model.name
        describe.check_fits(call, self.model)
        longest_s, self.client_bound = describe.total_s(head, self.route.kind, services.timers.total_s)
        self.deadline_s = record.received_s + longest_s
        self.first_byte_s = describe.first_byte_s(head, services.timers.first_byte_s)
        record.arrived_s = time.monotonic()
        self.count()
        facts = describe.Facts(
            id=record.id,
            tenant=self.tenant.id,
            band=record.band,
            model=self.model,
            received_s=record.received_s,
            deadline_s=self.deadline_s,
        )
        return describe.request(call, head, facts)

    async def _try(self, dispatch: Dispatch) -> End:
        """One attempt, and the one resend that a pooled connection may need that had died unnoticed."""
        services, record = self.services, self.record
        backend = services.backends.by_name[dispatch.endpoint]
        record.attempts, record.endpoint, record.pool = dispatch.attempt, dispatch.endpoint, dispatch.why.pool
        record.dispatched_s = now = time.monotonic()
        connection = backend.connections.take(now)
        if connection is not None:
            services.metrics.attempt_started()
            end = await self._send(connection, backend)
            if not end.stale:
                return end
        try:
            connection = await self._connect(backend)
        except ConnectFailed:
            backend.suspect()
            return End(How.BOUNCED, cause=Cause.CONNECT)
        return await self._send(connection, backend)

    async def _connect(self, backend: Backend) -> UpstreamConnection:
        """A fresh connection. An attempt that gets no further counts as `connect_failed`."""
        services = self.services
        services.metrics.attempt_started()
        try:
            return await backend.connections.connect(services.timers.connect_s, services.timers.tls_s)
        except BaseException:
            services.metrics.attempt("connect_failed")
            raise

    async def _send(self, connection: UpstreamConnection, backend: Backend) -> End:
        result = "aborted"
        attempt = self.attempt = Attempt(
            self.exchange, self.route, self._terms(backend), Hooks(choose, self._commit, self._first_token)
        )
        try:
            attempt.send(connection, *self._message(backend), time.monotonic())
            end = await attempt.done
            result = "stale_resent" if end.stale else _RESULTS[end.how]
        finally:
            attempt.drop()
            self.services.metrics.attempt(result)
        return end

    def _message(self, backend: Backend) -> tuple[bytes, bytes]:
        services, call, model = self.services, self.call, self.model
        salt = self.tenant.salt if self.route.name in backend.engine.salted_routes else None
        body = write(call, Target(served_as=model.served_as, salt=salt, output_cap=describe.output_cap(call, model)))
        head = cast(Head, self.exchange.head)
        lines = client_lines(head, self.route, services.forward)
        return backend.head(self.route).render(services.ids.new(), lines, len(body)), body

    def _terms(self, backend: Backend) -> Terms:
        services, call = self.services, self.call
        first_byte_by_s = self.record.dispatched_s + self.first_byte_s if call.stream else self.deadline_s
        timers = services.timers
        return Terms(
            first_byte_by_s=first_byte_by_s,
            deadline_s=self.deadline_s,
            deadline_reason=Reason.DEADLINE_EXCEEDED if self.client_bound else Reason.BACKEND_TIMEOUT,
            idle_s=timers.idle_s,
            stale_s=timers.stale_socket_s,
            write_stall_s=timers.write_stall_s,
            after_end_s=AFTER_END_S * services.scale,
            tail_bytes=services.tail_bytes,
            line_bytes=services.line_bytes,
            strip_usage=call.stream and not call.wants_usage,
            request_id=self.request_id,
            hide=backend.hide,
        )

    # -- the answer ------------------------------------------------------------------------------------------------

    @property
    def request_id(self) -> str:
        """The id the client knows the request by."""
        return self.record.client_request_id or self.record.id

    def about(self) -> bytes:
        """The lines every answer carries."""
        return about(self.request_id, self.record.id, self.route.dialect)

    def _commit(self, status: int, content_type: bytes, coding: bytes, length: int | None) -> None:
        record = self.record
        record.first_byte_s = time.monotonic()
        record.status = status
        if self.exchange.started:
            return  # a kept-alive stream began before its answer did
        lines = b"content-type: %b\r\n%b%bx-forebay-pool: %b\r\nx-forebay-class: %b\r\nx-forebay-queue-ms: %d\r\n" % (
            content_type,
            b"content-encoding: %b\r\n" % coding if coding else b"",
            self.about(),
            record.pool.encode(),
            record.band.encode(),
            (record.dispatched_s - record.arrived_s) * 1000,
        )
        more = b"x-accel-buffering: no\r\n" if length is None else b""
        self.exchange.start(
            status,
            b"%bx-forebay-attempts: %d\r\n%bcache-control: no-store\r\n%b"
            % (lines, record.attempts, notice(record.stripped), more),
            length,
        )

    def _first_token(self) -> None:
        self.record.first_token_s = time.monotonic()
        if self.slot is not None and self._dispatch is not None:
            self.slot.first_token(self._dispatch.attempt)

    def _settle(self, slot: Slot, dispatch: Dispatch, end: End) -> None:
        """The last attempt ended: tell the core what was learned, and the client what it must know."""
        good = end.how is How.COMPLETED
        usage = self.attempt.usage if self.attempt else None
        tokens = None
        if usage is not None:
            tokens = (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
        slot.finished(dispatch.attempt, Outcome.COMPLETED if good else Outcome.FAILED, tokens)
        if end.error is not None:
            self.services.metrics.upstream_failed(dispatch.endpoint, end.error.reason)
            self.refuse(end.error, "failed")
        elif good:
            self.end(self.record.status, "completed", "")
        else:
            self.services.metrics.upstream_failed(dispatch.endpoint, end.reason)
            self.end(self.record.status, "failed", end.reason)

    def refuse(self, error: GatewayError, outcome: str = "rejected", *, close: bool = False) -> None:
        """Answer with an error. `outcome` counts only for a request that counts at all."""
        record, exchange = self.record, self.exchange
        dialect = self.route.dialect if self.route is not None else Dialect.OPENAI
        if exchange.started:
            exchange.break_off(error_frame(self.route, error, self.request_id, 0))
        else:
            answer = error_answer(error, dialect, self.request_id)
            lines = b"".join(b"%b: %b\r\n" % line for line in answer.headers)
            lines += b"x-forebay-request-id: %b\r\n%b" % (record.id.encode(), notice(record.stripped))
            exchange.respond(answer.status, lines, answer.body, close=close or error.closes)
            record.status = answer.status
        self.end(record.status, outcome if self._counted else "", error.reason)

    # -- time and departure ----------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """The timers of the attempt, and the comments that keep an idle stream open where that is asked for."""
        if self.attempt is not None:
            self.attempt.check(now)
        every_s = self.services.timers.sse_keepalive_s
        if (
            every_s > 0
            and not self._ended
            and self.call.stream
            and now - max(self._pinged_s, self.record.received_s) >= every_s
        ):
            self._keep_alive(now)

    def _keep_alive(self, now: float) -> None:
        self._pinged_s = now
        if self.attempt is not None and self.attempt.committed:
            self.attempt.ping()
            return
        if not self.exchange.started:
            lines = (
                b"content-type: text/event-stream\r\n%bcache-control: no-store\r\nx-accel-buffering: no\r\n"
                % self.about()
            )
            self.record.status = 200
            self.exchange.start(200, lines, None)
        self.exchange.write(b": ping\n\n")

    def interrupt(self, reason: Reason) -> None:
        """End it because the gateway ends."""
        if self.attempt is not None and not self.attempt.done.done():
            self.attempt.interrupt(reason)
        elif not self._ended:
            self.refuse(GatewayError(Reason.DRAINING), "expired")
            if self.exchange.task is not None:
                self.exchange.task.cancel()

    def gone(self, stalled: bool) -> None:
        """The client left, or reads nothing: give back everything in this very turn of the loop."""
        if self._ended:
            return
        stage = self._stage()
        if self.slot is not None:
            self.slot.cancelled()
        if self.attempt is not None:
            self.attempt.drop()
        self.record.stage = stage
        self.end(499, "cancelled", Reason.CLIENT_STALLED if stalled else Reason.CLIENT_CLOSED)
        if self.exchange.task is not None:
            self.exchange.task.cancel()

    def vanished(self) -> None:
        """The client left before its request was complete."""
        self.record.stage = "body"
        self.end(499, "cancelled" if self._counted else "", Reason.CLIENT_CLOSED)

    def _stage(self) -> str:
        if self.slot is None or self._dispatch is None:
            return "queued"
        if self.attempt is None or self.attempt.connection is None:
            return "connect"
        return "stream" if self.attempt.committed else "sent"

    def count(self) -> None:
        """Count it as received (C1), once."""
        if self._counted and self not in self.services.runs:
            self.services.runs.add(self)
            self.services.metrics.received(self.record)

    def end(self, status: int, outcome: str, reason: str) -> None:
        """The request is over: count it and write its line, once."""
        if self._ended:
            return
        self.count()
        self._ended = True
        self.services.runs.discard(self)
        record = self.record
        record.status, record.outcome, record.reason = status, outcome, reason
        record.ended_s = time.monotonic()
        record.bytes_out = self.exchange.sent_bytes
        record.bytes_in = record.bytes_in or self.exchange.body_bytes
        self._note_tokens()
        self.exchange.drop_body()
        self.services.report(record)

    def _note_tokens(self) -> None:
        attempt, record = self.attempt, self.record
        if attempt is None:
            return
        usage = attempt.usage
        if usage is not None:
            record.prompt_tokens = usage.prompt_tokens or 0
            record.cached_tokens = usage.cached_tokens or 0
            record.output_tokens = usage.output_tokens or 0
        else:  # the engine told nothing: what was seen, and the estimate of what was not
            record.prompt_tokens = describe.prompt_tokens(self.call)
            record.output_tokens = attempt.events


def _outcome(decision: object) -> str:
    if isinstance(decision, Reject):
        return "rejected"
    return "expired" if isinstance(decision, Evict) else "failed"
