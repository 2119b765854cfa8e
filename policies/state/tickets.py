"""A live request in the core's books: where it stands and where it has been."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.events import Cause
from policies.types import InferenceRequest

if TYPE_CHECKING:
    from policies.state.ledger import Attempt
    from policies.state.queues import Lane, PoolQueue


class Ticket:
    """Queued while it has a `lane`, in flight while it has an `attempt`; with neither it has ended.

    `order` is its place in the line of arrivals. It stands in the queue until `expires_s` at most. `tokens` of prompt
    and `sequences` are what it takes of an endpoint.
    """

    __slots__ = (
        "attempt",
        "causes",
        "expires_s",
        "lane",
        "order",
        "pool",
        "request",
        "retry_after_s",
        "sequences",
        "timer",
        "tokens",
        "tried",
    )

    def __init__(self, request: InferenceRequest, pool: PoolQueue, order: int, expires_s: float) -> None:
        self.request = request
        self.pool = pool
        self.order = order
        self.expires_s = expires_s
        self.tokens = max(0, request.prompt_tokens)
        self.sequences = max(1, request.sequences)
        self.lane: Lane | None = None
        self.attempt: Attempt | None = None
        self.timer = 0  # number of its valid entry in Timers; 0 = none
        self.tried: tuple[str, ...] = ()  # endpoints it came back from, and why
        self.causes: tuple[Cause, ...] = ()
        self.retry_after_s: float | None = None  # the shortest wait its engines asked for

    def came_back(self, endpoint: str, cause: Cause, retry_after_s: float | None) -> None:
        """An attempt ended without an answer."""
        self.tried += (endpoint,)
        self.causes += (cause,)
        if retry_after_s is not None:
            known_s = self.retry_after_s
            self.retry_after_s = retry_after_s if known_s is None else min(known_s, retry_after_s)
