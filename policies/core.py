"""The scheduling core: events in, decisions out. It owns every queue and count, and waits for nothing.

Rules:
- `handle` is the only way in. It never reads a clock, awaits, logs or raises for a request: a refusal is a decision.
- Late binding: a request goes to an endpoint when that endpoint can start it soon, and waits here until then.
- First come, first served, for every endpoint: nobody overtakes an older one of the same pool on an endpoint that the
  older one could use.
- An event about an attempt counts once. Late, double and unknown ones change nothing.
- Between events no head of a queue fits anywhere, so whoever arrives behind one waits without being looked at.

The same events at the same times give the same decisions, in any process (`forebay replay`).
"""

from collections.abc import Sequence
from random import Random

from policies.decisions import Decision, Dispatch, Evict, Fail, Reason, Reject, Why
from policies.eligibility import GIVEN_UP, eligible, may_go_again
from policies.events import (
    Arrived,
    Bounced,
    Cancelled,
    EndpointDown,
    EndpointUp,
    Event,
    Finished,
    FirstToken,
    Outcome,
    SettingsChanged,
    Tick,
)
from policies.ordering import fcfs
from policies.saturation import with_room
from policies.scoring import best
from policies.state.books import Books
from policies.state.invariants import InvariantError, audit
from policies.state.ledger import Attempt, Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.state.views import EndpointView, FlowView, Totals
from policies.types import Band, Endpoint, InferenceRequest, Settings

__all__ = ["Core", "EndpointView", "FlowView", "InvariantError", "Totals"]

DRAIN_WINDOW_S = 10.0  # scheduling.md 9
RETRY_SOON_S = 1.0  # http.md 11
LONGEST_BACKEND_WAIT_S = 30.0
FIRST_TOKEN_SLACK = 1.25  # scheduling.md 5: an answer without a visible first token
FIRST_TOKEN_LOST = 4.0  # times that, where one should have been seen


class Core:
    """The state machine behind the gateway, the simulator and replay. The first event must be `SettingsChanged`."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._least_urgent = ""
        self._random = Random(0)
        self._books = Books()
        self._arrivals = 0
        self._touched: dict[str, PoolQueue] = {}  # pools where somebody may fit now, by model

    # ---- in

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take in what happened at `now` (seconds, the driver's clock); say what to do, in order."""
        out: list[Decision] = []
        due_s = self._books.timers.next_due()
        if due_s is not None and due_s <= now:
            self._fire(now, out)
        decision = self._take(event, now)
        if decision is not None:
            out.append(decision)
        if self._touched:
            self._serve(now, out)
        if self._books.queued and not self._current.queueing:
            self._evict_all(now, out)
        return out

    def next_wakeup(self) -> float | None:
        """When something happens by itself: the driver hands in a `Tick` then, if no other event comes before."""
        return self._books.timers.next_due()

    def _take(self, event: Event, now: float) -> Decision | None:
        match event:
            case Arrived():
                return self._arrived(event.request, now)
            case FirstToken():
                self._first_token(event, now)
            case Finished():
                self._finished(event)
            case Cancelled():
                self._cancelled(event.request_id)
            case Bounced():
                return self._bounced(event, now)
            case EndpointUp():
                self._endpoint_up(event.endpoint)
            case EndpointDown():
                self._endpoint_down(event.name)
            case SettingsChanged():
                self._settings_changed(event.settings)
            case Tick():
                pass
        return None

    # ---- requests

    def _arrived(self, request: InferenceRequest, now: float) -> Decision | None:
        books, settings = self._books, self._current
        if request.id in books.tickets:
            return None
        books.received += 1
        pool = books.pools.get(request.model)
        if not settings.admitting:
            return self._reject(request, pool, Reason.DRAINING, now)
        if request.deadline_s <= now:
            return self._reject(request, pool, Reason.DEADLINE_EXCEEDED, now)
        if pool is None or not pool.up:
            return self._reject(request, pool, Reason.NO_ENDPOINT, now)
        band = self._band(request.band)
        self._arrivals += 1
        ticket = Ticket(request, pool, self._arrivals, request.arrived_s + band.queue_timeout_s)
        if not pool.queued:
            room = with_room(pool.up, request.prompt_tokens, request.sequences)
            if room:
                books.tickets[request.id] = ticket
                return self._dispatch(ticket, room, now)
        reason = self._no_place(ticket, band, now)
        if reason is not None:
            return self._reject(request, pool, reason, now)
        books.tickets[request.id] = ticket
        looked_at = not pool.queued
        if self._enqueue(ticket) and not looked_at:
            self._touch(pool)
        return None

    def _no_place(self, ticket: Ticket, band: Band, now: float) -> Reason | None:
        """Why this one may not join the queue."""
        books, settings = self._books, self._current
        if not settings.queueing:
            return Reason.DRAINING
        if ticket.expires_s <= now:
            return Reason.QUEUE_TIMEOUT
        if (
            books.queued >= settings.max_queued
            or books.queued_bytes + ticket.request.body_bytes > settings.max_queued_bytes
            or books.queued_in_band.get(ticket.request.band, 0) >= band.max_queued
        ):
            return Reason.OVERLOADED
        return None

    def _first_token(self, event: FirstToken, now: float) -> None:
        ticket, attempt = self._open(event.request_id, event.attempt)
        if ticket is None or attempt is None or attempt.answered:
            return
        attempt.answered = True
        if ticket.request.streamed:
            attempt.load.learn(ticket.request.prompt_tokens, attempt.sent_s, now)
        self._prefilled(ticket, attempt)

    def _prefilled(self, ticket: Ticket, attempt: Attempt) -> None:
        self._books.timers.cancel(ticket)
        if attempt.release_prefill():
            self._freed(attempt.load)

    def _finished(self, event: Finished) -> None:
        ticket, attempt = self._open(event.request_id, event.attempt)
        if ticket is None or attempt is None:
            return
        if event.outcome is Outcome.COMPLETED:
            self._books.completed += 1
        else:
            self._books.failed += 1
        self._close(ticket, attempt)
        del self._books.tickets[event.request_id]

    def _cancelled(self, request_id: str) -> None:
        ticket = self._books.tickets.get(request_id)
        if ticket is None:
            return
        self._books.cancelled += 1
        if ticket.attempt is not None:
            self._close(ticket, ticket.attempt)
        else:
            self._dequeue(ticket)
        del self._books.tickets[request_id]

    def _bounced(self, event: Bounced, now: float) -> Decision | None:
        ticket, attempt = self._open(event.request_id, event.attempt)
        if ticket is None or attempt is None:
            return None
        self._close(ticket, attempt)
        ticket.tried += (attempt.load.name,)
        ticket.causes += (event.cause,)
        if event.retry_after_s is not None:
            known_s = ticket.retry_after_s
            ticket.retry_after_s = event.retry_after_s if known_s is None else min(known_s, event.retry_after_s)
        if ticket.request.deadline_s <= now:
            return self._fail(ticket, Reason.DEADLINE_EXCEEDED, now)
        if not may_go_again(ticket, event.cause, now, self._current.max_attempts):
            return self._fail(ticket, GIVEN_UP[event.cause], now)
        ticket.expires_s += now - attempt.sent_s  # what it spent on an endpoint it has not waited here
        if self._enqueue(ticket):
            self._touch(ticket.pool)
        return None

    def _open(self, request_id: str, number: int) -> tuple[Ticket | None, Attempt | None]:
        """The ticket and its attempt, while just that attempt is open."""
        ticket = self._books.tickets.get(request_id)
        if ticket is None or ticket.attempt is None or ticket.attempt.number != number:
            return None, None
        return ticket, ticket.attempt

    def _close(self, ticket: Ticket, attempt: Attempt) -> None:
        self._books.timers.cancel(ticket)
        ticket.attempt = None
        attempt.close()
        load = attempt.load
        self._freed(load)
        if not load.up and not load.attempts:
            del self._books.loads[load.name]

    # ---- the queue

    def _enqueue(self, ticket: Ticket) -> bool:
        """True when it is a head now."""
        self._books.count_queued(ticket, 1)
        self._books.timers.set(ticket, min(ticket.expires_s, ticket.request.deadline_s))
        return ticket.pool.push(ticket)

    def _dequeue(self, ticket: Ticket) -> None:
        self._books.count_queued(ticket, -1)
        self._books.timers.cancel(ticket)
        if ticket.pool.remove(ticket) and ticket.pool.queued:
            self._touch(ticket.pool)

    def _touch(self, pool: PoolQueue) -> None:
        """Somebody new is at a head, or everything may have changed: look at all endpoints."""
        pool.rescan = True
        self._touched[pool.model] = pool

    def _freed(self, load: Load) -> None:
        """This endpoint holds less than before: look at it."""
        for pool in load.pools:
            if pool.queued:
                pool.freed[load.name] = load
                self._touched[pool.model] = pool

    def _serve(self, now: float, out: list[Decision]) -> None:
        """The one dispatch loop: the earliest head that fits anywhere, again and again."""
        while self._touched:
            found = [place for pool in self._touched.values() if (place := self._next(pool))]
            if not found:
                break
            ticket, room = found[0] if len(found) == 1 else min(found, key=lambda place: place[0].order)
            self._dequeue(ticket)
            out.append(self._dispatch(ticket, room, now))
        for pool in self._touched.values():
            pool.rescan = False
            pool.freed.clear()
        self._touched.clear()

    def _next(self, pool: PoolQueue) -> tuple[Ticket, list[Load]] | None:
        """The earliest head of this pool that fits somewhere, and where."""
        return _first_fit(pool, pool.up if pool.rescan else list(pool.freed.values()))

    def _dispatch(self, ticket: Ticket, room: Sequence[Load], now: float) -> Dispatch:
        request, pool = ticket.request, ticket.pool
        load = best(room, self._random)
        why = Why(
            pool=pool.name,
            waited_s=now - request.arrived_s,
            queued=pool.queued,
            candidates=len(room),
            prefill_tokens=load.prefill_tokens,
            sequences=load.sequences,
        )
        number = len(ticket.tried) + 1
        ticket.attempt = attempt = Attempt(load, number, request.prompt_tokens, request.sequences, now)
        pool.drain.add(request.prompt_tokens, now)
        if attempt.prefill_tokens:
            slack = FIRST_TOKEN_SLACK * (FIRST_TOKEN_LOST if request.streamed else 1.0)
            self._books.timers.set(ticket, now + slack * load.prefill_tokens / load.speed)
        return Dispatch(request_id=request.id, attempt=number, endpoint=load.name, why=why)

    # ---- time

    def _fire(self, now: float, out: list[Decision]) -> None:
        """Everything that is due: the end of a wait, or the moment a prefill is taken to be done."""
        timers = self._books.timers
        while (due_s := timers.next_due()) is not None and due_s <= now:
            ticket = timers.pop()
            if ticket.attempt is not None:
                self._prefilled(ticket, ticket.attempt)
            else:
                out.append(self._evict(ticket, self._expiry(ticket, now), now))

    def _expiry(self, ticket: Ticket, now: float) -> Reason:
        if ticket.request.deadline_s <= now:
            return Reason.DEADLINE_EXCEEDED
        if not eligible(ticket.pool.up, ticket.tried):
            return Reason.NO_ENDPOINT
        return Reason.QUEUE_TIMEOUT

    # ---- the ends

    def _reject(self, request: InferenceRequest, pool: PoolQueue | None, reason: Reason, now: float) -> Reject:
        self._books.rejected += 1
        wait_s = _retry_after(reason, pool, now)
        return Reject(request_id=request.id, reason=reason, retry_after_s=wait_s, why=_why(request, pool, now))

    def _evict(self, ticket: Ticket, reason: Reason, now: float) -> Evict:
        request, pool = ticket.request, ticket.pool
        wait_s, why = _retry_after(reason, pool, now), _why(request, pool, now)
        self._books.expired += 1
        self._dequeue(ticket)
        del self._books.tickets[request.id]
        return Evict(request_id=request.id, reason=reason, retry_after_s=wait_s, why=why)

    def _evict_all(self, now: float, out: list[Decision]) -> None:
        queued = [ticket for ticket in self._books.tickets.values() if ticket.lane is not None]
        out.extend(self._evict(ticket, Reason.DRAINING, now) for ticket in queued)
        self._serve(now, out)

    def _fail(self, ticket: Ticket, reason: Reason, now: float) -> Fail:
        request = ticket.request
        wait_s = _retry_after(reason, ticket.pool, now)
        if reason is Reason.BACKEND_SATURATED and ticket.retry_after_s is not None:
            wait_s = min(LONGEST_BACKEND_WAIT_S, max(RETRY_SOON_S, ticket.retry_after_s))
        self._books.failed += 1
        del self._books.tickets[request.id]
        return Fail(request_id=request.id, reason=reason, retry_after_s=wait_s, why=_why(request, ticket.pool, now))

    # ---- endpoints and settings

    def _endpoint_up(self, endpoint: Endpoint) -> None:
        load = self._books.loads.get(endpoint.name)
        if load is None:
            load = self._books.loads[endpoint.name] = Load(endpoint)
        else:
            load.bound(endpoint)
        load.up = True
        self._wire()

    def _endpoint_down(self, name: str) -> None:
        load = self._books.loads.get(name)
        if load is None:
            return
        load.up = False
        if not load.attempts:
            del self._books.loads[name]
        self._wire()

    def _settings_changed(self, settings: Settings) -> None:
        if self._settings is None or self._settings.seed != settings.seed:
            self._random = Random(settings.seed)
        self._settings = settings
        self._least_urgent = max(settings.bands.values(), key=lambda band: band.rank).name
        pools = self._books.pools
        firsts: dict[str, str] = {}
        for pool in settings.pools.values():
            firsts.setdefault(pool.model, pool.name)
        for model, name in firsts.items():
            if model in pools:
                pools[model].name = name
            else:
                pools[model] = PoolQueue(model, name, DRAIN_WINDOW_S * settings.timer_scale)
        self._wire()

    def _wire(self) -> None:
        """Tell pools and endpoints of each other, and look at all of them."""
        pools = self._books.pools
        model_of = {pool.name: pool.model for pool in self._current.pools.values()}
        for queue in pools.values():
            queue.up = []
        for load in self._books.loads.values():
            names = load.endpoint.pools if load.up else ()
            models = dict.fromkeys(model_of[name] for name in names if name in model_of)
            load.pools = tuple(pools[model] for model in models)
            for queue in load.pools:
                queue.up.append(load)
        for queue in pools.values():
            if queue.queued:
                self._touch(queue)

    @property
    def _current(self) -> Settings:
        if self._settings is None:
            raise InvariantError("the first event must be SettingsChanged")
        return self._settings

    def _band(self, name: str) -> Band:
        """The band of that name; the least urgent one when the operator has just removed it."""
        bands = self._current.bands
        return bands.get(name) or bands[self._least_urgent]

    # ---- out

    def totals(self) -> Totals:
        """Counts since the start, and what is queued and in flight now."""
        return self._books.totals()

    def flows(self) -> list[FlowView]:
        """Every flow with somebody in it."""
        return [view for pool in self._books.pools.values() for view in pool.views()]

    def endpoints(self) -> list[EndpointView]:
        """Every endpoint that is up or still holds attempts."""
        return [load.view() for load in self._books.loads.values()]

    def check(self) -> None:
        """Raise InvariantError when the books do not add up. Linear in everything: for tests."""
        audit(self._books)
        for pool in self._books.pools.values():
            if _first_fit(pool, pool.up) is not None:
                raise InvariantError(f"pool {pool.name}: somebody waits although an endpoint has room")


def _first_fit(pool: PoolQueue, loads: Sequence[Load]) -> tuple[Ticket, list[Load]] | None:
    for ticket in fcfs(pool.heads()):
        request = ticket.request
        room = with_room(eligible(loads, ticket.tried), request.prompt_tokens, request.sequences)
        if room:
            return ticket, room
        # What an older one waits for is not given to a younger one: that may use only what the older one may not.
        loads = [load for load in loads if load.name in ticket.tried]
        if not loads:
            return None
    return None


def _retry_after(reason: Reason, pool: PoolQueue | None, now: float) -> float | None:
    match reason:
        case Reason.DEADLINE_EXCEEDED:
            return None
        case Reason.OVERLOADED | Reason.QUEUE_TIMEOUT if pool is not None:
            return pool.drain.wait_s(pool.queued_tokens, now)
        case _:
            return RETRY_SOON_S


def _why(request: InferenceRequest, pool: PoolQueue | None, now: float) -> Why:
    queued = pool.queued if pool is not None else 0
    return Why(pool=pool.name if pool is not None else "", waited_s=now - request.arrived_s, queued=queued)
