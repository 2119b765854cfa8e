"""Who waits for what. A pool has a queue in each partition; it holds flows, one per (tenant, band)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from policies.state.drain import Drain
from policies.state.flows import Flow, Lane
from policies.state.forecasts import Forecast
from policies.state.lanework import LaneWork
from policies.state.shares import RANK, Share, bound, look
from policies.state.tickets import Ticket
from policies.state.views import FlowView, PoolView, ShareView
from policies.types import SHARED

if TYPE_CHECKING:
    from policies.state.ledger import Load
    from policies.types import Endpoint, Pool, Settings

LONG_FROM_MIN: Final = 2048
LEAST_URGENT: Final = 1 << 30
SERVED: Final = 0.75  # of those sent at the last moment are to be in time


class PoolQueue:
    """What waits for one pool, and the endpoints it may use: `up` its own, `lenders` the pools it borrows from."""

    __slots__ = (
        "above_since",
        "borrowers",
        "capped",
        "changed",
        "drain",
        "flows",
        "freed",
        "held",
        "key",
        "least_urgent",
        "lenders",
        "long_from",
        "model",
        "most_urgent",
        "name",
        "owing",
        "partition",
        "passed",
        "pool",
        "queued",
        "queued_bytes",
        "queued_in_lane",
        "queued_tokens",
        "ranked",
        "rescan",
        "services",
        "shares",
        "spare",
        "tokens_of",
        "until_s",
        "up",
        "waiting_shares",
        "work",
    )

    def __init__(self, pool: Pool, window_s: float, partition: str = SHARED) -> None:
        self.partition = partition
        self.key = (partition, pool.model, pool.max_total_tokens)
        self.model = pool.model
        self.stand_for(pool)
        self.up: list[Load] = []
        self.lenders: list[PoolQueue] = []
        self.borrowers: list[PoolQueue] = []
        self.long_from = 0  # more uncached tokens than that make a long prompt
        self.flows: dict[tuple[str, str], Flow] = {}  # those with somebody in them
        self.capped = False  # somebody may wait for a slot of its tenant or room of its class, and for no endpoint
        self.queued = 0
        self.queued_bytes = 0
        self.queued_tokens = 0
        self.queued_in_lane = [0, 0]  # short and long
        self.held: tuple[dict[str, int], dict[str, int]] = ({}, {})  # of them, by the endpoint they wait for
        self.tokens_of: dict[tuple[int, bool], int] = {}  # queued, by rank and lane
        self.above_since: dict[str, float] = {}  # by band: since when everybody has waited too long
        self.services = (
            Forecast(SERVED),
            Forecast(SERVED),
        )  # of short and long prompts' first tokens, from the dispatch on
        self.shares: dict[str, Share] = {}  # of every class, also of those that were
        self.ranked: list[Share] = []  # they, the most urgent first
        self.waiting_shares: list[Share] = []  # those of them in which somebody waits
        self.most_urgent = self.least_urgent = LEAST_URGENT  # rank of the most urgent class that came lately; of all
        self.passed = 0  # dispatches since a class with an aged head had its turn
        self.spare = 0  # so many sequences more, of whatever class, fit what classes may hold
        self.changed: dict[Flow, None] = {}  # flows whose standings are no longer what they were
        self.until_s = 0.0  # then somebody can no longer be in time
        self.drain = Drain(window_s)
        self.work = LaneWork()
        # Between events no head of a line fits anywhere. So an arrival behind a head changes nothing, and after an
        # endpoint got room only that one needs to be looked at; all of them only when a head is new.
        self.freed: dict[str, Load] = {}
        self.rescan = False
        self.owing = False  # a long prompt holds up short ones of others

    def stand_for(self, pool: Pool) -> None:
        """It is the queue of this pool now. A hard partition's is named after both."""
        self.pool = pool
        self.name = pool.name if self.partition == SHARED else f"{self.partition}/{pool.name}"

    def change_classes(self, settings: Settings) -> None:
        """The classes are these now. One that is gone stays, for those who are in it, and reserves nothing."""
        same = {id(share) for share in self.ranked if share.is_of(settings)}
        for share in self.ranked:
            band = settings.bands.get(share.band.name) or replace(share.band, reserved=0.0, min_share=0.0)
            share.change(band, settings)
        for name, band in settings.bands.items():
            if name not in self.shares:
                self.shares[name] = Share(band, settings)
        self.ranked = sorted(self.shares.values(), key=_rank)
        self.waiting_shares.sort(key=_rank)
        self.least_urgent = self.ranked[-1].band.rank
        for flow in self.flows.values():
            if flow.passed_over or id(flow.share) not in same:
                self.changed[flow] = None

    def bound_classes(self) -> None:
        """Its room has changed, or what classes may hold of it."""
        self.spare = 0
        bound(self.ranked, self.room)

    @property
    def room(self) -> int:
        """Sequences that it may hold, also where it borrows."""
        return sum(load.room_seqs for pool in (self, *self.lenders) for load in pool.up)

    def look(self) -> None:
        """Find what each class may take on now."""
        self.spare = look(self.ranked, self.room)

    def has_class_room(self, share: Share) -> bool:
        """Whether this class may take on one more."""
        if self.spare < 1:
            self.look()
            return not self.holds_back(share)
        return True

    def holds_back(self, share: Share) -> bool:
        """Whether this class may not take on one more, as classes were looked at last."""
        if share.slack < 1:
            self.capped = True
            return True
        return False

    def push(self, ticket: Ticket) -> bool:
        """True when it is the head of its line now."""
        request = ticket.request
        key = (request.tenant, ticket.band.name)
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = Flow(request.tenant, ticket.share)
            if not ticket.share.flows:
                insort(self.waiting_shares, ticket.share, key=_rank)
            ticket.share.flows += 1
        lane_key = (ticket.long, ticket.tried, ticket.only, ticket.own_lane)
        lane = flow.lanes.get(lane_key)
        if lane is None:
            lane = flow.lanes[lane_key] = Lane(flow, lane_key)
        self._count(flow, ticket, 1)
        is_head = lane.ready.push(ticket.key, ticket)
        if is_head:
            self.changed[flow] = None
        return is_head

    def remove(self, ticket: Ticket) -> bool:
        """True when the line has another head now, or is gone."""
        line = ticket.line
        if line is None:
            return False
        lane = line.lane
        flow = lane.flow
        was_head = line.remove(ticket)
        if was_head:
            self.changed[flow] = None
        self._count(flow, ticket, -1)
        if not lane.ready.heap and not lane.late.heap:
            del flow.lanes[lane.key]
            if not flow.lanes:
                del self.flows[flow.tenant, flow.band]
                self._left(flow.share)
        return was_head

    def _left(self, share: Share) -> None:
        """One tenant less waits in this class."""
        share.flows -= 1
        if not share.flows:
            self.waiting_shares.remove(share)
            share.credit, share.right = 0.0, RANK

    def lanes(self) -> list[Lane]:
        """Every lane with somebody in it."""
        return [lane for flow in self.flows.values() for lane in flow.lanes.values()]

    def waiting(self) -> list[Ticket]:
        """Everybody, flow by flow."""
        return [ticket for lane in self.lanes() for line in (lane.ready, lane.late) for ticket in line.waiting()]

    def open_to_newcomers(self, ticket: Ticket) -> Sequence[Load]:
        """Endpoints for which nobody it may not overtake waits. Who waits for a warm engine waits for no other."""
        queued, held = self.queued_in_lane[ticket.long], self.held[ticket.long]
        if not queued:
            share = ticket.share
            if not ticket.long or not share.flows or not self.queued_in_lane[False]:
                return self.up
            return () if share.flows > ((ticket.request.tenant, share.band.name) in self.flows) else self.up
        return [load for load in self.up if load.name not in held] if queued == sum(held.values()) else ()

    def tokens_ahead(self, rank: int, long: bool) -> int:
        """Prompt tokens that wait in this lane with the same or more urgency."""
        ahead = 0
        for (other, lane), tokens in self.tokens_of.items():
            if other <= rank and lane is long:
                ahead += tokens
        return ahead

    def view(self) -> PoolView:
        """The pool as others may see it."""
        return PoolView(
            name=self.name,
            endpoints=len(self.up),
            taking_long=sum(load.takes_long for load in self.up),
            lane_moves=self.work.moves,
            forecasts=tuple(view for share in self.ranked for view in share.views()),
        )

    def views(self) -> list[FlowView]:
        return [_view(self.name, flow) for flow in self.flows.values()]

    def shares_seen(self, now: float) -> list[ShareView]:
        """What tenants were served of each class in the last minute, where anything was or waits."""
        waiting: dict[str, list[str]] = {}
        for flow in self.flows.values():
            waiting.setdefault(flow.band, []).append(flow.tenant)
        views = [share.view(self.name, self.partition, waiting.get(share.band.name, ()), now) for share in self.ranked]
        return [view for view in views if view.weights]

    def _count(self, flow: Flow, ticket: Ticket, sign: int) -> None:
        size = sign * ticket.request.body_bytes
        flow.queued += sign
        flow.queued_bytes += size
        self.queued += sign
        self.queued_bytes += size
        self.queued_tokens += sign * ticket.weight
        self.queued_in_lane[ticket.long] += sign
        if ticket.only:
            held = self.held[ticket.long]
            held[ticket.only] = held.get(ticket.only, 0) + sign
            if not held[ticket.only]:
                del held[ticket.only]
        key = (ticket.band.rank, ticket.long)
        self.tokens_of[key] = self.tokens_of.get(key, 0) + sign * ticket.weight


def _view(pool: str, flow: Flow) -> FlowView:
    lines = [line for lane in flow.lanes.values() for line in (lane.ready, lane.late)]
    return FlowView(
        pool=pool,
        tenant=flow.tenant,
        band=flow.band,
        queued=flow.queued,
        queued_bytes=flow.queued_bytes,
        oldest_s=min(ticket.request.arrived_s for line in lines for _, ticket in line.heap if ticket.line is line),
    )


def _rank(share: Share) -> int:
    return share.band.rank


def long_from(pool: Pool, endpoints: Sequence[Endpoint]) -> int:
    """How many uncached tokens a short prompt has at most in this pool; 0: it has no lanes (scheduling.md 4)."""
    if pool.lanes == "off" or not endpoints:
        return 0
    step = max(endpoint.step_tokens or endpoint.max_prefill_tokens for endpoint in endpoints)
    return pool.long_prompt_tokens or max(LONG_FROM_MIN, 2 * step)
