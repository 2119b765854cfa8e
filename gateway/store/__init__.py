"""What replicas share, behind a protocol: the store that limits are lent out by (docs/replicas.md).

Without one there is one replica, and its core holds every limit itself: exact, and nothing to ask. `redis.py` is the
other one. Whoever calls a store is no request: a call that is slow or lost holds up nobody (gateway/syncer.py).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from policies.leasing import Ask
from policies.sharing import ShareAsk
from policies.state.slotleases import SlotAsk


class StoreError(Exception):
    """The store did not answer, or not as it should."""


class Beat(NamedTuple):
    """How many replicas live, the store's clock in seconds since 1970, and the keys blocked, or opened again, since the last beat."""

    replicas: int
    time_s: float
    blocked: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()


class Lent(NamedTuple):
    """What became of an `Ask`, in micro-units. `wait_s` None: nothing was missing, or no waiting helps."""

    granted: int
    used: int
    written_off: int
    wait_s: float | None


class Leased(NamedTuple):
    """What became of a `SlotAsk`. `contended`: others want more than they have."""

    slots: int
    contended: bool


class Store(Protocol):
    """Every call raises StoreError; none is repeated."""

    async def beat(self, *, leaving: bool = False) -> Beat:
        """Say that this replica lives, or that it ends."""
        ...

    async def lend(self, asks: Sequence[Ask], replicas: int) -> Sequence[Lent]:
        """Ask for limits of one owner: a tenant, or a model that all share."""
        ...

    async def lease(self, asks: Sequence[SlotAsk], lease_s: float) -> Sequence[Leased]:
        """Ask for slots of one owner."""
        ...

    async def share(self, asks: Sequence[ShareAsk]) -> Sequence[tuple[int, ...]]:
        """Tell what was served here. For each tenant of each ask, what others have served of it since this was asked last,
        in cost units."""
        ...

    async def block(self, keys: Mapping[str, bool]) -> None:
        """Tell every replica that an operator blocks these keys, or (False) no more."""
        ...

    def wait_at_most(self, timeout_s: float, connect_timeout_s: float) -> None:
        """So long for an answer and for a connection, from the next call on."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...
