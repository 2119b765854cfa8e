"""All that the core remembers, in one place: live requests, endpoints, queues, timers, and the counts of what ended."""

from policies.state.ledger import Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.state.timers import Timers
from policies.state.views import Totals


class Books:
    """The core writes them; nobody else does."""

    __slots__ = (
        "cancelled",
        "completed",
        "expired",
        "failed",
        "loads",
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
        self.pools: dict[str, PoolQueue] = {}  # by model
        self.timers = Timers()
        self.queued = 0
        self.queued_bytes = 0
        self.queued_in_band: dict[str, int] = {}
        self.received = self.completed = self.rejected = self.expired = self.cancelled = self.failed = 0

    def count_queued(self, ticket: Ticket, sign: int) -> None:
        """One more (1) or one less (-1) in the queues."""
        request = ticket.request
        self.queued += sign
        self.queued_bytes += sign * request.body_bytes
        self.queued_in_band[request.band] = self.queued_in_band.get(request.band, 0) + sign

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
