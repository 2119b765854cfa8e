"""Which endpoints may serve a request, and may one that came back be tried again. A filter, never a weight.

Model, health and partition are already in the pool's list: a pool has a queue in each partition, and that list holds
the endpoints of the model that are up there. Nothing looks beyond it but borrowing, which stays in the partition.
"""

from collections.abc import Sequence

from policies.decisions import Reason
from policies.events import Cause
from policies.state.ledger import Load
from policies.state.tickets import Ticket

GIVEN_UP = {
    Cause.CONNECT: Reason.BACKEND_UNAVAILABLE,
    Cause.RESET: Reason.BACKEND_UNAVAILABLE,
    Cause.STATUS_429: Reason.BACKEND_SATURATED,
    Cause.STATUS_500: Reason.BACKEND_ERROR,
    Cause.STATUS_502: Reason.BACKEND_UNAVAILABLE,
    Cause.STATUS_503: Reason.BACKEND_SATURATED,
    Cause.STATUS_504: Reason.BACKEND_TIMEOUT,
    Cause.ABORTED: Reason.BACKEND_UNAVAILABLE,
    Cause.FIRST_BYTE_TIMEOUT: Reason.BACKEND_TIMEOUT,
    Cause.PROTOCOL: Reason.BACKEND_PROTOCOL_ERROR,
}
"""What the client is told when no attempt is left (http.md 11)."""

ONCE = (Cause.STATUS_500, Cause.PROTOCOL)  # twice in a row, the request itself is the likelier cause


def eligible(loads: Sequence[Load], tried: Sequence[str]) -> Sequence[Load]:
    """Those of `loads` that this request has not come back from."""
    return [load for load in loads if load.name not in tried] if tried else loads


def may_go_again(ticket: Ticket, cause: Cause, now: float, max_attempts: int) -> bool:
    """Whether a request that came back for `cause` gets another attempt (http.md 9).

    `tried` and `causes` of the ticket already hold this one.
    """
    if len(ticket.tried) >= max_attempts or not eligible(ticket.pool.up, ticket.tried):
        return False
    if cause in ONCE:
        return sum(before in ONCE for before in ticket.causes) == 1
    if cause is Cause.FIRST_BYTE_TIMEOUT:
        budget_s = ticket.request.deadline_s - ticket.request.arrived_s
        return ticket.request.deadline_s - now >= budget_s / 2
    return True
