"""Who waits for what. A pool's queue holds flows, one per (tenant, band); a flow holds lanes.

Requests of one lane may use the same endpoints, so in a lane only the head needs to be looked at. Today a lane is the
set of endpoints already tried: a request that came back must not hide those behind it that may still use that
endpoint. In a lane the earliest arrival is first, always, so one that came back is near the head again.

Taking one out of the middle leaves a dead entry; the head is never dead, and when the dead outnumber the living the
lane is rebuilt. So every step is O(log n) or amortised O(1).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from policies.state.drain import Drain
from policies.state.tickets import Ticket
from policies.state.views import FlowView

if TYPE_CHECKING:
    from policies.state.ledger import Load

DEAD_MIN = 32


class Lane:
    """Requests of one flow that may use the same endpoints, by arrival."""

    __slots__ = ("dead", "flow", "heap", "tried")

    def __init__(self, flow: Flow, tried: tuple[str, ...]) -> None:
        self.flow = flow
        self.tried = tried
        self.heap: list[tuple[int, Ticket]] = []
        self.dead = 0

    def push(self, ticket: Ticket) -> bool:
        """True when it is the head now."""
        ticket.lane = self
        heappush(self.heap, (ticket.order, ticket))
        return self.heap[0][1] is ticket

    def remove(self, ticket: Ticket) -> bool:
        """True when it was the head."""
        ticket.lane = None
        heap = self.heap
        if heap[0][1] is not ticket:
            self.dead += 1
            if self.dead > DEAD_MIN and self.dead * 2 > len(heap):
                self.heap = [entry for entry in heap if entry[1].lane is self]
                heapify(self.heap)
                self.dead = 0
            return False
        heappop(heap)
        while heap and heap[0][1].lane is not self:
            heappop(heap)
            self.dead -= 1
        return True


class Flow:
    """The requests of one tenant in one band that wait for one pool."""

    __slots__ = ("band", "lanes", "queued", "queued_bytes", "tenant")

    def __init__(self, tenant: str, band: str) -> None:
        self.tenant = tenant
        self.band = band
        self.lanes: dict[tuple[str, ...], Lane] = {}
        self.queued = 0
        self.queued_bytes = 0


class PoolQueue:
    """What waits for the endpoints of one model, and those of them that are up.

    `name` is the model's first pool in the settings. While no policy chooses between pools of one model, its
    endpoints in all of them are one set.
    """

    __slots__ = (
        "drain",
        "flows",
        "freed",
        "model",
        "name",
        "queued",
        "queued_bytes",
        "queued_tokens",
        "rescan",
        "up",
    )

    def __init__(self, model: str, name: str, window_s: float) -> None:
        self.model = model
        self.name = name
        self.up: list[Load] = []
        self.flows: dict[tuple[str, str], Flow] = {}  # those with somebody in them
        self.queued = 0
        self.queued_bytes = 0
        self.queued_tokens = 0
        self.drain = Drain(window_s)
        # Between events no head fits anywhere. So an arrival behind a head changes nothing, and after an endpoint
        # got room only that one needs to be looked at; all of them only when a head is new.
        self.freed: dict[str, Load] = {}
        self.rescan = False

    def push(self, ticket: Ticket) -> bool:
        """True when it is the head of its lane now."""
        request = ticket.request
        key = (request.tenant, request.band)
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = Flow(request.tenant, request.band)
        lane = flow.lanes.get(ticket.tried)
        if lane is None:
            lane = flow.lanes[ticket.tried] = Lane(flow, ticket.tried)
        self._count(flow, ticket, 1)
        return lane.push(ticket)

    def remove(self, ticket: Ticket) -> bool:
        """True when the lane has another head now, or is gone."""
        lane = ticket.lane
        if lane is None:
            return False
        flow = lane.flow
        was_head = lane.remove(ticket)
        self._count(flow, ticket, -1)
        if not lane.heap:
            del flow.lanes[lane.tried]
            if not flow.lanes:
                del self.flows[flow.tenant, flow.band]
        return was_head

    def heads(self) -> list[Ticket]:
        """The first of every lane."""
        return [lane.heap[0][1] for flow in self.flows.values() for lane in flow.lanes.values()]

    def waiting(self) -> list[Ticket]:
        """Everybody, flow by flow."""
        lanes = [lane for flow in self.flows.values() for lane in flow.lanes.values()]
        return [ticket for lane in lanes for _, ticket in sorted(lane.heap) if ticket.lane is lane]

    def views(self) -> list[FlowView]:
        return [
            FlowView(
                pool=self.name,
                tenant=flow.tenant,
                band=flow.band,
                queued=flow.queued,
                queued_bytes=flow.queued_bytes,
                oldest_s=min(lane.heap[0][1].request.arrived_s for lane in flow.lanes.values()),
            )
            for flow in self.flows.values()
        ]

    def _count(self, flow: Flow, ticket: Ticket, sign: int) -> None:
        size = sign * ticket.request.body_bytes
        flow.queued += sign
        flow.queued_bytes += size
        self.queued += sign
        self.queued_bytes += size
        self.queued_tokens += sign * ticket.tokens
