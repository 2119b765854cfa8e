"""Who goes where, now: the one dispatch loop over the pools in which somebody may fit.

Nobody overtakes: in each lane of a pool the first in turn that fits nowhere keeps for itself whatever it may use. So
an endpoint that gets room goes to whoever is first, however large, and work is conserved: between events nobody waits
for whom there is room, but for those that wait for a warm engine on purpose.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from policies import classes, lanes, saturation
from policies.admission import OVERHEAD_S, is_dropped, left_queue
from policies.decisions import Decision, Dispatch, Reason, Why
from policies.events import Bounced, Finished, LoadObserved
from policies.fairness import is_out_of_turn, is_owed
from policies.ordering import expected_cost, heads_of, in_turn, served, settled
from policies.pool import lent
from policies.saturation import ahead_tokens, holds, kv_need, needs_lane, service_s, with_a_place, with_room
from policies.scoring import best, bounded, cost
from policies.state.books import Books, QueueKey
from policies.state.endings import evict
from policies.state.ledger import Attempt, Load
from policies.state.queues import PoolQueue
from policies.state.sessions import Turn
from policies.state.tickets import Ticket
from policies.types import Settings

FIRST_TOKEN_SLACK: Final = 1.25  # scheduling.md 5: an answer without a visible first token
FIRST_TOKEN_LOST: Final = 4.0  # times that, where one should have been seen,
FIRST_TOKEN_LOST_S: Final = 30.0  # and not before: an engine that is late would look empty, and draw everybody
REMATCH_S: Final = 0.25  # what is cached where changes while a request waits
WARM_GAIN_S: Final = 0.05  # what waiting for a warm engine has to save beyond the wait
WARM_SLACK_RATIO: Final = 0.5  # of the time until its first token is due it may take, and never longer than it saves

Place = tuple[Ticket, Sequence[Load]]


class Placing:
    """Writes the books: what leaves a queue for an endpoint."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.random = Random(0)
        self.touched: dict[QueueKey, PoolQueue] = {}  # pools where somebody may fit now
        self.load_ratio = 1.25

    def change(self, settings: Settings) -> None:
        """The settings are these now."""
        if settings.affinity is not None:
            self.load_ratio = settings.affinity.max_load_ratio

    # ---- where to look

    def touch(self, pool: PoolQueue) -> None:
        """Somebody new is at a head, or everything may have changed: look at all endpoints."""
        pool.rescan = True
        self.touched[pool.key] = pool

    def touch_waiting(self, pool: PoolQueue) -> None:
        """What its classes may hold or use is more than before."""
        if pool.queued:
            self.touch(pool)

    def touch_all(self) -> None:
        """Endpoints, bounds or pools are others now."""
        for pool in self.books.pools.values():
            self.touch_waiting(pool)

    def observed(self, event: LoadObserved, now: float) -> None:
        """An engine has said how loaded it is."""
        load = self.books.loads.get(event.endpoint)
        if load is not None:
            load.observe(event, now)
            self.freed(load)

    def look_after_pools(self, now: float) -> None:
        """Once a second: lanes and classes change slowly, and so does what is lent."""
        for pool in self.books.pools.values():
            loosened = classes.look_after(pool, now)
            if lanes.look_after(pool, now) or pool.lenders or loosened:
                self.touch_waiting(pool)

    def freed(self, load: Load) -> None:
        """This endpoint holds less than before: look at it."""
        for pool in load.watchers:
            if pool.queued:
                pool.freed[load.name] = load
                self.touched[pool.key] = pool

    def close(self, ticket: Ticket, attempt: Attempt, event: Finished | Bounced | None, now: float) -> None:
        """The attempt is over: look where somebody waits for its place, for room of its class or a slot of its tenant."""
        more = settled(ticket, attempt, event, now)
        if more and self.books.shared:
            ticket.share.tell(ticket.request.tenant, more)
        self.books.close(ticket, attempt)
        self.freed(attempt.load)
        if ticket.pool.capped:
            self.touch_waiting(ticket.pool)
        if ticket.claim is not None:
            for pool in ticket.claim.free_slot():
                if pool.queued:
                    self.touch(pool)

    def past_capped(self, pool: PoolQueue, ticket: Ticket) -> Sequence[Load]:
        """Endpoints for a newcomer behind those that wait for room of their class or a slot, and for no endpoint."""
        pool.look()
        heads = list(heads_of(pool))
        pool.capped = not all(map(_may_run, heads))
        return () if any(ticket.may_follow(head) and _may_run(head) for head in heads) else pool.up

    # ---- the loop

    def make_way(self, now: float, out: list[Decision]) -> None:
        """Those leave whose place in the queue a more urgent one has got."""
        while self.books.victims:
            out.append(self.drop(self.books.victims.pop(0), Reason.EVICTED, now))

    def serve(self, now: float, out: list[Decision]) -> None:
        """Place whoever is first in turn and fits, again and again."""
        self.make_way(now, out)
        while self.touched:
            places = [place for pool in list(self.touched.values()) if (place := self._next(pool, now, out))]
            if not places:
                break
            ticket, room = places[0] if len(places) == 1 else min(places, key=_turn)
            self.dequeue(ticket)
            decision = self.place(ticket, room, now, queued=True)
            if decision is not None:
                left_queue(ticket, now)
                if ticket.claim is not None:
                    ticket.claim.went(now)
                out.append(decision)
        for pool in self.touched.values():
            pool.rescan = False
            pool.freed.clear()
        self.touched.clear()

    def _next(self, pool: PoolQueue, now: float, out: list[Decision]) -> Place | None:
        """The first in turn of this pool that fits somewhere, and where."""
        turn = in_turn(pool, now)
        while pool.above_since and (dropped := next((each for each in turn if is_dropped(each, now)), None)):
            out.append(self.drop(dropped, Reason.EVICTED, now))
            turn = in_turn(pool, now)
        everywhere, owing = pool.rescan or pool.owing, False  # who was held up may fit anywhere
        loads = pool.up if everywhere else with_a_place([each for each in pool.freed.values() if pool in each.pools])
        left = {False: loads, True: loads}
        knows = self.books.prefixes is not None
        for ticket in turn:
            if pool.holds_back(ticket.share):  # nothing is kept for those who may not go wherever there is room
                continue
            if knows and now - ticket.matched_s > REMATCH_S and ticket.request.prefix:
                self.books.find_cached(ticket, now)
            loads = left[ticket.long]
            if loads and ticket.long and ticket.share.flows > 1 and is_out_of_turn(ticket):
                loads = left[True] = []
            if not loads and not pool.lenders:
                continue
            if ticket.claim is not None and not ticket.claim.has_slot(pool):
                ticket.pass_over(True)
                continue
            room = self.room(ticket, loads, now)
            if not room and loads and ticket.long and ticket.share.flows > 1 and is_owed(ticket):
                pool.owing = owing = True
                room, left[False] = saturation.beyond_lanes(loads, ticket), []
            if room:
                return ticket, room
            # What the first in turn waits for is not given to one behind it: that may use only what the first may not.
            if ticket.tried or ticket.only:
                left[ticket.long] = [load for load in loads if not ticket.may_use(load.name)]
                ticket.pass_over(True)
            else:
                left[ticket.long] = []
                ticket.pass_over(False)
        pool.owing = owing
        return None

    def room(self, ticket: Ticket, loads: Sequence[Load], now: float) -> list[Load]:
        """Those of `loads`, or of the idle ones it may borrow, that can take it."""
        pool = ticket.pool
        if ticket.tried or ticket.only:
            loads = [load for load in loads if ticket.may_use(load.name)]
        room = with_room(loads, ticket, pool.long_from)
        if not room and pool.lenders:
            borrowed = [load for load in lent(pool, ticket, now) if ticket.may_use(load.name)]
            room = with_room(borrowed, ticket, pool.long_from)
        return room

    # ---- one request

    def place(
        self, ticket: Ticket, room: Sequence[Load], now: float, may_wait: bool = True, queued: bool = False
    ) -> Dispatch | None:
        """Send a request to the best of `room`; or let it wait a little for an engine that has its prefix."""
        if may_wait and ticket.match is not None and not ticket.hold_s:
            warm = self._worth_waiting_for(ticket, room, now)
            if warm is not None:
                ticket.only = warm.name
                ticket.note = "warm"
                if self.books.enqueue(ticket):
                    self.touch(ticket.pool)
                return None
        load = best(bounded(room, ticket.pool.up or room, ticket, self.load_ratio), ticket, self.random)
        decision = self._dispatch(ticket, load, len(room), now)
        attempt, waits, shared = ticket.attempt, queued or ticket.pool.queued, self.books.shared
        if attempt is not None and (waits or shared):
            attempt.cost = expected_cost(ticket, attempt)
            if waits:
                served(ticket, attempt, queued, now)
            if shared:
                ticket.share.tell(ticket.request.tenant, attempt.cost)
        return decision

    def _worth_waiting_for(self, ticket: Ticket, room: Sequence[Load], now: float) -> Load | None:
        """An endpoint that is out of room for a moment, and would save more than that moment. Asked once."""
        here = room[0] if len(room) == 1 else min(room, key=lambda load: cost(load, ticket))
        most_cached = ticket.match.most_tokens() if ticket.match is not None else 0
        if (ticket.uncached(here.name) - ticket.tokens + most_cached) / here.speed < WARM_GAIN_S:
            return None  # nobody can have so much more of it
        long_from = ticket.pool.long_from
        loads = [load for load in ticket.pool.up if ticket.may_use(load.name)]
        if 0 < long_from < ticket.tokens:  # where there are no lanes no end of a prefill makes room for it
            loads = [load for load in loads if load.lanes or not needs_lane(ticket, load, long_from)]
        warm = min(loads, key=lambda load: cost(load, ticket), default=None)
        if warm is None or warm in room or not holds(warm, ticket):
            return None  # when a sequence ends nobody knows; when a prefill ends, one can say
        gain_s = (ticket.uncached(here.name) - ticket.uncached(warm.name)) / here.speed
        wait_s = warm.prefill_tokens / warm.speed
        most_s = min(gain_s, WARM_SLACK_RATIO * (ticket.due_s - now))
        if gain_s < wait_s + WARM_GAIN_S or wait_s > most_s:
            return None
        ticket.hold_s = now + most_s
        return warm

    def _dispatch(self, ticket: Ticket, load: Load, candidates: int, now: float) -> Dispatch:
        request, pool = ticket.request, ticket.pool
        uncached = ticket.uncached(load.name)
        long = 0 < pool.long_from < uncached
        if not ticket.ttft_s:  # it goes as it comes
            ticket.ttft_s = service_s(load, ahead_tokens(load, not long) + uncached) + OVERHEAD_S
        why = Why(
            pool=pool.name,
            waited_s=now - request.arrived_s,
            queued=pool.queued,
            candidates=candidates,
            prefill_tokens=load.prefill_tokens,
            sequences=load.sequences,
            band=ticket.band.name,
            lane="long" if long else "short",
            prompt_tokens=ticket.tokens,
            cached_tokens=ticket.tokens - uncached,
            output_tokens=int(ticket.output.p50) if ticket.output is not None else 0,
            ttft_s=ticket.ttft_s,
            note=ticket.note if pool in load.pools else "borrowed",
        )
        self._enter(ticket, load, uncached, now)
        if long and ticket.attempt is not None:
            ticket.attempt.make_long()
        return Dispatch(request_id=request.id, attempt=len(ticket.tried) + 1, endpoint=load.name, why=why)

    def _enter(self, ticket: Ticket, load: Load, uncached: int, now: float) -> None:
        """Write down all that it holds there from now on."""
        request, books = ticket.request, self.books
        pool, sequences = ticket.pool, ticket.sequences
        attempt = ticket.attempt = Attempt(load, len(ticket.tried) + 1, uncached, sequences, now)
        ticket.share.held += sequences
        pool.spare -= sequences
        if ticket.claim is not None and ticket.claim.take_slot() and books.queued:
            self.touch_all()  # who waits for such a slot now keeps no endpoint from those behind it
        ticket.only = ""
        attempt.cached = ticket.tokens - uncached
        if ticket.match is not None:
            attempt.matched = ticket.match.tokens(load.name)
        attempt.reserve(kv_need(ticket, uncached))
        pool.drain.add(ticket.weight, now)
        if books.prefixes is not None:
            if request.prefix:
                books.prefixes.insert(load.name, request, now)
            if request.session:
                turn = Turn(endpoint=load.name, prompt_tokens=ticket.tokens, at_s=now)
                books.sessions.keep(request.tenant, request.session, turn)
        if uncached:
            expected_s = FIRST_TOKEN_SLACK * load.prefill_tokens / load.speed
            lost_s = max(FIRST_TOKEN_LOST_S, FIRST_TOKEN_LOST * expected_s) if request.streamed else expected_s
            books.timers.set(ticket, now + lost_s)

    def dequeue(self, ticket: Ticket) -> None:
        """It waits no more."""
        pool = ticket.pool
        if self.books.dequeue(ticket):
            self.touch(pool)
        if not pool.queued:  # now it lends again
            for borrower in pool.borrowers:
                if borrower.queued:
                    self.touch(borrower)

    def drop(self, ticket: Ticket, reason: Reason, now: float) -> Decision:
        """It leaves the queue unserved."""
        dropped = evict(self.books, ticket, reason, now)
        self.dequeue(ticket)
        return dropped

    def drop_all(self, reason: Reason, now: float, out: list[Decision]) -> None:
        """Nobody waits any longer."""
        for queue in self.books.pools.values():
            out.extend(self.drop(ticket, reason, now) for ticket in queue.waiting())
        self.serve(now, out)

    def stop_vain_holds(self) -> None:
        """Nobody waits any more for an endpoint that is down, or that its pool does not have now."""
        for pool in self.books.pools.values():
            there = [load.name for load in pool.up]
            for name in [name for held in pool.held for name in held if name not in there]:
                self._stop_waiting_for(name)

    def cache_cleared(self, name: str, now: float) -> None:
        """It has nothing cached any more that would be worth waiting for."""
        self.books.cache_cleared(name, now)
        self._stop_waiting_for(name)

    def _stop_waiting_for(self, name: str) -> None:
        lanes = [lane for pool in self.books.pools.values() for lane in pool.lanes() if lane.key[2] == name]
        for ticket in [ticket for lane in lanes for ticket in (*lane.ready.waiting(), *lane.late.waiting())]:
            self.stop_holding(ticket)

    def check(self) -> None:
        """Raise InvariantError when a head waits for an endpoint that has room for it, and for nobody before it."""
        for pool in self.books.pools.values():
            pool.look()
            heads = [head for head in heads_of(pool) if _may_run(head)]
            for ticket in heads if not any(head.long and is_owed(head) for head in heads) else ():
                if not ticket.cached and ticket.weight == ticket.tokens:  # a guess may be another one than was acted on
                    saturation.check_head(pool, ticket, [other for other in heads if ticket.may_follow(other)])

    def stop_holding(self, ticket: Ticket) -> None:
        """It has waited long enough for one endpoint: any will do."""
        self.dequeue(ticket)
        ticket.only = ""
        if self.books.enqueue(ticket):
            self.touch(ticket.pool)


def _may_run(ticket: Ticket) -> bool:
    return (ticket.claim is None or ticket.claim.slot_free()) and not ticket.pool.holds_back(ticket.share)


def _turn(place: Place) -> tuple[int, int, int]:
    """Between pools."""
    ticket = place[0]
    return ticket.share.right, ticket.band.rank, ticket.order
