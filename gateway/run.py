"""One request on its way. Each step is called by what the one before waited for, in that very callback:

  body complete      -> read by its dialect, model, facts; asks the core for a place     `start`
  the core decided   -> refused, or an attempt: a connection, the request                `decided`, `_try`, `_send`
  the attempt ended  -> back to the core, or the end: settled, counted, one line         `attempt_ended`, `end`
  the client left, the gateway ends, or a step raised -> everything given back           `gone`, `interrupt`, `_fail`

Nothing here decides where or when a request goes: the core does. No task, nothing awaited (docs/adr/0004).
"""

import asyncio
from typing import Final

from gateway import describe
from gateway.asking import Asking
from gateway.backends import Backend, CrossedPartition
from gateway.callers import Caller
from gateway.clock import monotonic
from gateway.compose import EngineHead
from gateway.dialects import quota
from gateway.dialects.call import lowered, write
from gateway.dialects.facts import UNTOLD
from gateway.dialects.routes import Kind
from gateway.errors import GatewayError
from gateway.http.upstream import UpstreamConnection
from gateway.relay.attempt import Attempt
from gateway.relay.choose import choose
from gateway.relay.end import COMPLETED, End, How
from gateway.relay.rest import Rest
from gateway.telemetry.units import ms
from policies.decisions import Decision, Dispatch, Evict, Fail, Reason, Reject
from policies.events import Bounced, Cancelled, Cause, Finished, FirstToken, Outcome

TEXT_AT_ONCE: Final = 2  # on one endpoint: these routes stall an engine's API process (CVE-2025-62426)

# The terms of the conservation invariant (faults.md 1).
_REFUSED: Final[dict[type[Decision], str]] = {Reject: "rejected", Evict: "expired", Fail: "failed"}
_RESULTS: Final = {How.REFUSED: "finished", How.BOUNCED: "bounced", How.BROKEN: "broken"}
_TEXT_FULL: Final = End(How.BOUNCED, cause=Cause.STATUS_503, retry_after_s=1.0)
_NOT_CONNECTED: Final = End(How.BOUNCED, cause=Cause.CONNECT)
# Members by themselves: to find them in their class costs as much as a call.
_BOUNCED: Final = How.BOUNCED
_GENERATE: Final = Kind.GENERATE
_TEXT: Final = Kind.TEXT
_COMPLETED: Final = Outcome.COMPLETED


class Run(Asking):
    """One request on its way, and the owner of its attempts."""

    first_byte_by_s = 0.0  # on time.monotonic()
    _backend: Backend  # of the last attempt
    _head: EngineHead  # what is the same of every request to it on this route
    _number = 0  # of the last attempt
    _admitted = False  # told to the core
    _trying = False  # an attempt was begun and has not been counted
    _connecting: asyncio.Task[None] | None = None
    _lost: Reason = Reason.CLIENT_CLOSED  # why the client is gone

    @property
    def deadline_reason(self) -> Reason:
        """What the client is told when the deadline passes before anything was sent."""
        return Reason.DEADLINE_EXCEEDED if self.wishes.bounds_total else Reason.BACKEND_TIMEOUT

    # -- the path: each step is called by what it waited for ---------------------------------------------------------

    def start(self) -> None:
        """The body is complete: ask the core for a place."""
        try:
            request = self._describe()
            self._admitted = True
            self._prompt_tokens = request.prompt_tokens
            self._follow(self.services.dispatcher.arrive(request, self))
        except Exception as error:
            self._fail(error)

    def decided(self, decision: Decision) -> None:
        """The core has decided, after a wait."""
        if self._ended:
            return
        try:
            self._follow(decision)
        except Exception as error:
            self._fail(error)

    def attempt_ended(self, end: End) -> None:
        """The attempt is over: the end of the request, or another attempt."""
        if self._ended:
            return
        try:
            if end is COMPLETED:
                self._completed()
            else:
                self._after(end)
        except Exception as error:
            self._fail(error)

    def _connected(self, connection: UpstreamConnection | None) -> None:
        self._connecting = None
        try:
            if connection is not None:
                self._send(connection, monotonic())
                return
            self._backend.suspect()
            self._close_try("connect_failed")
            self._bounced(_NOT_CONNECTED)
        except Exception as error:
            self._fail(error)

    def _follow(self, decision: Decision | None) -> None:
        """Do what the core has decided, if it has."""
        if isinstance(decision, Dispatch):
            self._try(decision)
        elif decision is not None:
            self.services.dispatcher.leave(self.record.request_id, None)
            self.refuse(quota.refusal(decision), _REFUSED[type(decision)])

    def _try(self, dispatch: Dispatch) -> None:
        """Begin an attempt; on routes that run beside an engine's GPU only where few do."""
        services, record = self.services, self.record
        self._number, endpoint = dispatch.attempt, dispatch.endpoint
        self._backend = backend = services.backends.by_name[endpoint]
        if backend.partition != self.caller.partition:
            raise CrossedPartition(f"{record.request_id} of {self.caller.partition} was given {backend.name}")
        self._head = backend.head(self.route)  # raises where the engine has no such route
        if self.route.kind is _TEXT:
            if len(backend.text_runs) >= TEXT_AT_ONCE:
                self._bounced(_TEXT_FULL)
                return
            backend.text_runs.add(self)
        now = monotonic()
        why = dispatch.why
        record.attempts, record.endpoint = self._number, endpoint
        record.pool, record.band = why.pool, why.band
        record.queue_ms = ms(now - self._arrived_s)
        self.first_byte_by_s = now + self.wishes.first_byte_s if record.stream else self.deadline_s
        self._trying = True
        services.metrics.attempt_started()
        if why.note:
            services.metrics.noted(why.pool, why.note)
        connection = backend.connections.take(now)
        if connection is not None:
            self._send(connection, now)
        else:
            self._connecting = backend.connect(services.timers, self._connected)

    def _send(self, connection: UpstreamConnection, now: float) -> None:
        try:
            head, body = self._message()
        except BaseException:
            connection.abort()  # nobody else knows of it
            raise
        self.attempt = attempt = Attempt(self, connection, self.services.relay_rules, self._backend.hide, choose)
        connection.send(head, body, attempt, now)

    def _message(self) -> tuple[bytes, bytes]:
        """What the engine is sent."""
        call, model, head = self._call, self._model, self._head
        if call is None:
            raise RuntimeError("a request whose answer has begun is not sent again")
        lines, priority = self.wishes.lines, None
        if head.priorities is not None:
            priority, line = head.priorities[self.record.band]
            lines += line
        salt = self.caller.salt if head.salted else None
        cap = describe.output_cap(call, model)
        if cap is not None and call.max_output_tokens is not None:
            self.record.stripped = call.stripped + lowered(call, cap)
        body = write(call, model.served_as, salt, cap, priority)
        return head.render(self.services.ids.new(), self.wishes.trace, lines, len(body)), body

    def _completed(self) -> None:
        self._close_try("finished")
        self._settle(_COMPLETED)
        self.end(self.record.status, "completed", "")

    def _after(self, end: End) -> None:
        """The attempt went wrong."""
        metrics = self.services.metrics
        if end.stale:  # the one resend that a pooled connection may need that had died unnoticed
            metrics.attempt("stale_resent")
            metrics.attempt_started()
            self._connecting = self._backend.connect(self.services.timers, self._connected)
            return
        self._close_try(_RESULTS[end.how])
        if end.how is _BOUNCED:
            self._bounced(end)
            return
        self._settle(_outcome(end))
        reason = _reason(end)
        metrics.upstream_failed(self._backend.name, reason)
        if end.error is not None:
            self.refuse(end.error, "failed")
        else:
            self.end(self.record.status, "failed", reason)

    def _bounced(self, end: End) -> None:
        """Nothing reached the client: ask the core what to do next."""
        if end is not _TEXT_FULL:
            self.services.metrics.upstream_failed(self._backend.name, end.cause)
        request_id = self.record.request_id
        event = Bounced(request_id=request_id, attempt=self._number, cause=end.cause, retry_after_s=end.retry_after_s)
        self._follow(self.services.dispatcher.handle(event, request_id))

    def _settle(self, outcome: Outcome, *, left: bool = False) -> None:
        """The last attempt ended: tell the core what was learned. `left`: its client has, before it."""
        attempt, seen_tokens = self.attempt, 0
        usage = attempt.usage if attempt is not None else None
        if usage is None or outcome is not _COMPLETED or (usage.output_tokens is None and self.route.kind is _GENERATE):
            usage = usage or UNTOLD
            if attempt is not None and (self.route.kind is _GENERATE or outcome is not _COMPLETED):
                seen_tokens = attempt.seen_tokens()
            self.services.metrics.usage_missing += usage is UNTOLD and outcome is _COMPLETED
        event = Finished(
            request_id=self.record.request_id,
            attempt=self._number,
            outcome=outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            seen_tokens=seen_tokens,
            left=left,
        )
        self.services.dispatcher.leave(event.request_id, event)

    def _fail(self, error: Exception) -> None:
        """A step raised: what the client shall be told, or a fault of ours."""
        self._leave()
        told = error if isinstance(error, GatewayError) else GatewayError(Reason.INTERNAL)
        self.refuse(told, "failed" if self._number else "rejected")
        if told is not error:
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})

    def _close_try(self, result: str) -> None:
        self._trying = False
        self.services.metrics.attempt(result)
        if self.route.kind is _TEXT:
            self._backend.text_runs.discard(self)

    def _leave(self) -> None:
        """Stop where it stands: the place is given back, the engine's connection closed."""
        if self._admitted:
            request_id, attempt = self.record.request_id, self.attempt
            sent = attempt is not None and self._trying and self._connecting is None
            prompt, cached, seen = attempt.told() if attempt is not None and sent else (None, None, 0)
            event = Cancelled(
                request_id=request_id, sent=sent, seen_tokens=seen, prompt_tokens=prompt, cached_tokens=cached
            )
            self.services.dispatcher.leave(request_id, event)
        if self.attempt is not None:
            self.attempt.drop()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._trying:  # of one that gets no further than a connect the head was never written
            self._close_try("aborted" if self._connecting is None else "connect_failed")

    def first_token(self) -> None:
        """The engine has finished its prefill."""
        self.record.ttft_ms = ms(monotonic() - self.exchange.received_s)
        if not self._ended:
            self.services.dispatcher.handle(FirstToken(request_id=self.record.request_id, attempt=self._number))

    def _prefilled(self) -> None:
        """The same, when its client has left: nobody has seen a token."""
        self.services.dispatcher.handle(FirstToken(request_id=self.record.request_id, attempt=self._number))

    # -- a new configuration ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """It waits for a place, and the core has given it none."""
        return self._admitted and not self._trying and not self._ended

    def revoke(self, error: GatewayError) -> None:
        """It waits, and may not any more."""
        self._leave()
        self.refuse(error, "expired")

    def step_out(self) -> None:
        """Leave the queue, to `ask_again`."""
        request_id = self.record.request_id
        self.services.dispatcher.leave(request_id, Cancelled(request_id=request_id))

    def ask_again(self, caller: Caller) -> None:
        """Ask for a place as what it is now, in the order of its arrival."""
        try:
            self._follow(self.services.dispatcher.arrive(self._described_anew(caller), self))
        except Exception as error:
            self._fail(error)

    # -- departure -------------------------------------------------------------------------------------------------

    def interrupt(self, reason: Reason) -> None:
        """End it because the gateway ends."""
        if self.attempt is not None and not self.attempt.over:
            self.attempt.interrupt(reason)
        elif not self._ended:
            self._leave()
            super().interrupt(reason)

    def gone(self, stalled: bool) -> None:
        """The client left, or reads nothing: give everything back in this very turn of the loop; or when the answer is read, where
        an engine must not be aborted."""
        if self._ended:
            return
        self.record.stage = self._stage()
        self._lost = Reason.CLIENT_STALLED if stalled else Reason.CLIENT_CLOSED
        attempt = self.attempt
        if attempt is not None and attempt.connection is not None and self._backend.must_not_abort:
            self._call = None  # there will be no further attempt
            attempt.read_out(Rest(self, self._prefilled, self._read_out))
            return
        self._leave()
        self.end(499, "cancelled" if self._counted else "", self._lost)

    def _read_out(self, end: End) -> None:
        """What was still to come for a client that had left is read, or cannot be."""
        try:
            if end is COMPLETED:
                self._close_try("finished")
                self._settle(_COMPLETED, left=True)
            else:
                self._close_try("stale_resent" if end.stale else _RESULTS[end.how])
                self._settle(_outcome(end), left=True)
                self.services.metrics.upstream_failed(self._backend.name, _reason(end))
            self.end(499, "cancelled", self._lost)
        except Exception as error:
            self._fail(error)

    def _stage(self) -> str:
        attempt = self.attempt
        if not self._admitted:
            return "body"
        if not self._number:
            return "queued"
        if attempt is None or attempt.connection is None:
            return "connect"
        return "stream" if attempt.committed else "sent"


def _reason(end: End) -> str:
    """Why an attempt went wrong, for the count of such things."""
    if end.how is _BOUNCED:
        return end.cause
    return end.reason if end.error is None else end.error.reason


def _outcome(end: End) -> Outcome:
    return Outcome.REFUSED if _reason(end) is Reason.BACKEND_REJECTED else Outcome.FAILED
