"""Fair shares over several replicas: what the others have served of a tenant counts here too (tenancy.md 8.4).

A replica tells its store what it has served of each tenant, in cost units, and hears what all have of those that wait
here, or did lately. `fairness` charges that to their accounts. What runs where there is room for everybody counts as
well: it is served, and others wait elsewhere. The driver calls the store beside all requests and tells what came of it
by `ServedElsewhere`; a replica that is alone tells nothing.
"""

from collections.abc import Iterator

from policies import fairness
from policies.events import ServedElsewhere, StoreChanged
from policies.state.books import Books
from policies.types import Message


class ShareAsk(Message):
    """What was `served` here of each of `tenants`, in cost units, and nobody else knows. Less than nothing where requests
    cost less than was told."""

    pool: str
    band: str
    tenants: tuple[str, ...]
    served: tuple[int, ...]


class Sharing:
    """The accounts of a replica beside those of others."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._replicas = 1

    def store_changed(self, event: StoreChanged) -> None:
        """There are so many replicas, or nobody knows."""
        self._replicas = max(1, event.replicas)
        self._books.shared = event.up and self._replicas > 1
        if not self._books.shared:  # what is served now is nobody else's concern, nor will it be later
            for pool in self._books.pools.values():
                for share in pool.ranked:
                    share.untold.clear()

    def told(self, event: ServedElsewhere) -> None:
        """Others know what was served here, and this replica what they have."""
        pool = next((pool for pool in self._books.pools.values() if pool.name == event.pool), None)
        share = pool.shares.get(event.band) if pool is not None else None
        if pool is None or share is None:
            return
        for tenant, served in zip(event.tenants, event.served, strict=True):
            share.told(tenant, served)
        costs = zip(event.tenants, event.elsewhere, strict=True)
        for changed in fairness.served_elsewhere(share, costs, self._replicas):
            pool.changed[changed] = None

    def asks(self) -> Iterator[ShareAsk]:
        """What to tell the store, and of whom to hear."""
        if not self._books.shared:
            return
        for pool in list(self._books.pools.values()):
            for share in pool.ranked:
                tenants = tuple(dict.fromkeys((*share.accounts, *share.untold)))
                if tenants:
                    served = tuple(int(share.untold.get(tenant, 0.0)) for tenant in tenants)
                    yield ShareAsk(pool=pool.name, band=share.band.name, tenants=tenants, served=served)
