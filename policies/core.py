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

from policies.decisions import Decision, Dispatch, Reason, Why
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
from policies.state.endings import evict, fail, reject
from policies.state.invariants import InvariantError, audit
from policies.state.ledger import Attempt, Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.state.views import EndpointView, FlowView, Totals
from policies.types import Band, InferenceRequest, Settings

__all__ = ["Core", "EndpointView", "FlowView", "InvariantError", "Totals"]

DRAIN_WINDOW_S = 10.0  # scheduling.md 9
FIRST_TOKEN_SLACK = 1.25  # scheduling.md 5: an answer without a visible first token
FIRST_TOKEN_LOST = 4.0  # times that, where one should have been seen


class Core:
    """The state machine behind the gateway, the simulator and replay. The first event must be `SettingsChanged`."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._random = Random(0)
        self._books = Books()
        self._arrivals = 0
        self._touched: dict[str, PoolQueue] = {}  # pools where somebody may fit now, by model

    # ---- in

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take in what happened at `now` (seconds, the driver's clock); say what to do, in order."""
        if self._settings is None and not isinstance(event, SettingsChanged):
            raise InvariantError("the first event must be SettingsChanged")
        out: list[Decision] = []
        if self._books.timers.may_be_due(now):
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
                self._books.endpoint_up(event.endpoint)
                self._look_everywhere()
            case EndpointDown():
                self._books.endpoint_down(event.name)
                self._look_everywhere()
            case SettingsChanged():
                self._settings_changed(event.settings)
                self._look_everywhere()
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
            return reject(books, request, pool, Reason.DRAINING, now)
        if request.deadline_s <= now:
            return reject(books, request, pool, Reason.DEADLINE_EXCEEDED, now)
        if pool is None or not pool.up:
            return reject(books, request, pool, Reason.NO_ENDPOINT, now)
        band = settings.bands.get(request.band) or _least_urgent(settings)
        self._arrivals += 1
        ticket = Ticket(request, pool, self._arrivals, request.arrived_s + band.queue_timeout_s)
        if not pool.queued:
            room = with_room(pool.up, ticket.tokens, ticket.sequences)
            if room:
                books.tickets[request.id] = ticket
                return self._dispatch(ticket, room, now)
        reason = self._no_place(ticket, band, now)
        if reason is not None:
            return reject(books, request, pool, reason, now)
        books.tickets[request.id] = ticket
        looked_at = not pool.queued
        if books.enqueue(ticket) and not looked_at:
            self._touch(pool)
        return None

    def _no_place(self, ticket: Ticket, band: Band, now: float) -> Reason | None:
        """Why this one may not join the queue."""
        settings = self._current
        if not settings.queueing:
            return Reason.DRAINING
        if ticket.expires_s <= now:
            return Reason.QUEUE_TIMEOUT
        return Reason.OVERLOADED if self._books.full(ticket.request, band, settings) else None

    def _first_token(self, event: FirstToken, now: float) -> None:
        ticket, attempt = self._books.find(event.request_id, event.attempt)
        if ticket is None or attempt is None or attempt.answered:
            return
        attempt.answered = True
        if ticket.request.streamed:
            attempt.load.learn(ticket.tokens, attempt.sent_s, now)
        self._prefilled(ticket, attempt)

    def _prefilled(self, ticket: Ticket, attempt: Attempt) -> None:
        self._books.timers.cancel(ticket)
        if attempt.release_prefill():
            self._freed(attempt.load)

    def _finished(self, event: Finished) -> None:
        ticket, attempt = self._books.find(event.request_id, event.attempt)
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
        ticket, attempt = self._books.find(event.request_id, event.attempt)
        if ticket is None or attempt is None:
            return None
        self._close(ticket, attempt)
        ticket.came_back(attempt.load.name, event.cause, event.retry_after_s)
        if ticket.request.deadline_s <= now:
            return fail(self._books, ticket, Reason.DEADLINE_EXCEEDED, now)
        if not may_go_again(ticket, event.cause, now, self._current.max_attempts):
            return fail(self._books, ticket, GIVEN_UP[event.cause], now)
        ticket.expires_s += now - attempt.sent_s  # its time on an endpoint was no time in the queue
        if self._books.enqueue(ticket):
            self._touch(ticket.pool)
        return None

    def _close(self, ticket: Ticket, attempt: Attempt) -> None:
        self._books.close(ticket, attempt)
        self._freed(attempt.load)

    # ---- the queue

    def _dequeue(self, ticket: Ticket) -> None:
        if self._books.dequeue(ticket):
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
        ticket.attempt = attempt = Attempt(load, number, ticket.tokens, ticket.sequences, now)
        pool.drain.add(ticket.tokens, now)
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

    def _evict(self, ticket: Ticket, reason: Reason, now: float) -> Decision:
        evicted = evict(self._books, ticket, reason, now)
        self._dequeue(ticket)
        return evicted

    def _evict_all(self, now: float, out: list[Decision]) -> None:
        queued = [ticket for pool in self._books.pools.values() for ticket in pool.waiting()]
        out.extend(self._evict(ticket, Reason.DRAINING, now) for ticket in queued)
        self._serve(now, out)

    # ---- endpoints and settings

    def _settings_changed(self, settings: Settings) -> None:
        if not settings.bands:
            raise InvariantError("settings without a band")
        if self._settings is None or self._settings.seed != settings.seed:
            self._random = Random(settings.seed)
        self._settings = settings
        self._books.change_pools(settings.pools.values(), DRAIN_WINDOW_S * settings.timer_scale)

    def _look_everywhere(self) -> None:
        """Endpoints, bounds or pools are others now."""
        for pool in self._books.pools.values():
            if pool.queued:
                self._touch(pool)

    @property
    def _current(self) -> Settings:
        if self._settings is None:
            raise InvariantError("the first event must be SettingsChanged")
        return self._settings

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
        room = with_room(eligible(loads, ticket.tried), ticket.tokens, ticket.sequences)
        if room:
            return ticket, room
        # What an older one waits for is not given to a younger one: that may use only what the older one may not.
        loads = [load for load in loads if load.name in ticket.tried]
        if not loads:
            return None
    return None


def _least_urgent(settings: Settings) -> Band:
    """For a request whose band the operator has just removed."""
    return max(settings.bands.values(), key=lambda band: band.rank)
