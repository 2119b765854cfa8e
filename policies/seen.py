"""What others may see of the core: counts and views, never the books themselves."""

from collections.abc import Iterator

from policies.assessing import Assessing
from policies.metering import Metering
from policies.saturation import pool_saturation
from policies.state.books import Books
from policies.state.views import EndpointView, FlowView, PoolView, ShareView, Totals


class Seen:
    """What the core lets out, read from its books at the moment of asking."""

    _books: Books
    _assessing: Assessing
    metering: Metering

    def totals(self) -> Totals:
        """Counts since the start, and what is queued and in flight now."""
        return self._books.totals()

    def flows(self) -> list[FlowView]:
        """Every flow with somebody in it."""
        return [view for queue in self._books.pools.values() for view in queue.views()]

    def shares(self, now: float) -> list[ShareView]:
        """What tenants were served in the last minute, of each class of each pool of which anything was or waits."""
        return [view for queue in self._books.pools.values() for view in queue.shares_seen(now)]

    def endpoints(self) -> list[EndpointView]:
        """Every endpoint that is up or still holds attempts."""
        return [load.view() for load in self._books.loads.values()]

    def pools(self) -> list[PoolView]:
        """Every pool: how its lanes stand, how good its forecasts were."""
        return [queue.view() for queue in self._books.pools.values()]

    def saturations(self) -> dict[str, float]:
        """How full the endpoints of each pool are: 0 idle, 1 full. Queues of pools that are gone stand behind those that are."""
        return {queue.name: pool_saturation(queue.up) for queue in reversed(self._books.pools.values())}

    def parked(self) -> int:
        """How many wait for the store to lend more of a limit; in flight in `totals`."""
        return len(self._books.parked)

    def anybody_waits(self) -> bool:
        """Whether a request waits for a place, or for the store to lend more of a limit."""
        return self._books.queued > 0 or bool(self._books.parked)

    def waits_for_store(self) -> bool:
        """Whether anybody waits for what the store may have: more of a limit, or a slot."""
        return bool(self._books.parked) or self.metering.leasing.slots.hurry.wanted

    def lengths(self) -> Iterator[str]:
        """What has been learned of lengths, for `LengthsRestored` in a later run. Small pieces: events may come between them."""
        return self._assessing.lengths.dump()
