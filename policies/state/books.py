"""All that the core remembers, in one place: live requests, endpoints, queues, timers, and the counts of what ended."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from policies.events import CacheTurned, Finished, Outcome
from policies.state.ledger import Attempt, Load
from policies.state.parked import Parked
from policies.state.prefixes import Prefixes
from policies.state.queues import PoolQueue, long_from
from policies.state.sessions import Sessions
from policies.state.tickets import Ticket
from policies.state.timers import Timers
from policies.state.views import Totals
from policies.types import SHARED, Affinity, Band, Endpoint, InferenceRequest, Settings

UNBOUNDED: Final = 1 << 62
_COMPLETED: Final = Outcome.COMPLETED  # a member found in its class costs as much as a call
MOST_VICTIMS: Final = 8  # of one more urgent request
QueueKey = tuple[str, str, int]  # partition, model, bound
Queues = dict[str, list[PoolQueue]]  # of one partition: of each model its pools, the smallest bound first


class Books:
    """The core writes them; nobody else does."""

    __slots__ = (
        "_named",
        "_owners",
        "cancelled",
        "closed",
        "completed",
        "expired",
        "failed",
        "loads",
        "models",
        "parked",
        "pools",
        "prefixes",
        "queued",
        "queued_bytes",
        "queued_in_band",
        "received",
        "rejected",
        "sessions",
        "shared",
        "tickets",
        "timers",
        "victims",
    )

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.parked: dict[str, Parked] = {}  # in the order in which they came, and no tickets yet
        self.loads: dict[str, Load] = {}
        self.pools: dict[QueueKey, PoolQueue] = {}
        self._named: dict[tuple[str, str], PoolQueue] = {}  # by partition and pool
        self._owners: dict[str, str] = {}  # the hard partitions of tenants that have one
        self.models: Queues = {}  # of the shared partition
        self.closed: dict[str, Queues] = {}  # of the hard partition of each tenant that has one
        self.timers = Timers()
        self.sessions = Sessions()
        self.prefixes: Prefixes | None = None  # None: placed without regard to them
        self.shared = False  # other replicas are to hear what tenants are served
        self.queued = 0
        self.queued_bytes = 0
        self.queued_in_band: dict[str, dict[Ticket, None]] = {}  # in the order in which they came
        self.victims: list[Ticket] = []  # who leaves the queue for a more urgent one
        self.received = self.completed = self.rejected = self.expired = self.cancelled = self.failed = 0

    def full(self, request: InferenceRequest, band: Band, settings: Settings) -> bool:
        """Whether the queues are too long, or hold too many bytes, to take one more."""
        return (
            self.queued >= settings.max_queued
            or self.queued_bytes + request.body_bytes > settings.max_queued_bytes
            or len(self.queued_in_band.get(band.name, ())) >= band.max_queued
        )

    def make_room(self, ticket: Ticket, settings: Settings) -> bool:
        """Whether enough less urgent ones wait that it can have their place. They are `victims` then: of the least
        urgent class the newest first."""
        band, size = ticket.band, ticket.request.body_bytes
        if len(self.queued_in_band.get(band.name, ())) >= band.max_queued:
            return False
        count = self.queued + 1 - settings.max_queued
        excess = self.queued_bytes + size - settings.max_queued_bytes
        victims: list[Ticket] = []
        for victim in islice(self._less_urgent(band), MOST_VICTIMS):
            victims.append(victim)
            count, excess = count - 1, excess - victim.request.body_bytes
            if count <= 0 and excess <= 0:
                self.victims = victims
                return True
        return False

    def _less_urgent(self, band: Band) -> Iterator[Ticket]:
        classes = [waiting for waiting in self.queued_in_band.values() if waiting]
        classes.sort(key=lambda waiting: -next(iter(waiting)).band.rank)
        for waiting in classes:
            if next(iter(waiting)).band.rank > band.rank:
                yield from reversed(waiting)

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
        if ticket.pool in attempt.load.watchers:
            ticket.share.held -= ticket.sequences
        attempt.close()
        self._forget_if_gone(attempt.load)

    def enqueue(self, ticket: Ticket) -> bool:
        """Let it wait. True when it is a head now."""
        self._count_queued(ticket, 1)
        self.timers.set(ticket, self.leaves_s(ticket))
        return ticket.pool.push(ticket)

    def leaves_s(self, ticket: Ticket) -> float:
        """When something has to be done about one that waits."""
        leaves_s = min(ticket.expires_s, ticket.request.deadline_s)
        return min(leaves_s, ticket.hold_s) if ticket.only else leaves_s

    def dequeue(self, ticket: Ticket) -> bool:
        """It waits no more. True when another one is a head now."""
        self._count_queued(ticket, -1)
        self.timers.cancel(ticket)
        return ticket.pool.remove(ticket) and ticket.pool.queued > 0

    def _count_queued(self, ticket: Ticket, sign: int) -> None:
        size = ticket.request.body_bytes
        self.queued += sign
        self.queued_bytes += sign * size
        if ticket.claim is not None:
            ticket.claim.count_queued(sign, size)
        waiting = self.queued_in_band.setdefault(ticket.band.name, {})
        if sign > 0:
            waiting[ticket] = None
        else:
            del waiting[ticket]

    def endpoint_up(self, endpoint: Endpoint) -> None:
        """It may be used from now on, within these bounds. What is open on it stays open."""
        load = self.loads.get(endpoint.name)
        if load is None:
            load = self.loads[endpoint.name] = Load(endpoint)
        else:
            load.bound(endpoint)
        load.up = True
        self._wire()
        if self.prefixes is not None:
            self.prefixes.up(endpoint.name, endpoint.kv_tokens)

    def endpoint_down(self, name: str, now: float) -> None:
        """It may not be used. Its account stays until the last attempt there has ended."""
        if self.prefixes is not None:
            self.prefixes.down(name)
            self.sessions.down(name, now)
        load = self.loads.get(name)
        if load is None:
            return
        load.up = False
        self._forget_if_gone(load)
        self._wire()

    def cache_cleared(self, name: str, now: float) -> None:
        """What it had cached is gone."""
        if self.prefixes is not None:
            self.prefixes.cleared(name)
            self.sessions.down(name, now)

    def cache_turned(self, event: CacheTurned, now: float) -> None:
        """Its cache turns over as fast as that."""
        if self.prefixes is not None:
            self.prefixes.turned(event.endpoint, event.stored_tokens, event.removed_tokens, now)

    def find_cached(self, ticket: Ticket, now: float) -> int:
        """Find out who has how much of its prompt; the most that anybody has."""
        request, prefixes = ticket.request, self.prefixes
        if prefixes is None:
            return 0
        cached = ticket.take_match(prefixes.match(request, now), now) if request.prefix else 0
        if cached or not request.session:
            return cached
        turn = self.sessions.find(request.tenant, request.session, now)
        return ticket.take_hint(turn.endpoint, turn.prompt_tokens) if turn is not None else 0

    def _forget_if_gone(self, load: Load) -> None:
        if not load.up and not load.attempts:
            del self.loads[load.name]

    def change_pools(self, settings: Settings, window_s: float) -> None:
        """The pools and partitions are these now. Every partition has a queue of its own for every pool.

        Pools of one model with the same bound are one queue, under the name of the first. Whoever waits for a pool
        that is gone waits for its timeout, unless its driver takes it out.
        """
        known, self.pools, self._named = self.pools, {}, {}
        tenants = settings.tenants.values()
        self._owners = owners = {each.id: each.partition for each in tenants if each.partition != SHARED}
        self.models = self._queues_of(SHARED, settings, known, window_s)
        hard = {name: self._queues_of(name, settings, known, window_s) for name in dict.fromkeys(owners.values())}
        self.closed = {owner: hard[name] for owner, name in owners.items()}
        for queue in known.values():
            if queue.queued:
                self.pools.setdefault(queue.key, queue)
            elif queue.key not in self.pools:
                queue.up, queue.lenders = [], []  # an attempt that comes back to it finds nobody
        for queue in self.pools.values():
            queue.change_classes(settings)
        self._wire()

    def _queues_of(
        self, partition: str, settings: Settings, known: Mapping[QueueKey, PoolQueue], window_s: float
    ) -> Queues:
        models: Queues = {}
        for pool in settings.pools.values():
            key = (partition, pool.model, pool.max_total_tokens)
            queue = self.pools.get(key) or known.get(key) or PoolQueue(pool, window_s, partition)
            self.pools[key] = self._named[partition, pool.name] = queue
            model = models.setdefault(pool.model, [])
            if queue not in model:
                queue.stand_for(pool)
                model.append(queue)
        for queues in models.values():
            queues.sort(key=lambda queue: queue.pool.max_total_tokens or UNBOUNDED)
        return models

    def queues_of(self, request: InferenceRequest) -> Sequence[PoolQueue]:
        """Those of the pools of its model, in the partition of its tenant."""
        return self.closed.get(request.tenant, self.models).get(request.model, ())

    def belongs(self, ticket: Ticket) -> bool:
        """Whether it is in the partition of its tenant, which may have become another one."""
        return ticket.pool.partition == self._owners.get(ticket.request.tenant, SHARED)

    def stranded(self) -> list[Ticket]:
        """Who may wait no longer: not in the partition of its tenant, or in a hard one that has no engine for it."""
        queues = [
            queue for queue in self.pools.values() if queue.queued and (self._owners or queue.partition != SHARED)
        ]
        return [
            ticket
            for queue in queues
            for ticket in queue.waiting()
            if not self.belongs(ticket) or (queue.partition != SHARED and not self._live(ticket))
        ]

    def _live(self, ticket: Ticket) -> bool:
        queues = self.closed[ticket.request.tenant].get(ticket.request.model, ())
        return any(queue.up for queue in queues)

    def change_affinity(self, affinity: Affinity | None) -> None:
        """Prefixes are remembered like this now. What is known stays, unless chains have other blocks."""
        known = self.prefixes
        if affinity is None:
            self.prefixes = None
        elif known is not None and known.block_tokens == affinity.block_tokens:
            known.bound(affinity)
        else:
            self.prefixes = Prefixes(affinity)
            for load in self.loads.values():
                if load.up:
                    self.prefixes.up(load.name, load.endpoint.kv_tokens)

    def _wire(self) -> None:
        """Tell pools and endpoints of each other."""
        for queue in self.pools.values():
            queue.up, queue.lenders, queue.borrowers = [], [], []
        for queue in _distinct(self._named.values()):
            names = [(queue.partition, name) for name in queue.pool.borrow]
            queue.lenders = [self._named[name] for name in names if name in self._named]
            for lender in queue.lenders:
                lender.borrowers.append(queue)
        for load in self.loads.values():
            names = [(load.endpoint.partition, name) for name in load.endpoint.pools] if load.up else []
            load.pools = _distinct(self._named[name] for name in names if name in self._named)
            for queue in load.pools:
                queue.up.append(load)
        for load in self.loads.values():
            borrowers = (queue for queue in self.pools.values() if any(own in queue.lenders for own in load.pools))
            load.watchers = _distinct([*load.pools, *borrowers])
        for queue in self.pools.values():
            queue.long_from = long_from(queue.pool, [load.endpoint for load in queue.up])
            queue.bound_classes()
        self._count_held()

    def _count_held(self) -> None:
        """What classes hold of the endpoints that their pool has: what runs on one that is down, or now another's, takes
        nobody's room."""
        for queue in self.pools.values():
            for share in queue.ranked:
                share.held = 0
        for ticket in self.tickets.values():
            if ticket.attempt is not None and ticket.pool in ticket.attempt.load.watchers:
                ticket.share.held += ticket.sequences

    def count_end(self, event: Finished) -> None:
        """A request has ended after it was answered; what nobody waited for has been cancelled, however it ended."""
        if event.left:
            self.cancelled += 1
        elif event.outcome is _COMPLETED:
            self.completed += 1
        else:
            self.failed += 1

    def totals(self) -> Totals:
        return Totals(
            received=self.received,
            completed=self.completed,
            rejected=self.rejected,
            expired=self.expired,
            cancelled=self.cancelled,
            failed=self.failed,
            queued=self.queued,
            inflight=len(self.tickets) + len(self.parked) - self.queued,
        )


def _distinct(queues: Iterable[PoolQueue]) -> tuple[PoolQueue, ...]:
    found: list[PoolQueue] = []
    for queue in queues:
        if queue not in found:
            found.append(queue)
    return tuple(found)
