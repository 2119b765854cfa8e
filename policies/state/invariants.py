"""What must hold after every event, as code. Everything is counted again, one by one, from the live requests."""

from collections import Counter

from policies.state import queues, timers
from policies.state.books import Books
from policies.state.ledger import Load
from policies.state.queues import Lane, PoolQueue


class InvariantError(Exception):
    """The books do not add up: a bug of the core, or of a driver that breaks its contract."""


def audit(books: Books) -> None:
    """Raise InvariantError, naming what is wrong."""
    _requests(books)
    for pool in books.pools.values():
        _queue(books, pool)
    _equal("queued by pool", sum(pool.queued for pool in books.pools.values()), books.queued)
    _endpoints(books)
    _timers(books)


def _equal(what: str, seen: object, booked: object) -> None:
    if seen != booked:
        raise InvariantError(f"{what}: counted {seen}, booked {booked}")


def _requests(books: Books) -> None:
    queued = [ticket.request for ticket in books.tickets.values() if ticket.lane is not None]
    flying = sum(ticket.attempt is not None for ticket in books.tickets.values())
    _equal("live requests, each queued or in flight", len(queued) + flying, len(books.tickets))
    _equal("queued", len(queued), books.queued)
    _equal("queued bytes", sum(request.body_bytes for request in queued), books.queued_bytes)
    in_band = {band: count for band, count in books.queued_in_band.items() if count}
    _equal("queued by band", dict(Counter(request.band for request in queued)), in_band)
    totals = books.totals()
    ended = totals.completed + totals.rejected + totals.expired + totals.cancelled + totals.failed
    _equal("received (C1)", ended + len(queued) + flying, totals.received)


def _queue(books: Books, pool: PoolQueue) -> None:
    waiting = [ticket for ticket in books.tickets.values() if ticket.lane is not None and ticket.pool is pool]
    _equal(f"pool {pool.name} queued", len(waiting), pool.queued)
    _equal(f"pool {pool.name} bytes", sum(ticket.request.body_bytes for ticket in waiting), pool.queued_bytes)
    _equal(f"pool {pool.name} tokens", sum(ticket.tokens for ticket in waiting), pool.queued_tokens)
    found = 0
    for key, flow in pool.flows.items():
        mine = [ticket for ticket in waiting if (ticket.request.tenant, ticket.request.band) == key]
        _equal(f"flow {key} queued", len(mine), flow.queued)
        _equal(f"flow {key} bytes", sum(ticket.request.body_bytes for ticket in mine), flow.queued_bytes)
        found += sum(_lane(lane) for lane in flow.lanes.values())
    _equal(f"pool {pool.name} in lanes", found, pool.queued)
    if pool.rescan or pool.freed:
        raise InvariantError(f"pool {pool.name}: an event ended with endpoints still to look at")


def _lane(lane: Lane) -> int:
    living = [ticket for _, ticket in lane.heap if ticket.lane is lane]
    _equal("dead in a lane", len(lane.heap) - len(living), lane.dead)
    if not living or lane.heap[0][1].lane is not lane:
        raise InvariantError("a lane is empty, or its head is dead")
    if lane.dead > queues.DEAD_MIN and lane.dead * 2 > len(lane.heap):
        raise InvariantError(f"a lane keeps {lane.dead} dead of {len(lane.heap)}")
    return len(living)


def _endpoints(books: Books) -> None:
    held: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in books.loads}
    for ticket in books.tickets.values():
        attempt = ticket.attempt
        if attempt is None:
            continue
        if books.loads.get(attempt.load.name) is not attempt.load:
            raise InvariantError(f"request {ticket.request.id} is on {attempt.load.name}, which is forgotten")
        mine = held[attempt.load.name]
        for place, value in enumerate((1, attempt.sequences, attempt.prefill_tokens, attempt.kv_tokens)):
            mine[place] += value
    for name, load in books.loads.items():
        _equal(f"endpoint {name}", held[name], [load.attempts, load.sequences, load.prefill_tokens, load.kv_tokens])
        _known_where_it_serves(books, load)


def _known_where_it_serves(books: Books, load: Load) -> None:
    if not load.up and not load.attempts:
        raise InvariantError(f"endpoint {load.name} is down and empty, and still known")
    serves = [pool.model for pool in books.pools.values() if load in pool.up]
    _equal(f"pools of {load.name}", serves, [pool.model for pool in books.pools.values() if pool in load.pools])
    if serves and not load.up:
        raise InvariantError(f"endpoint {load.name} is down and still serves {serves}")


def _timers(books: Books) -> None:
    for ticket in books.tickets.values():
        prefilling = ticket.attempt is not None and ticket.attempt.prefill_tokens > 0
        _equal(f"timer of {ticket.request.id}", ticket.timer > 0, ticket.lane is not None or prefilling)
    dead = books.timers.count_dead()
    _equal("dead timers", dead, books.timers.dead)
    if dead > timers.DEAD_MIN and dead * 2 > len(books.timers):
        raise InvariantError(f"{dead} dead timers of {len(books.timers)}")
