"""Keeps the core and the store of several replicas in step, beside all requests (tenancy.md 8).

  each sync_s, or as soon as somebody waits:  what the core wants  ->  one call for each owner  ->  events for the core

The one task here makes all calls, one after the other: no request ever waits on one, and none can cut one short. When
calls fail a breaker opens; then the core is told once that it is alone, and the store is tried again ever less often.
With the first good answer every limit that was spent from meanwhile is told before anything else.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from gateway import tasks
from gateway.config.store import Redis
from gateway.dispatcher import Dispatcher
from gateway.store import Beat, Leased, Lent, Store, StoreError
from gateway.store.breaker import Breaker
from gateway.telemetry.log import EventLog
from policies.events import QuotaGranted, QuotaReturned, ServedElsewhere, SlotsLeased, StoreChanged
from policies.leasing import Ask
from policies.sharing import ShareAsk
from policies.state.slotleases import TRUST, SlotAsk

FAILED = object()
A = TypeVar("A", Ask, SlotAsk)
BEAT_S = 1.0  # a blocked key is known everywhere so soon
MOST_AT_ONCE = 64  # limits of one owner in a call: a script holds up everybody else in Redis
OPERATIONS, RESULTS = ("beat", "lend", "lease", "share", "block"), ("good", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a syncer works on. `scale` multiplies fixed times (tests)."""

    store: Store
    dispatcher: Dispatcher
    events: EventLog
    observe: Callable[[float], None]  # how long a call took
    replicated: Callable[[int], None]  # so many replicas there are
    scale: float


class Syncer:
    """`replicas` that live, 0 while nobody has told; `degraded`: the store does not answer."""

    def __init__(self, given: Given) -> None:
        self.replicas = 0
        self.degraded = False
        self.calls = {(operation, result): 0 for operation in OPERATIONS for result in RESULTS}
        self._store, self._dispatcher, self._events = given.store, given.dispatcher, given.events
        self._observe, self._replicated = given.observe, given.replicated
        self._breaker = Breaker(Random(), given.scale)
        self._leasing = given.dispatcher.core.metering.leasing
        self._scale, self._beat_every_s = given.scale, BEAT_S * given.scale
        self._beat_s = 0.0  # the next one
        self.heard: Callable[[Collection[str], Collection[str]], None] = _nobody
        self._untold: dict[str, bool] = {}  # keys, whether they are blocked
        self._wanted = asyncio.Event()
        self._ending = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. Needs a running loop."""
        self._dispatcher.short = self._wanted.set
        self._task = tasks.start(self._run(), "store")

    def change(self, redis: Redis) -> None:
        """Its timeouts are these now. All else of it only a restart changes."""
        self._store.wait_at_most(redis.timeout_s * self._scale, redis.connect_timeout_s * self._scale)

    def tell_of_key(self, key: str, *, blocked: bool) -> None:
        """Tell all replicas that an operator blocks a key, or no more, as soon as the store listens."""
        self._untold[key] = blocked
        self._wanted.set()

    async def close(self) -> None:
        """Hand everything back and say goodbye, if the store listens."""
        self._ending = True
        self._wanted.set()
        if self._task is not None:
            await self._task
        await self._store.close()

    async def _run(self) -> None:
        """Never cancelled: a call that was begun ends by itself, in time."""
        while not self._ending:
            await self._round()
            await self._pause()
        if not self._breaker.open and await self._ask(leaving=True):
            with contextlib.suppress(StoreError):
                await self._store.beat(leaving=True)

    async def _pause(self) -> None:
        """Until the next round, or until somebody waits for one; without the store nobody does."""
        fleet = self._leasing.fleet
        if fleet is None or (self._dispatcher.core.waits_for_store() and not self._breaker.open):
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), fleet.sync_s)

    async def _round(self) -> None:
        self._wanted.clear()
        now = time.monotonic()
        if not self._breaker.lets(now):
            return
        if (now >= self._beat_s or self._breaker.open) and not await self._beat(now):
            return
        if self._untold and not await self._block(dict(self._untold)):
            return
        await self._ask(leaving=False)

    async def _block(self, keys: dict[str, bool]) -> bool:
        if await self._called("block", self._store.block(keys)) is FAILED:
            return False
        self._untold = {key: blocked for key, blocked in self._untold.items() if keys.get(key) is not blocked}
        return True

    async def _ask(self, *, leaving: bool) -> bool:
        """Ask for everything that is wanted."""
        now = time.monotonic()
        slots = list(self._leasing.slots.asks(now, self.replicas, leaving=leaving))
        asks = self._leasing.asks(now, leaving=leaving)
        return await self._lend(asks) and await self._lease(slots) and await self._share()

    async def _beat(self, now: float) -> bool:
        beat = await self._called("beat", self._store.beat())
        if not isinstance(beat, Beat):
            return False
        self._beat_s = now + self._beat_every_s
        self._dispatcher.follow_clock(beat.time_s - time.time())
        if beat.blocked or beat.opened:  # what is to be told is newer
            self.heard(*([key for key in keys if key not in self._untold] for keys in (beat.blocked, beat.opened)))
        if self.degraded or beat.replicas != self.replicas:
            self._tell(up=True, replicas=beat.replicas)
        return True

    async def _lend(self, asks: Iterable[Ask]) -> bool:
        """Ask for everything; as soon as one call fails the rest waits for the next round."""
        for group in _by_owner(asks):
            for ask in group:
                if ask.back:
                    self._dispatcher.handle(_returned(ask))
            lent = await self._called("lend", self._store.lend(group, max(1, self.replicas)))
            if not isinstance(lent, Sequence):
                return False
            for ask, each in zip(group, lent, strict=True):
                self._dispatcher.handle(_granted(ask, each))
        return True

    async def _lease(self, asks: Iterable[SlotAsk]) -> bool:
        fleet = self._leasing.fleet
        for group in _by_owner(asks):
            lease_s, sent_s = fleet.lease_s if fleet is not None else 0.0, time.monotonic()
            leased = await self._called("lease", self._store.lease(group, lease_s))
            if not isinstance(leased, Sequence):
                return False
            for ask, each in zip(group, leased, strict=True):
                self._dispatcher.handle(_leased(ask, each, sent_s + TRUST * lease_s))
        return True

    async def _share(self) -> bool:
        """Tell what was served here, and hear what others have, of all classes in one call."""
        asks = list(self._leasing.sharing.asks())
        if not asks:
            return True
        elsewhere = await self._called("share", self._store.share(asks))
        if not isinstance(elsewhere, Sequence):
            return False
        for ask, each in zip(asks, elsewhere, strict=True):
            self._dispatcher.handle(_served(ask, each))
        return True

    async def _called(self, operation: str, call: Awaitable[object]) -> object:
        """What a call gives, or FAILED."""
        began_s = time.monotonic()
        try:
            found = await call
        except StoreError as error:
            self._failed(operation, error)
            return FAILED
        finally:
            self._observe(time.monotonic() - began_s)
        self.calls[operation, "good"] += 1
        self._breaker.succeeded()
        return found

    def _failed(self, operation: str, error: StoreError) -> None:
        self.calls[operation, "failed"] += 1
        self._breaker.failed(time.monotonic())
        if self._breaker.open and not self.degraded:
            self._tell(up=False, replicas=self.replicas, cause=str(error))

    def _tell(self, *, up: bool, replicas: int, cause: str = "") -> None:
        """The core, and once for each change the log."""
        changed = self.degraded is up
        self.degraded, self.replicas = not up, replicas
        fleet = self._leasing.fleet
        known = replicas or (fleet.replicas if fleet is not None else 1)
        self._dispatcher.handle(StoreChanged(up=up, replicas=known))
        self._replicated(known)
        if not up:
            self._events.warning("store lost", cause=cause, replicas=known)
        elif changed:
            self._events.info("store back", replicas=known)


def _nobody(blocked: Collection[str], opened: Collection[str]) -> None:
    """Nobody wants to know which keys are blocked."""


def _leased(ask: SlotAsk, leased: Leased, until_s: float) -> SlotsLeased:
    return SlotsLeased(
        scope=ask.scope,
        tenant=ask.tenant,
        part=ask.part,
        count=leased.slots,
        contended=leased.contended,
        until_s=until_s,
        wanted=ask.want,
    )


def _served(ask: ShareAsk, elsewhere: tuple[int, ...]) -> ServedElsewhere:
    return ServedElsewhere(pool=ask.pool, band=ask.band, tenants=ask.tenants, served=ask.served, elsewhere=elsewhere)


def _by_owner(asks: Iterable[A]) -> Iterator[list[A]]:
    """Limits of one owner go in one call; owners in the order in which they come, at most MOST_AT_ONCE limits a call."""
    groups: dict[tuple[str, str], list[A]] = {}
    for ask in asks:
        groups.setdefault((ask.tenant, "" if ask.tenant else ask.part), []).append(ask)
    for group in groups.values():
        for at in range(0, len(group), MOST_AT_ONCE):
            yield group[at : at + MOST_AT_ONCE]


def _returned(ask: Ask) -> QuotaReturned:
    return QuotaReturned(scope=ask.scope, tenant=ask.tenant, part=ask.part, metric=ask.metric, amount=ask.back)


def _granted(ask: Ask, lent: Lent) -> QuotaGranted:
    return QuotaGranted(
        scope=ask.scope,
        tenant=ask.tenant,
        part=ask.part,
        metric=ask.metric,
        granted=lent.granted,
        reported=ask.owed,
        used=lent.used,
        written_off=lent.written_off,
        wait_s=lent.wait_s,
    )
