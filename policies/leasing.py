"""What several replicas of a gateway ask their store for, and who waits meanwhile (tenancy.md 8.1).

A replica spends from blocks that are set aside for it (state/blocks.py). What it wants of the store it says here when it
is asked: more of a block that will soon be spent, back what nobody uses, what is owed. The driver calls the store
beside all requests and tells what came of it by `QuotaGranted`. Before it hands anything back it says so by
`QuotaReturned`, so that nothing is spent that is on its way.

A request that needs more than is here is parked until then, PARK_S at most; it holds up nobody else.
"""

from collections.abc import Iterator
from math import inf

from policies.events import OfStore, QuotaGranted, QuotaReturned, ServedElsewhere, SlotsLeased, StoreChanged
from policies.sharing import Sharing
from policies.state.blocks import EMPTY_S, Block
from policies.state.books import Books
from policies.state.claims import Claim
from policies.state.meters import MICRO, Bucket, Rule, Wall
from policies.state.parked import Parked
from policies.state.queues import PoolQueue
from policies.state.slotleases import SlotLeases
from policies.types import Fleet, InferenceRequest, Message, Settings

PARK_S = 0.05
REFRESH_S = 10.0  # for so long what is known of a budget is not too old
IDLE_S = 1.0  # without demand for so long, and a block goes back
LEAST_TTL_S, BUDGET_TTL_S = 120.0, 2 * 86_400.0  # that a limit nobody uses is kept in the store


class Ask(Message):
    """What is wanted of one limit, in micro-units. `capacity` is in units; `per_minute` 0: a budget for `every` day, week or month, of
    the one that began at `period`. `back` is handed back first, `owed` was used, `have` is kept. Less than `need` is of no use,
    more than `wanted` neither."""

    scope: str
    tenant: str
    part: str
    metric: str
    capacity: int
    per_minute: int
    period: int
    ttl_s: int
    every: str = ""
    back: int = 0
    owed: int = 0
    have: int = 0
    need: int = 0
    wanted: int = 0


class Leasing:
    """The blocks of a replica. `fleet` None: there is no store, and no block. `replicas`: so many live, as far as it is known."""

    def __init__(self, books: Books) -> None:
        self.fleet: Fleet | None = None
        self.parked_total = 0
        self.slots = SlotLeases()
        self.sharing = Sharing(books)
        self._woken: list[PoolQueue] = []  # where somebody waits for a slot that has come
        self._books = books
        self._blocks: dict[Rule, Block] = {}
        self.replicas = 1
        self.down = False
        self._scale = 1.0

    # ---- the settings

    def change(self, settings: Settings) -> None:
        """The settings are these now. Whether there is a store never changes."""
        if self.fleet is None and settings.fleet is not None:
            self.replicas = settings.fleet.replicas
        self.fleet, self._scale = settings.fleet, settings.timer_scale
        self.slots.change(self.fleet.lease_s if self.fleet is not None else 0.0, self._scale)

    def policy(self, settings: Settings, tenant: str) -> str:
        """What holds for a tenant, or for what all share, when the store does not answer. Empty: there is none."""
        if self.fleet is None:
            return ""
        owner = settings.tenants.get(tenant)
        return (owner.on_store_down if owner is not None else "") or self.fleet.on_store_down

    def block(self, rule: Rule, is_budget: bool, wall: Wall) -> Block:
        """The block of a limit that was not used before."""
        made = Block.of(rule, is_budget, wall, self.replicas)
        made.alone = self.down
        self._blocks[rule] = made
        return made

    def forget(self, rule: Rule) -> None:
        """There is no such limit any more."""
        self._blocks.pop(rule, None)

    # ---- who waits

    def park(self, request: InferenceRequest, needs: list[tuple[Block, int]], now: float, due_s: float) -> Parked:
        """Let it wait for these blocks; `due_s` infinite: it has not waited before."""
        if due_s == inf:
            due_s = now + PARK_S * self._scale
            self.parked_total += 1
        parked = self._books.parked[request.id] = Parked(request, needs, due_s)
        self._books.timers.set(parked, due_s)
        return parked

    def turn_away(self, claim: Claim, request: InferenceRequest, now: float, due_s: float) -> bool:
        """It may not wait in its queue, and gives back what was held for it. False: it waits for the store instead,
        which may have the slot that it lacks."""
        claim.refund(now)
        if now >= due_s or not claim.slots_to_come(now):
            return True
        self.park(request, [], now, due_s)
        return False

    def waited(self, claim: Claim, now: float) -> None:
        """It has waited for the store as long as anybody does. Where that has said nothing of a slot that it lacks, this replica has
        its part of them."""
        if claim.slots_to_come(now):
            self._wake(self.slots.go_alone(claim.lacking(), self.replicas, now))

    def leave(self, request_id: str) -> Parked | None:
        """It waits no more, if it did."""
        parked = self._books.parked.pop(request_id, None)
        if parked is not None:
            self._books.timers.cancel(parked)
        return parked

    def leave_all(self) -> list[Parked]:
        """Everybody who waits, and waits no more."""
        return [parked for name in list(self._books.parked) if (parked := self.leave(name)) is not None]

    # ---- what the store has said

    def told(self, event: OfStore, now: float) -> list[Parked]:
        """Take it in. Those who may ask again now wait no more."""
        if isinstance(event, SlotsLeased):
            vain_until_s = now + self.fleet.sync_s if self.fleet is not None and event.count < event.wanted else 0.0
            self._wake(self.slots.granted(event, vain_until_s))
            return self._leave_those_for_slots()
        if isinstance(event, (QuotaReturned, QuotaGranted)):
            block = self._blocks.get(Rule(event.scope, event.tenant, event.part, event.metric))
            if block is None or self.fleet is None:
                return []
            block.mark(now, self.fleet.sync_s)
            if isinstance(event, QuotaReturned):
                block.hand_back(event.amount)
                return []
            return self._granted(block, event, now)
        if isinstance(event, ServedElsewhere):
            self.sharing.told(event)
            return []
        return self._store_changed(event)

    def _store_changed(self, event: StoreChanged) -> list[Parked]:
        self.replicas, self.down = max(1, event.replicas), not event.up
        self.sharing.store_changed(event)
        for block in self._blocks.values():
            block.count(self.replicas)
            if self.down:
                block.go_alone()
        self._wake(self.slots.alone(self.replicas if self.down else 0))
        return self.leave_all() if self.down else []

    def _leave_those_for_slots(self) -> list[Parked]:
        waiting = [name for name, each in self._books.parked.items() if not each.needs]
        return [parked for name in waiting if (parked := self.leave(name)) is not None]

    def wakes(self) -> list[PoolQueue]:
        """Where somebody waits for a slot that has come, since this was last asked."""
        woken, self._woken = self._woken, []
        return woken

    def _wake(self, pools: list[PoolQueue]) -> None:
        """Somebody waits there for a slot, and one has come."""
        self._woken += pools

    def _granted(self, block: Block, event: QuotaGranted, now: float) -> list[Parked]:
        block.look(now)
        block.told_s = now
        block.take_grant(event.granted, event.reported, event.used)
        block.written_off += event.written_off
        if event.wait_s is not None and self.fleet is not None:
            block.empty_until_s = now + max(EMPTY_S * self._scale, min(event.wait_s, self.fleet.sync_s))
        waiting = [name for name, each in self._books.parked.items() if any(need[0] is block for need in each.needs)]
        return [parked for name in waiting if (parked := self.leave(name)) is not None]

    def lent(self) -> Iterator[tuple[Rule, int]]:
        """What of each limit is set aside here and not spent, in micro-units."""
        return ((rule, block.room) for rule, block in self._blocks.items())

    # ---- what is wanted of it

    def asks(self, now: float, *, leaving: bool = False) -> list[Ask]:
        """What to ask the store for, what somebody waits for first. `leaving`: hand back everything."""
        fleet = self.fleet
        if fleet is None:
            return []
        needs: dict[Block, list[int]] = {}
        for parked in self._books.parked.values():
            for block, need in parked.needs:
                needs.setdefault(block, []).append(need)
        urgent = [_ask(block, needs=found, wanted=_soon(block, now, fleet)) for block, found in needs.items()]
        rest = [self._of(block, now, fleet, leaving) for block in self._blocks.values() if block not in needs]
        return [*urgent, *(each for each in rest if each is not None)]

    def _of(self, block: Block, now: float, fleet: Fleet, leaving: bool) -> Ask | None:
        """What is wanted of a limit that nobody waits for."""
        block.look(now)
        if leaving or now - block.asked_s >= IDLE_S * self._scale:
            return _ask(block, keep=False) if block.room or self._told_of(block, now) else None
        soon = _soon(block, now, fleet)
        if 2 * block.room < soon and now >= block.empty_until_s:
            return _ask(block, wanted=soon)
        return _ask(block) if self._told_of(block, now) else None

    def _told_of(self, block: Block, now: float) -> bool:
        """Whether there is something to tell or to hear. What others have used of a budget does not drain: it is asked for
        now and then, so that a replica that is left alone does not take it for unused."""
        return block.owed > 0 or block.alone or (block.is_budget and now - block.told_s >= REFRESH_S * self._scale)


def _soon(block: Block, now: float, fleet: Fleet) -> int:
    """What will be wanted until the next round but one, twice: so that it is there before it is needed."""
    return int(4 * block.demand(now, fleet.sync_s) * fleet.sync_s)


def _ask(block: Block, *, needs: list[int] | None = None, wanted: int = 0, keep: bool = True) -> Ask:
    """Where somebody waits, what is here is no use to them: it goes back, and may come again with more."""
    rule, mirror = block.rule, block.mirror
    keep = keep and not needs
    every = ""
    if isinstance(mirror, Bucket):
        per_minute, ttl_s = mirror.per_minute, max(LEAST_TTL_S, 4 * mirror.capacity / MICRO * 60 / mirror.per_minute)
    else:
        per_minute, ttl_s, every = 0, mirror.left_s + BUDGET_TTL_S, mirror.every
    return Ask(
        scope=rule.scope,
        tenant=rule.tenant,
        part=rule.part,
        metric=rule.metric,
        capacity=block.capacity // MICRO,
        per_minute=per_minute,
        period=block.period,
        ttl_s=int(ttl_s) + 1,
        every=every,
        back=0 if keep else block.room,
        owed=block.owed,
        have=block.room if keep else 0,
        need=needs[0] if needs else 0,
        wanted=min(max(wanted, 2 * sum(needs or ())), block.capacity),
    )
