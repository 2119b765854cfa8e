"""All that the core remembers, in one place: live requests, endpoints, queues, timers, and the counts of what ended."""

from collections.abc import Iterable

from policies.state.ledger import Attempt, Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.state.timers import Timers
from policies.state.views import Totals
from policies.types import Band, Endpoint, InferenceRequest, Pool, Settings


class Books:
    """The core writes them; nobody else does."""

    __slots__ = (
        "cancelled",
        "completed",
        "expired",
        "failed",
        "loads",
        "model_of",
        "pools",
        "queued",
        "queued_bytes",
        "queued_in_band",
        "received",
        "rejected",
        "tickets",
        "timers",
    )

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.loads: dict[str, Load] = {}
        self.pools: dict[str, PoolQueue] = {}  # by model; once known, a model stays
        self.model_of: dict[str, str] = {}  # of a pool, by its name
        self.timers = Timers()
        self.queued = 0
        self.queued_bytes = 0
        self.queued_in_band: dict[str, int] = {}
        self.received = self.completed = self.rejected = self.expired = self.cancelled = self.failed = 0

    def full(self, request: InferenceRequest, band: Band, settings: Settings) -> bool:
        """Whether the queues are too long, or hold too many bytes, to take one more."""
        return (
            self.queued >= settings.max_queued
            or self.queued_bytes + request.body_bytes > settings.max_queued_bytes
            or self.queued_in_band.get(request.band, 0) >= band.max_queued
        )

    def find(self, request_id: str, number: int) -> tuple[Ticket | None, Attempt | None]:
        """The ticket and its attempt, while just that attempt is open."""
        ticket = self.tickets.get(request_id)
        if ticket is None or ticket.attempt is None or ticket.attempt.number != number:
            return None, None
        return ticket, ticket.attempt

    def close(self, ticket: Ticket, attempt: Attempt) -> None:
        """The attempt is over: it holds nothing any more."""
        self.timers.cancel(ticket)
        ticket.attempt = None
        attempt.close()
        self._forget_if_gone(attempt.load)

    def enqueue(self, ticket: Ticket) -> bool:
        """Let it wait. True when it is a head now."""
        self._count_queued(ticket, 1)
        self.timers.set(ticket, min(ticket.expires_s, ticket.request.deadline_s))
        return ticket.pool.push(ticket)

    def dequeue(self, ticket: Ticket) -> bool:
        """It waits no more. True when another one is a head now."""
        self._count_queued(ticket, -1)
        self.timers.cancel(ticket)
        return ticket.pool.remove(ticket) and ticket.pool.queued > 0

    def _count_queued(self, ticket: Ticket, sign: int) -> None:
        request = ticket.request
        self.queued += sign
        self.queued_bytes += sign * request.body_bytes
        self.queued_in_band[request.band] = self.queued_in_band.get(request.band, 0) + sign

    def endpoint_up(self, endpoint: Endpoint) -> None:
        """It may be used from now on, within these bounds. What is open on it stays open."""
        load = self.loads.get(endpoint.name)
        if load is None:
            load = self.loads[endpoint.name] = Load(endpoint)
        else:
            load.bound(endpoint)
        load.up = True
        self._wire()

    def endpoint_down(self, name: str) -> None:
        """It may not be used. Its account stays until the last attempt there has ended."""
        load = self.loads.get(name)
        if load is None:
            return
        load.up = False
        self._forget_if_gone(load)
        self._wire()

    def _forget_if_gone(self, load: Load) -> None:
        if not load.up and not load.attempts:
            del self.loads[load.name]

    def change_pools(self, pools: Iterable[Pool], window_s: float) -> None:
        """These are the pools now. Whoever waits for a model that has none left waits for its timeout."""
        self.model_of = {}
        for pool in pools:
            if pool.model not in self.model_of.values():
                queue = self.pools.setdefault(pool.model, PoolQueue(pool.model, pool.name, window_s))
                queue.name = pool.name
            self.model_of[pool.name] = pool.model
        self._wire()

    def _wire(self) -> None:
        """Tell pools and endpoints of each other."""
        for queue in self.pools.values():
            queue.up = []
        for load in self.loads.values():
            names = load.endpoint.pools if load.up else ()
            models = dict.fromkeys(self.model_of[name] for name in names if name in self.model_of)
            load.pools = tuple(self.pools[model] for model in models)
            for queue in load.pools:
                queue.up.append(load)

    def totals(self) -> Totals:
        return Totals(
            received=self.received,
            completed=self.completed,
            rejected=self.rejected,
            expired=self.expired,
            cancelled=self.cancelled,
            failed=self.failed,
            queued=self.queued,
            inflight=len(self.tickets) - self.queued,
        )
