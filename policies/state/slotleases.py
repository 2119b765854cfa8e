"""Slots that several replicas share: this one runs as many as were leased to it (tenancy.md 8.3).

A lease is a number of slots until a moment. It holds what runs here and a few spare ones, is renewed three times before
it ends, and shrinks when others want more and this replica has more than its part. What runs is never cut: it counts
in the store as long as it runs. A replica that cannot renew stops using its lease before the store gives it away.
"""

from collections.abc import Collection, Iterator

from policies.events import SlotsLeased
from policies.state.claims import Hurry, Slots
from policies.state.queues import PoolQueue
from policies.types import Message

SCARCE_S = 1.0  # who has half of its part and more asks that often whether others want them
IDLE_S = 1.0  # spare slots that nobody took for so long go back
RENEWALS = 3
TRUST = 5 / 6  # of a lease, from the moment its renewal was sent

Key = tuple[str, str, str]  # scope, tenant, part


class SlotAsk(Message):
    """What is wanted of one limit: `want` slots of `cap`, of which `used` run here."""

    scope: str
    tenant: str
    part: str
    cap: int
    want: int
    used: int


class Lease:
    """Of one limit. `contended`: others want more than they have. `share`: replicas among which these slots are divided until the
    store says something of them; 0: it has."""

    __slots__ = ("asked_s", "busy_s", "contended", "count", "share", "slots", "until_s", "wanted")

    def __init__(self) -> None:
        self.slots: Slots | None = None
        self.count = 0
        self.wanted = self.share = 0
        self.contended = False
        self.asked_s = self.busy_s = self.until_s = 0.0


class SlotLeases:
    """All leases of a replica. `lease_s` 0: slots are not shared."""

    def __init__(self) -> None:
        self.lease_s = 0.0
        self.hurry = Hurry()
        self._leases: dict[Key, Lease] = {}
        self._share = 0  # replicas among which slots are divided while the store does not answer; 0: it does
        self._scale = 1.0

    def change(self, lease_s: float, scale: float) -> None:
        """The settings are these now."""
        self.lease_s, self._scale = lease_s, scale

    def drop(self, key: Key) -> None:
        """Its slots are no more, or are handed in anew."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.slots = None

    def take(self, key: Key, slots: Slots) -> None:
        """These slots are shared."""
        lease = self._leases.get(key)
        if lease is None or (lease.slots is None and not lease.count):  # the next asking would have forgotten it
            lease = self._leases[key] = Lease()
        lease.slots, slots.hurry = slots, self.hurry
        self._bound(lease)

    # ---- what the store has said

    def granted(self, event: SlotsLeased, vain_until_s: float) -> list[PoolQueue]:
        """So many it has until then; until the next round it is vain to ask for more, if any. Where somebody has waited for more."""
        lease = self._leases.get((event.scope, event.tenant, event.part))
        if lease is None:
            return []
        lease.count, lease.contended, lease.until_s, lease.share = event.count, event.contended, event.until_s, 0
        if lease.slots is not None:
            lease.slots.missed = 0
            lease.slots.vain_until_s = vain_until_s
            lease.slots.hurry = None if vain_until_s else self.hurry
        return self._bound(lease)

    def alone(self, replicas: int) -> list[PoolQueue]:
        """The store does not answer, and so many replicas divide all slots; 0: it does again."""
        self._share = replicas
        return [pool for lease in self._leases.values() for pool in self._bound(lease)]

    def go_alone(self, lacking: Collection[Slots], replicas: int, now: float) -> list[PoolQueue]:
        """The store has said nothing of these for as long as anybody waits for it: they are divided, until it does. What it has said
        and what is still in force stays so. Where somebody has waited for more."""
        woken: list[PoolQueue] = []
        for lease in self._leases.values():
            if lease.slots in lacking and lease.until_s <= now:
                lease.share = replicas
                woken += self._bound(lease)
        return woken

    def expire(self, now: float) -> None:
        """Leases that were not renewed in time are no longer used."""
        for lease in self._leases.values():
            if lease.count and lease.until_s <= now:
                lease.count = 0
                self._bound(lease)

    def _bound(self, lease: Lease) -> list[PoolQueue]:
        slots = lease.slots
        if slots is None:
            return []
        before, whole, share = slots.cap, slots.whole, self._share or lease.share
        slots.cap = max(1, whole // share) if share else min(lease.count, whole)
        return slots.unblock() if slots.cap > before else []

    # ---- what is wanted of it

    def asks(self, now: float, replicas: int, *, leaving: bool = False) -> Iterator[SlotAsk]:
        """What to ask the store for, as far as anything changed or is due."""
        self.hurry.wanted = False
        for key, lease in list(self._leases.items()):
            if lease.slots is not None:
                lease.slots.hurry = self.hurry
            ask = self._ask(key, lease, now, 0 if leaving else max(1, replicas))
            if ask is not None:
                lease.asked_s, lease.wanted = now, ask.want
                yield ask
            elif lease.slots is None and not lease.count:
                del self._leases[key]

    def _ask(self, key: Key, lease: Lease, now: float, replicas: int) -> SlotAsk | None:
        slots = lease.slots
        used = slots.used if slots is not None else 0
        whole = slots.whole if slots is not None else 0
        missed = max(slots.missed, bool(slots.blocked)) if slots is not None else 0
        spare = max(1, whole // (4 * replicas)) if replicas and whole else 0
        if used or missed:
            lease.busy_s = now
        idle = not used and now - lease.busy_s >= IDLE_S * self._scale
        want = used if idle or not replicas else min(whole, used + spare + missed)
        if want == lease.count == 0:
            return None
        scarce = whole and lease.count * 2 * replicas > whole  # others may want them
        every_s = self.lease_s / RENEWALS
        due = now - lease.asked_s >= (min(every_s, SCARCE_S * self._scale) if scarce else every_s)
        less = want < lease.count - spare or (idle and lease.count > want)
        more = want > lease.count and (missed > 0 or want != lease.wanted)
        if not (due or more or less or lease.contended or not replicas):
            return None
        return SlotAsk(scope=key[0], tenant=key[1], part=key[2], cap=whole, want=want, used=used)
