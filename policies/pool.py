"""Which pool? (scheduling.md 4)

A pool is about engine settings and memory: it takes requests up to a total of prompt and answer, and may use what is
idle in the pools it borrows from.
"""

from collections.abc import Sequence

from policies.length import Lengths
from policies.state.ledger import Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket

OVER_HARD, OVER_SOFT = 0.2, 0.5  # chance of being too long for a pool that makes it the next one's (scheduling.md 4)
LEND_SEQS_RATIO = 0.9
LONG_BORROWS_AFTER = 0.5  # of the time until its first token is due


def choose(pools: Sequence[PoolQueue], ticket: Ticket, lengths: Lengths) -> PoolQueue:
    """The pool for a request, of those of its model in order of their bound; the last takes whatever is left."""
    live = [pool for pool in pools if pool.up] or pools
    for pool in live[:-1]:
        if _fits(pool, ticket, lengths):
            return pool
    return live[-1]


def _fits(pool: PoolQueue, ticket: Ticket, lengths: Lengths) -> bool:
    bound = pool.pool.max_total_tokens
    if not bound:
        return True
    context = min((load.endpoint.context_tokens for load in pool.up if load.endpoint.context_tokens), default=0)
    request = ticket.request
    if context and ticket.tokens + request.max_output_tokens > context:
        return False
    left = bound - ticket.tokens
    if left <= 0:
        return False
    return lengths.over(request, left) <= (OVER_HARD if context else OVER_SOFT)


def lent(pool: PoolQueue, ticket: Ticket, now: float) -> list[Load]:
    """Endpoints of other pools whose idle room the request may use now. Lending stops when the owner queues."""
    return [load for lender in pool.lenders if not lender.queued for load in _idle_of(lender, pool, ticket, now)]


def _idle_of(lender: PoolQueue, pool: PoolQueue, ticket: Ticket, now: float) -> list[Load]:
    loads = [load for load in lender.up if pool not in load.pools]
    if not _is_longer(pool, lender):
        return [load for load in loads if load.prefill_tokens < _chunk(load) and _has_places(load)]
    waited_s = now - ticket.request.arrived_s
    if waited_s < LONG_BORROWS_AFTER * (min(ticket.due_s, ticket.expires_s) - ticket.request.arrived_s):
        return []
    total = ticket.tokens + ticket.request.max_output_tokens
    return [
        load
        for load in loads
        if not load.prefill_tokens and _has_places(load) and total <= (load.endpoint.context_tokens or total)
    ]


def _is_longer(pool: PoolQueue, lender: PoolQueue) -> bool:
    bound = lender.pool.max_total_tokens
    return bound > 0 and not 0 < pool.pool.max_total_tokens <= bound


def _chunk(load: Load) -> int:
    return load.endpoint.step_tokens or load.max_prefill_tokens


def _has_places(load: Load) -> bool:
    return load.sequences < LEND_SEQS_RATIO * load.room_seqs
