"""Who waits for what. A pool has a queue in each partition; it holds flows, one per (tenant, band); a flow holds lanes; a lane has two lines.

Requests of one lane may use the same endpoints in the same way, so in a lane only the head needs to be looked at. A
lane is short or long prompts, the endpoints already tried, the one endpoint waited for, and the key where that has
slots of its own: a request that came back, or waits for a warm engine, for the one long prompt in front of it or for a
slot, must not hide those behind it that need not.

A lane's `ready` line is sorted by the key of `policies.ordering`; whoever can no longer be in time moves to its `late`
line, which is sorted by arrival.

Taking one out of the middle of a line leaves a dead entry; the head is never dead, and when the dead outnumber the
living the line is rebuilt. So every step is O(log n) or amortised O(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from policies.state.drain import Drain
from policies.state.forecasts import Forecast
from policies.state.lanework import LaneWork
from policies.state.tickets import Ticket
from policies.state.views import FlowView, ForecastView, PoolView
from policies.types import SHARED

if TYPE_CHECKING:
    from policies.state.ledger import Load
    from policies.types import Endpoint, Pool

DEAD_MIN = 32
LONG_FROM_MIN = 2048
URGENT_S = 60.0
COVERED = 0.9  # of the first tokens come within margin x expectation (scheduling.md 9)
SERVED = 0.75  # of those sent at the last moment are to be in time

LaneKey = tuple[bool, tuple[str, ...], str, str]


class Line:
    """Requests in the order of a key; no two keys are equal."""

    __slots__ = ("dead", "heap", "lane")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.heap: list[tuple[tuple[float, ...], Ticket]] = []
        self.dead = 0

    def __bool__(self) -> bool:
        return bool(self.heap)

    def head(self) -> Ticket | None:
        """The first."""
        return self.heap[0][1] if self.heap else None

    def push(self, key: tuple[float, ...], ticket: Ticket) -> bool:
        """True when it is the head now."""
        ticket.line = self
        heappush(self.heap, (key, ticket))
        return self.heap[0][1] is ticket

    def remove(self, ticket: Ticket) -> bool:
        """True when it was the head."""
        ticket.line = None
        heap = self.heap
        if heap[0][1] is not ticket:
            self.dead += 1
            if self.dead > DEAD_MIN and self.dead * 2 > len(heap):
                self.heap = [entry for entry in heap if entry[1].line is self]
                heapify(self.heap)
                self.dead = 0
            return False
        heappop(heap)
        while heap and heap[0][1].line is not self:
            heappop(heap)
            self.dead -= 1
        return True

    def waiting(self) -> list[Ticket]:
        """Everybody, in order."""
        return [ticket for _, ticket in sorted(self.heap) if ticket.line is self]


class Lane:
    """Requests of one flow that may use the same endpoints."""

    __slots__ = ("flow", "key", "late", "ready")

    def __init__(self, flow: Flow, key: LaneKey) -> None:
        self.flow = flow
        self.key = key
        self.ready = Line(self)
        self.late = Line(self)

    def give_up(self, now: float) -> None:
        """Whoever stands first and can no longer be in time stands in the late line from now on."""
        ready = self.ready
        while (head := ready.head()) is not None and head.lost_s <= now:
            ready.remove(head)
            self.late.push((head.order,), head)


class Flow:
    """The requests of one tenant in one band that wait for one pool."""

    __slots__ = ("band", "lanes", "queued", "queued_bytes", "tenant")

    def __init__(self, tenant: str, band: str) -> None:
        self.tenant = tenant
        self.band = band
        self.lanes: dict[LaneKey, Lane] = {}
        self.queued = 0
        self.queued_bytes = 0


Standing = tuple[int, bool, tuple[float, ...], Ticket, Line]  # rank, is late, key: no two are equal in these three


class Turn:
    """The heads of all lines in the order in which they are served, good until `until_s` (`policies.ordering`)."""

    __slots__ = ("standings", "tickets", "until_s")

    def __init__(self) -> None:
        self.standings: list[Standing] = []
        self.tickets: list[Ticket] = []
        self.until_s = 0.0


class PoolQueue:
    """What waits for one pool, and the endpoints it may use: `up` its own, `lenders` the pools it borrows from."""

    __slots__ = (
        "above_since",
        "borrowers",
        "capped",
        "drain",
        "flows",
        "forecasts",
        "freed",
        "held",
        "key",
        "lenders",
        "long_from",
        "model",
        "most_urgent",
        "name",
        "new_heads",
        "partition",
        "passed",
        "pool",
        "queued",
        "queued_bytes",
        "queued_in_lane",
        "queued_tokens",
        "rescan",
        "services",
        "tokens_of",
        "turn",
        "up",
        "urgent_until_s",
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
        self.capped = False  # somebody may wait for a slot of its tenant, and for no endpoint
        self.queued = 0
        self.queued_bytes = 0
        self.queued_tokens = 0
        self.queued_in_lane = [0, 0]  # short and long
        self.held: tuple[dict[str, int], dict[str, int]] = ({}, {})  # of them, by the endpoint they wait for
        self.tokens_of: dict[tuple[int, bool], int] = {}  # queued, by rank and lane
        self.above_since: dict[str, float] = {}  # by band: since when everybody has waited too long
        self.forecasts = (Forecast(COVERED), Forecast(COVERED))  # of first tokens, for short and long
        self.services = (Forecast(SERVED), Forecast(SERVED))  # of the part of it behind the dispatch
        self.most_urgent = 0  # rank of the most urgent class that came in the last minute
        self.urgent_until_s = 0.0
        self.passed = 0  # dispatches since a starved request had its turn
        self.turn = Turn()
        self.new_heads: dict[Line, None] = {}  # lines whose heads it does not know yet
        self.drain = Drain(window_s)
        self.work = LaneWork()
        # Between events no head of a line fits anywhere. So an arrival behind a head changes nothing, and after an
        # endpoint got room only that one needs to be looked at; all of them only when a head is new.
        self.freed: dict[str, Load] = {}
        self.rescan = False

    def stand_for(self, pool: Pool) -> None:
        """It is the queue of this pool now. A hard partition's is named after both."""
        self.pool = pool
        self.name = pool.name if self.partition == SHARED else f"{self.partition}/{pool.name}"

    def came(self, rank: int, now: float) -> None:
        """A request of a class of this rank has arrived."""
        if rank <= self.most_urgent or now >= self.urgent_until_s:
            self.most_urgent = rank
            self.urgent_until_s = now + URGENT_S

    def push(self, ticket: Ticket) -> bool:
        """True when it is the head of its line now."""
        request = ticket.request
        key = (request.tenant, ticket.band.name)
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = Flow(*key)
        lane_key = (ticket.long, ticket.tried, ticket.only, ticket.own_lane)
        lane = flow.lanes.get(lane_key)
        if lane is None:
            lane = flow.lanes[lane_key] = Lane(flow, lane_key)
        self._count(flow, ticket, 1)
        is_head = lane.ready.push(ticket.key, ticket)
        if is_head:
            self.new_heads[lane.ready] = None
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
            self.new_heads[line] = None
        self._count(flow, ticket, -1)
        if not lane.ready.heap and not lane.late.heap:
            del flow.lanes[lane.key]
            if not flow.lanes:
                del self.flows[flow.tenant, flow.band]
        return was_head

    def lanes(self) -> list[Lane]:
        """Every lane with somebody in it."""
        return [lane for flow in self.flows.values() for lane in flow.lanes.values()]

    def waiting(self) -> list[Ticket]:
        """Everybody, flow by flow."""
        return [ticket for lane in self.lanes() for line in (lane.ready, lane.late) for ticket in line.waiting()]

    def open_to_newcomers(self, long: bool) -> Sequence[Load]:
        """Endpoints for which nobody in this lane waits. Who waits for a warm engine waits for no other."""
        queued, held = self.queued_in_lane[long], self.held[long]
        if not queued:
            return self.up
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
            forecasts=tuple(
                ForecastView(long=bool(long), seen=one.seen, covered=one.covered, margin=one.margin)
                for long, one in enumerate(self.forecasts)
            ),
        )

    def views(self) -> list[FlowView]:
        return [_view(self.name, flow) for flow in self.flows.values()]

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


def long_from(pool: Pool, endpoints: Sequence[Endpoint]) -> int:
    """How many uncached tokens a short prompt has at most in this pool; 0: it has no lanes (scheduling.md 4)."""
    if pool.lanes == "off" or not endpoints:
        return 0
    step = max(endpoint.step_tokens or endpoint.max_prefill_tokens for endpoint in endpoints)
    return pool.long_prompt_tokens or max(LONG_FROM_MIN, 2 * step)
