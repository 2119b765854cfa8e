"""How a request ends without a good answer: it leaves the live table, is counted, and its client is told when to ask again."""

from policies.decisions import Evict, Fail, Reason, Reject, Why
from policies.state.books import Books
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.types import InferenceRequest

RETRY_SOON_S = 1.0  # http.md 11
LONGEST_BACKEND_WAIT_S = 30.0
PARTITION_S = 5.0
_DRAINING = (Reason.OVERLOADED, Reason.QUEUE_TIMEOUT, Reason.EVICTED, Reason.QUEUE_FULL)


def reject(books: Books, request: InferenceRequest, pool: PoolQueue | None, reason: Reason, now: float) -> Reject:
    """It never queued."""
    books.rejected += 1
    wait_s = retry_after_s(reason, pool, now)
    return Reject(request_id=request.id, reason=reason, retry_after_s=wait_s, why=_why(request, pool, now))


def evict(books: Books, ticket: Ticket, reason: Reason, now: float) -> Evict:
    """It queued, and leaves the queue."""
    books.expired += 1
    if ticket.claim is not None:
        ticket.claim.refund(now)
    del books.tickets[ticket.request.id]
    wait_s = retry_after_s(reason, ticket.pool, now)
    why = _why(ticket.request, ticket.pool, now)
    return Evict(request_id=ticket.request.id, reason=reason, retry_after_s=wait_s, why=why)


def fail(books: Books, ticket: Ticket, reason: Reason, now: float) -> Fail:
    """It came back from its last attempt. Where engines were full, their own wish counts, never multiplied."""
    books.failed += 1
    if ticket.claim is not None:
        ticket.claim.refund(now)
    del books.tickets[ticket.request.id]
    wait_s = retry_after_s(reason, ticket.pool, now)
    if reason is Reason.BACKEND_SATURATED and ticket.retry_after_s is not None:
        wait_s = min(LONGEST_BACKEND_WAIT_S, max(RETRY_SOON_S, ticket.retry_after_s))
    why = _why(ticket.request, ticket.pool, now)
    return Fail(request_id=ticket.request.id, reason=reason, retry_after_s=wait_s, why=why)


def retry_after_s(reason: Reason, pool: PoolQueue | None, now: float) -> float | None:
    """When it is worth asking again; None: not at all. A full queue's answer is the time it takes to empty."""
    if reason is Reason.DEADLINE_EXCEEDED:
        return None
    if reason is Reason.PARTITION_UNAVAILABLE:
        return PARTITION_S
    if pool is not None and reason in _DRAINING:
        return pool.drain.wait_s(pool.queued_tokens, now)
    return RETRY_SOON_S


def _why(request: InferenceRequest, pool: PoolQueue | None, now: float) -> Why:
    queued = pool.queued if pool is not None else 0
    return Why(pool=pool.name if pool is not None else "", waited_s=now - request.arrived_s, queued=queued)
