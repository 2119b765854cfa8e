"""The store in Redis: a few scripts, each over keys of one hash tag, so that Redis Cluster takes them too.

Scripts go by their digest, and whole where Redis does not know them (after a restart, a flush, a failover); SCRIPT LOAD
is never used, proxies refuse it. No call is repeated and none is cancelled by whoever waits for it. A call that is cut
short takes its connection with it, so that no reply is ever read by another call. So does one that is refused: its server may be
a replica since a failover that has kept connections open, and only a new one leads to the other. All times are Redis's own.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

from gateway.store import Beat, Leased, Lent, StoreError
from policies.leasing import Ask
from policies.sharing import ShareAsk
from policies.state.meters import MICRO
from policies.state.slotleases import SlotAsk

BLOCKED_S = 30 * 86_400  # a blocked key is kept, tenancy.md 10
OPENED = "!"  # before the id of a key that its file has opened again; no id has it
OVERLAP_US = 60_000_000  # by so much a failover may set the clock back
ALIVE_S = 10.0  # a replica that says nothing for so long is none
SERVED_S = 600  # what was served is kept for so long


class Script:
    """A script and its digest."""

    def __init__(self, name: str) -> None:
        self.text = Path(__file__).with_name(name).read_text()
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


LEND, SLOTS, SHARE = Script("lend.lua"), Script("slots.lua"), Script("share.lua")
BEAT, BLOCK = Script("beat.lua"), Script("block.lua")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the store is, and how long a call may take. `cluster`: it is one of the nodes of a Redis Cluster. `prefix` of its
    keys; `scale` multiplies fixed times (tests)."""

    url: str
    cluster: bool = False
    prefix: str
    timeout_s: float
    connect_timeout_s: float
    scale: float = 1.0

    def client(self) -> Redis | RedisCluster:
        """Connections to it."""
        return (RedisCluster if self.cluster else Redis).from_url(
            self.url,
            socket_timeout=self.timeout_s,
            socket_connect_timeout=self.connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
        )


class _Served(NamedTuple):
    """What of each tenant was served since a moment, in cost units, as it was told last."""

    since: bytes
    totals: dict[str, int]


class RedisStore:
    """One replica's connection to what all share. `name` is the replica's, different from all others'."""

    def __init__(self, place: Place, name: str) -> None:
        self._name, self._prefix = name, place.prefix
        self._alive_ms = max(1, round(ALIVE_S * place.scale * 1000))
        self._blocked = f"{place.prefix}:{{fleet}}:blocked"
        self._heard_us = 0  # of keys that were blocked before, it knows
        self._known: dict[str, tuple[int, int, int]] = {}  # by key: what was used, when (Redis's µs), in which period
        self._served: dict[str, _Served] = {}  # by key
        self._place = place
        self._reached: Place | None = place  # what the client was made for; None: it is not to be used again
        self._client = place.client()

    def wait_at_most(self, timeout_s: float, connect_timeout_s: float) -> None:
        """So long for an answer and for a connection, from the next call on: that makes new connections."""
        self._place = replace(self._place, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)

    async def beat(self, *, leaving: bool = False) -> Beat:
        """Say that this replica lives, or that it ends."""
        arguments = (self._name, self._alive_ms, 0 if leaving else 1, self._heard_us, BLOCKED_S)
        keys = [f"{self._prefix}:{{fleet}}:replicas", self._blocked]
        replicas, time_us, *found = await self._run(BEAT, keys, arguments)
        self._heard_us = int(time_us) - OVERLAP_US
        told = [key.decode() for key in found]
        blocked = tuple(key for key in told if not key.startswith(OPENED))
        opened = tuple(key.removeprefix(OPENED) for key in told if key.startswith(OPENED))
        return Beat(int(replicas), int(time_us) / MICRO, blocked, opened)

    async def block(self, keys: Mapping[str, bool]) -> None:
        """Tell every replica that an operator blocks these keys, or no more."""
        pairs = [(key, OPENED + key) if blocked else (OPENED + key, key) for key, blocked in keys.items()]
        await self._run(BLOCK, [self._blocked], [BLOCKED_S, *chain(*pairs)])

    async def lend(self, asks: Sequence[Ask], replicas: int) -> Sequence[Lent]:
        """Ask for limits of one owner."""
        keys = [key_of(self._prefix, ask) for ask in asks]
        arguments = [replicas]
        for key, ask in zip(keys, asks, strict=True):
            arguments += self._numbers(key, ask)
        answer = [int(number) for number in await self._run(LEND, keys, arguments)]
        time_us = answer.pop()
        lent = list(_lent(answer))
        for key, ask, each in zip(keys, asks, lent, strict=True):
            self._known[key] = (each.used, time_us, ask.period)
        return lent

    async def lease(self, asks: Sequence[SlotAsk], lease_s: float) -> Sequence[Leased]:
        """Ask for slots of one owner."""
        keys = [slots_key(self._prefix, ask) for ask in asks]
        numbers = [number for ask in asks for number in (ask.cap, ask.want, ask.used)]
        found = await self._run(SLOTS, keys, [self._name, max(1, round(lease_s * 1000)), *numbers])
        return [Leased(int(found[at]), bool(found[at + 1])) for at in range(0, len(found), 2)]

    async def share(self, asks: Sequence[ShareAsk]) -> Sequence[tuple[int, ...]]:
        """Tell what was served here, and hear what others have."""
        keys = [f"{self._prefix}:{{fleet}}:f:{ask.pool}:{ask.band}" for ask in asks]
        arguments: list[str | int] = [SERVED_S]
        for ask in asks:
            arguments.append(len(ask.tenants))
            for tenant, served in zip(ask.tenants, ask.served, strict=True):
                arguments += (tenant, served)
        answer = iter(await self._run(SHARE, keys, arguments))
        return [tuple(self._elsewhere(key, ask, answer)) for key, ask in zip(keys, asks, strict=True)]

    def _elsewhere(self, key: str, ask: ShareAsk, answer: Iterator[Any]) -> Iterator[int]:
        since, known = next(answer), self._served.get(key)
        if known is None or known.since != since:  # whatever it was, it says nothing about now
            known = self._served[key] = _Served(since, {})
        totals = known.totals
        for tenant, served in zip(ask.tenants, ask.served, strict=True):
            total = next(answer)
            yield total - served - totals.get(tenant, total - served)
            totals[tenant] = total

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    def _numbers(self, key: str, ask: Ask) -> list[int]:
        used, time_us, period = self._known.get(key, (0, 0, ask.period))
        if period != ask.period:
            used = time_us = 0
        amounts = (ask.back, ask.owed, ask.have, ask.need, ask.wanted, used)
        pairs = [part for amount in amounts for part in divmod(amount, MICRO)]
        return [ask.capacity, ask.per_minute, ask.period, ask.ttl_s, *pairs, time_us]

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
        try:
            if self._place != self._reached:
                before, self._client, self._reached = self._client, self._place.client(), self._place
                await before.aclose()
            try:
                found = await self._client.evalsha(script.digest, len(keys), *keys, *arguments)
            except NoScriptError:
                found = await self._client.eval(script.text, len(keys), *keys, *arguments)
        except (RedisError, RedisClusterException, OSError, TimeoutError, RuntimeError) as error:
            if isinstance(error, ResponseError):
                self._reached = None
            # RuntimeError: uvloop's word for a connection that was reset between its opening and the first write.
            raise StoreError(f"{type(error).__name__}: {error}") from error
        return list(found)


def key_of(prefix: str, ask: Ask) -> str:
    """The key of a limit. Budgets of other periods are others: which period is the later one cannot be told between them."""
    return (
        f"{_of_owner(prefix, ask)}:q:{'.'.join(part for part in (ask.scope, ask.part, ask.metric, ask.every) if part)}"
    )


def slots_key(prefix: str, ask: SlotAsk) -> str:
    """The key of slots."""
    return f"{_of_owner(prefix, ask)}:s:{'.'.join(part for part in (ask.scope, ask.part) if part)}"


def _of_owner(prefix: str, ask: Ask | SlotAsk) -> str:
    """How all keys of one owner begin: what stands between the first braces decides where in a cluster they are."""
    owner = f"t:{ask.tenant}" if ask.tenant else f"m:{ask.part}"
    return f"{prefix}:{{{owner}}}"


def _lent(numbers: Sequence[int]) -> Iterator[Lent]:
    for at in range(0, len(numbers), 7):
        each = numbers[at : at + 7]
        wait_us = each[4]
        yield Lent(
            granted=each[0] * MICRO + each[1],
            used=each[2] * MICRO + each[3],
            written_off=each[5] * MICRO + each[6],
            wait_s=wait_us / MICRO if wait_us >= 0 else None,
        )
