"""One tenant's requests of one class, in the queue of a pool: a flow holds lanes, a lane has two lines.

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

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from policies.state.shares import Account, Share
    from policies.state.tickets import Ticket

DEAD_MIN: Final = 32

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
    """The requests of one tenant in one band that wait for one pool; gone with the last of them."""

    __slots__ = ("account", "band", "lanes", "passed", "passed_over", "queued", "queued_bytes", "share", "tenant")

    def __init__(self, tenant: str, share: Share) -> None:
        self.tenant = tenant
        self.band = share.band.name
        self.share = share
        self.account: Account | None = None  # until it has a place among the tenants of its class
        self.lanes: dict[LaneKey, Lane] = {}
        self.queued = 0
        self.queued_bytes = 0
        self.passed = 0  # dispatches since one of its starved had its turn
        self.passed_over = False  # what it waits for others need not wait for
