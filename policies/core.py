"""The scheduling core: events in, decisions out. It owns every queue and count, and waits for nothing.

Rules:
- `handle` is the only way in. It never reads a clock, awaits, logs or raises for a request: a refusal is a decision.
- Late binding: a request goes to an endpoint when that endpoint can start it soon, and waits here until then.
- An event about an attempt counts once. Late, double and unknown ones change nothing.
- What it learns it learns from events alone: the same at the same times give the same decisions (`forebay replay`).
"""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Final

from policies.admission import left_queue
from policies.assessing import Assessing, expiry
from policies.decisions import Decision, Reason, Reject
from policies.eligibility import GIVEN_UP, may_go_again
from policies.events import (
    Arrived,
    Bounced,
    CacheCleared,
    CacheTurned,
    Cancelled,
    EndpointDown,
    EndpointUp,
    Event,
    Finished,
    FirstToken,
    LengthsRestored,
    LoadObserved,
    OfStore,
    SettingsChanged,
    Tick,
    WallClock,
)
from policies.length import Lengths
from policies.metering import Metering
from policies.placing import Placing
from policies.seen import Seen
from policies.state.books import Books
from policies.state.drain import DRAIN_WINDOW_S
from policies.state.endings import fail, reject
from policies.state.invariants import InvariantError, audit
from policies.state.ledger import Attempt, Load
from policies.state.parked import Parked
from policies.state.tickets import Ticket
from policies.state.views import EndpointView, FlowView, PoolView, Totals
from policies.types import InferenceRequest, Settings

__all__ = ["Core", "EndpointView", "FlowView", "InvariantError", "PoolView", "Totals"]

REESTIMATES: Final = 4  # of how long an answer will be, while it runs
SWEEP_S: Final = 1.0  # between looks at what changes slowly
SWEEP_BLOCKS: Final = 5_000  # of endpoints that are gone are forgotten then


class Core(Seen):
    """The state machine behind the gateway, the simulator and replay. The first event must be `SettingsChanged`.

    `lengths` stands in for the predictor of the settings (the simulator's robustness runs).
    """

    def __init__(self, *, lengths: Lengths | None = None) -> None:
        self._settings: Settings | None = None
        self._books = Books()
        self._placing = Placing(self._books)
        self._assessing = Assessing(self._books, lengths)
        self.metering = Metering(self._books)
        self._sweep_s = 0.0

    # ---- in

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take in what happened at `now` (seconds, the driver's clock); say what to do, in order."""
        if self._settings is None and not isinstance(event, SettingsChanged):
            raise InvariantError("the first event must be SettingsChanged")
        out: list[Decision] = []
        due_s = self._books.timers.next_due()
        if due_s is not None and due_s <= now:
            self._fire(now, out)
        if now >= self._sweep_s:
            self._sweep(now)
        if type(event) is Arrived:  # a fifth of what `isinstance` costs where it is none
            decision = self._arrived(event.request, now)
        else:
            decision = None if type(event) is Tick else self._take(event, now, out)
        if decision is not None:
            out.append(decision)
        if self._placing.touched:
            self._placing.serve(now, out)
        if self._books.queued and not self._current.queueing:
            self._placing.drop_all(Reason.DRAINING, now, out)
        return out

    def next_wakeup(self) -> float | None:
        """When something happens by itself: the driver hands in a `Tick` then, if no other event comes before."""
        return self._books.timers.next_due()

    def _take(self, event: Event, now: float, out: list[Decision]) -> Decision | None:
        match event:
            case Finished():
                self._finished(event, now)
            case FirstToken():
                self._first_token(event, now)
            case Cancelled():
                self._cancelled(event, now)
            case Bounced():
                return self._bounced(event, now)
            case LoadObserved():
                self._placing.observed(event, now)
            case CacheTurned():
                self._books.cache_turned(event, now)
            case _ if isinstance(event, OfStore):
                self._told(event, now, out)
            case _:
                self._changed(event, now, out)
        return None

    def _changed(self, event: Event, now: float, out: list[Decision]) -> None:
        match event:
            case EndpointUp():
                self._books.endpoint_up(event.endpoint)
            case EndpointDown():
                self._books.endpoint_down(event.name, now)
            case CacheCleared():
                self._placing.cache_cleared(event.endpoint, now)
            case SettingsChanged():
                self._settings_changed(event.settings, now)
                self._again(self.metering.leasing.leave_all(), now, out)
            case WallClock():
                self.metering.set_clock(event.offset_s)
            case LengthsRestored():
                self._assessing.lengths.restore(event.state)
            case _:
                return
        self._placing.stop_vain_holds()
        self._assessing.move_on()
        for ticket in self._books.stranded():
            out.append(self._placing.drop(ticket, Reason.PARTITION_UNAVAILABLE, now))
        self._placing.touch_all()

    # ---- requests

    def _told(self, event: OfStore, now: float, out: list[Decision]) -> None:
        """What the store of several replicas says may be what somebody waits for."""
        self._again(self.metering.leasing.told(event, now), now, out)

    def _again(self, parked: Sequence[Parked], now: float, out: list[Decision]) -> None:
        """They have waited to hear of their limits, and ask once more. So does who waits for a slot, where there are more now."""
        for each in parked:
            self._books.received -= 1
            if (decision := self._arrived(each.request, now, each.due_s)) is not None:
                out.append(decision)
            self._placing.make_way(now, out)
        for pool in self.metering.leasing.wakes():
            self._placing.touch_waiting(pool)

    def _arrived(self, request: InferenceRequest, now: float, due_s: float = inf) -> Decision | None:
        books, assessing = self._books, self._assessing
        if request.id in books.tickets or request.id in books.parked:
            return None
        books.received += 1
        queues = books.closed.get(request.tenant, books.models).get(request.model, ())
        reason = assessing.refuses(request, queues, now)
        if reason is not None:
            return reject(books, request, queues[0] if queues else None, reason, now)
        claim = None
        if self.metering.limited:
            held = self.metering.reserve(request, now, due_s)
            if isinstance(held, (Reject, Parked)):
                return held if isinstance(held, Reject) else None
            claim = held
        ticket = assessing.ticket(request, queues, now, claim)
        queue = ticket.pool
        books.tickets[request.id] = ticket
        free = queue.open_to_newcomers(ticket)
        if len(free) < len(queue.up) and queue.capped:
            free = self._placing.past_capped(queue, ticket) or free
        fits = queue.spare > 0 or queue.has_class_room(ticket.share)
        if free and fits and (claim is None or claim.has_slot(queue)):
            room = self._placing.room(ticket, free, now)
            if room:
                if queue.above_since:
                    left_queue(ticket, now)
                return self._placed(ticket, room, now)
        assessing.expect(ticket)
        reason = assessing.may_not_wait(ticket, self._placing.random, now)
        if reason is not None:
            del books.tickets[request.id]
            if claim is not None and not self.metering.leasing.turn_away(claim, request, now, due_s):
                return None
            refused = reject(books, request, queue, reason, now)
            return refused if claim is None else claim.when_to_ask_again(refused, now)
        assessing.stand_in_line(ticket)
        if (books.enqueue(ticket) and len(free) < len(queue.up)) or books.victims:
            self._placing.touch(queue)
        return None

    def _placed(self, ticket: Ticket, room: Sequence[Load], now: float) -> Decision | None:
        """Send it; or, where the queue has a place for it, let it wait for a warm engine."""
        pool = ticket.pool
        may_wait = False
        if ticket.match is not None and (len(room) < len(pool.up) or pool.lenders):
            may_wait = self._assessing.has_place(ticket)
        if may_wait:
            self._assessing.expect(ticket)
            self._assessing.stand_in_line(ticket)
        return self._placing.place(ticket, room, now, may_wait)

    def _first_token(self, event: FirstToken, now: float) -> None:
        ticket, attempt = self._books.find(event.request_id, event.attempt)
        if ticket is None or attempt is None or attempt.answered:
            return
        attempt.answered = True
        if ticket.request.streamed:
            attempt.load.learn(attempt.tokens, attempt.sent_s, now)
            self._assessing.first_token(ticket, attempt, now)
        self._prefilled(ticket, attempt, now)
        self._reestimate(ticket, attempt, now)

    def _prefilled(self, ticket: Ticket, attempt: Attempt, now: float) -> None:
        self._books.timers.cancel(ticket)
        if attempt.long:
            ticket.pool.work.held(now - attempt.sent_s)
        if attempt.release_prefill():
            self._placing.freed(attempt.load)

    def _finished(self, event: Finished, now: float) -> None:
        ticket, attempt = self._books.find(event.request_id, event.attempt)
        if ticket is None or attempt is None:
            return
        self._books.count_end(event)
        self._assessing.finished(ticket, attempt, event, now)
        if ticket.claim is not None:
            self.metering.finished(ticket, attempt, event, now)
        self._placing.close(ticket, attempt, event, now)
        del self._books.tickets[event.request_id]

    def _cancelled(self, event: Cancelled, now: float) -> None:
        ticket = self._books.tickets.get(event.request_id)
        if ticket is None:
            self._books.cancelled += self.metering.leasing.leave(event.request_id) is not None
            return
        self._books.cancelled += 1
        self.metering.cancelled(ticket, event, now)
        attempt = ticket.attempt
        if attempt is None:
            self._placing.dequeue(ticket)
        else:
            if self._books.prefixes is not None:
                self._books.prefixes.used(attempt.load.name, attempt.tokens, now)
            self._placing.close(ticket, attempt, None, now)
        del self._books.tickets[event.request_id]

    def _bounced(self, event: Bounced, now: float) -> Decision | None:
        ticket, attempt = self._books.find(event.request_id, event.attempt)
        if ticket is None or attempt is None:
            return None
        if self._books.prefixes is not None:
            self._books.prefixes.remove(attempt.load.name, ticket.request)
        self._placing.close(ticket, attempt, event, now)
        ticket.came_back(attempt.load.name, event.cause, event.retry_after_s)
        if ticket.request.deadline_s <= now:
            return fail(self._books, ticket, Reason.DEADLINE_EXCEEDED, now)
        self._assessing.came_back(ticket)
        again = self._books.belongs(ticket) and may_go_again(ticket, event.cause, now, self._current.max_attempts)
        if not again:
            return fail(self._books, ticket, GIVEN_UP[event.cause], now)
        ticket.was_away(now - attempt.sent_s)
        self._assessing.stand_in_line(ticket)
        if self._books.enqueue(ticket):
            self._placing.touch(ticket.pool)
        return None

    # ---- time

    def _fire(self, now: float, out: list[Decision]) -> None:
        """Everything that is due: the end of a wait, of a hold, of a prefill, or of what an answer was given."""
        timers = self._books.timers
        while (due_s := timers.next_due()) is not None and due_s <= now:
            ticket = timers.pop()
            if isinstance(ticket, Parked):
                del self._books.parked[ticket.request.id]
                self._again([ticket], now, out)
                continue
            attempt = ticket.attempt
            if attempt is None:
                self._waited(ticket, now, out)
            elif attempt.prefill_tokens:
                self._prefilled(ticket, attempt, now)
                self._reestimate(ticket, attempt, now)
            else:
                self._longer_than_thought(ticket, attempt, now)

    def _waited(self, ticket: Ticket, now: float, out: list[Decision]) -> None:
        if ticket.only and ticket.hold_s <= now < min(ticket.expires_s, ticket.request.deadline_s):
            self._placing.stop_holding(ticket)
        else:
            out.append(self._placing.drop(ticket, expiry(ticket, now), now))

    def _reestimate(self, ticket: Ticket, attempt: Attempt, now: float) -> None:
        """Look again at how long the answer will be when it has become as long as was thought. Only KV needs it."""
        load, output = attempt.load, ticket.output
        if load.kv_bound and output is not None and attempt.reestimates < REESTIMATES:
            self._books.timers.set(ticket, now + max(1.0, output.p90) * load.endpoint.decode_s)

    def _longer_than_thought(self, ticket: Ticket, attempt: Attempt, now: float) -> None:
        self._assessing.reestimate(ticket, attempt, now)
        self._reestimate(ticket, attempt, attempt.sent_s)

    def _sweep(self, now: float) -> None:
        self._sweep_s = now + SWEEP_S
        self.metering.leasing.slots.expire(now)
        for load in self._books.loads.values():
            if load.forget_stale_sight(now):
                self._placing.freed(load)
        if self._books.prefixes is not None:
            self._books.prefixes.sweep(SWEEP_BLOCKS)
        self._placing.look_after_pools(now)

    # ---- endpoints and settings

    def _settings_changed(self, settings: Settings, now: float) -> None:
        if not settings.bands:
            raise InvariantError("settings without a band")
        before = self._settings
        if before is None or before.seed != settings.seed:
            self._placing.random = Random(settings.seed)
        if before is None or before.affinity != settings.affinity:
            self._books.change_affinity(settings.affinity)
        self._settings = settings
        self._assessing.change(settings)
        self._placing.change(settings)
        self._books.change_pools(settings, DRAIN_WINDOW_S * settings.timer_scale)
        self.metering.change(settings, now)

    @property
    def _current(self) -> Settings:
        if self._settings is None:
            raise InvariantError("the first event must be SettingsChanged")
        return self._settings

    def check(self) -> None:
        """Raise InvariantError when the books do not add up, or somebody waits in vain. Linear in everything: for tests."""
        audit(self._books)
        self._placing.check()
        self.metering.check()
