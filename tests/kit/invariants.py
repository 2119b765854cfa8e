"""The conservation invariant (faults.md 1), checked after every fault test: a test that passes and breaks it fails.

C1 every received request is in exactly one place or has ended once; C2 attempts agree with what the engines saw;
C3 no slot is held after quiesce; C4 what limits have held is settled; C6 stored queue bytes are given back; C7 descriptors and tasks are at their baseline;
C9 the log is quiet. C5 needs Redis, C8 what each client and engine saw.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.kit.gateway import Gateway, Metrics
from tests.kit.processes import until_async
from tests.kit.script_engine import ScriptEngine
from tests.kit.sockets import Held, held

RECEIVED = "forebay_requests_received_total"
ENDED = "forebay_requests_ended_total"
QUEUED = "forebay_requests_queued"
INFLIGHT = "forebay_requests_inflight"
STARTED = "forebay_attempts_started_total"
ATTEMPTS = "forebay_attempts_total"
OPEN_ATTEMPTS = "forebay_attempts_open"
UPSTREAM = "forebay_upstream_connections"
TASKS = "forebay_tasks"
BODY_HELD = "forebay_body_held_bytes"
QUIESCE_S = 3.0
DESCRIPTORS_S = 5.0  # a probe opens one for a moment, five times a second at a tenth of the time


class BrokenInvariantError(AssertionError):
    """What does not hold, with the numbers."""


@dataclass(slots=True)
class Invariants:
    """`await begin()` before the test, `await check()` after it. `engines` must be all engines of the gateway."""

    gateway: Gateway
    engines: Sequence[ScriptEngine] = ()
    baseline: Held | None = None
    before: Metrics | None = None
    seen_before: int = 0
    broken: list[str] = field(default_factory=list)

    async def begin(self) -> None:
        await self._quiesce()
        self.baseline = self._held()
        self.before = await self.gateway.metrics()
        self.seen_before = self._seen()

    async def check(self) -> None:
        """Everything that must hold once nothing arrives any more."""
        self.broken = []
        try:
            await self._quiesce()
        except TimeoutError as error:
            self.broken.append(f"C1/C3 not quiet after {QUIESCE_S} s: {error}")
        after = await self.gateway.metrics()
        self.broken += conserved(after)
        self.broken += settled(after)
        await self._slots()
        self._attempts(after)
        await self._descriptors()
        self.broken += [f"C9 noise in the log: {text}" for text in self.gateway.noise()]
        if self.broken:
            raise BrokenInvariantError("\n".join(self.broken))

    async def sample(self) -> None:
        """C1 is exact at every instant, so it may be asked at any time."""
        broken = conserved(await self.gateway.metrics())
        if broken:
            raise BrokenInvariantError("\n".join(broken))

    async def _quiesce(self) -> None:
        async def quiet() -> bool:
            metrics = await self.gateway.metrics()
            return metrics.sum(QUEUED) == 0 and metrics.sum(INFLIGHT) == 0 and metrics.sum(OPEN_ATTEMPTS) == 0

        await until_async(quiet, QUIESCE_S, "queued or inflight is not 0")

    async def _slots(self) -> None:
        """C3 and C6: per endpoint and per flow nothing is held."""
        queues = await self.gateway.admin("/admin/v1/queues")
        self.broken += [
            f"C3 {one['name']} holds {one}" for one in queues["endpoints"] if one["sequences"] or one["prefill_tokens"]
        ]
        self.broken += [f"C6 {one} is still queued" for one in queues["flows"] if one["queued"] or one["queued_bytes"]]

    def _attempts(self, after: Metrics) -> None:
        """C2: attempts - connect_failed - stale_resent <= seen at the engines <= attempts - connect_failed."""
        if not self.engines or self.before is None:
            return
        results = _grown(self.before, after, ATTEMPTS, "result")
        connected = sum(results.values()) - results.get("connect_failed", 0)
        seen = self._seen() - self.seen_before
        if not connected - results.get("stale_resent", 0) <= seen <= connected:
            self.broken.append(f"C2 engines saw {seen} requests, attempts were {results}")

    async def _descriptors(self) -> None:
        """C7, pooled connections aside, with time for closed ones to be noticed."""
        if self.baseline is None:
            return
        want = self.baseline.own
        seen: list[Held] = []

        async def back() -> bool:
            seen.append(self._held())
            return seen[-1].own <= want

        try:
            await until_async(back, DESCRIPTORS_S, "descriptors")
        except TimeoutError:
            least = min(seen, key=lambda one: one.own)
            self.broken.append(f"C7 descriptors never below {least} in {len(seen)} looks, {self.baseline} before")
        await self._connections()

    async def _connections(self) -> None:
        """C7: no connection to an engine is busy, and no task is left over. C6: no body of a request is held."""
        assert self.before is not None
        tasks = self.before.sum(TASKS)
        found: list[float] = []

        async def none() -> bool:
            after = await self.gateway.metrics()
            found[:] = [after.sum(UPSTREAM, state="busy"), after.sum(TASKS), after.sum(BODY_HELD)]
            return found[0] == found[2] == 0 and found[1] <= tasks

        try:
            await until_async(none, 1.0, "connections")
        except TimeoutError:
            self.broken.append(f"C7 busy connections to engines {found[0]}, tasks {found[1]}, {tasks} before")
            self.broken.append(f"C6 bytes of bodies held {found[2]}")

    def _held(self) -> Held:
        ports = frozenset(int(one["url"].rpartition(":")[2]) for one in self.gateway.settings["endpoints"])
        return held(self.gateway.pid, ports, frozenset((self.gateway.port, self.gateway.admin_port)))

    def _seen(self) -> int:
        return sum(len(engine.seen) + engine.forgotten for engine in self.engines)


def conserved(metrics: Metrics) -> list[str]:
    """C1 and the sum of C2, exact at every instant; and no gauge below zero."""
    broken = [f"C3 negative: {key} {value}" for key, value in metrics.samples.items() if value < 0]
    received, ended = metrics.sum(RECEIVED), metrics.sum(ENDED)
    queued, inflight = metrics.sum(QUEUED), metrics.sum(INFLIGHT)
    if received != ended + queued + inflight:
        outcomes = metrics.by(ENDED, "outcome")
        broken.append(f"C1 received {received} != ended {outcomes} + queued {queued} + inflight {inflight}")
    started, tried, still = metrics.sum(STARTED), metrics.sum(ATTEMPTS), metrics.sum(OPEN_ATTEMPTS)
    if started != tried + still:
        broken.append(f"C2 started {started} != ended {metrics.by(ATTEMPTS, 'result')} + open {still}")
    return broken


def settled(metrics: Metrics) -> list[str]:
    """C4 of a quiet gateway: reserved + extra - refunded - settled = held = 0, of every limit."""
    sums: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for (name, labels), value in metrics.samples.items():
        kind = name.removeprefix("forebay_quota_").removesuffix("_total").removesuffix("_units")
        if name.startswith("forebay_quota_") and kind in ("reserved", "extra", "refunded", "settled", "held"):
            sums.setdefault(labels, {})[kind] = value
    return [
        f"C4 {dict(labels)}: {each}"
        for labels, each in sums.items()
        if each["held"] or abs(each["reserved"] + each["extra"] - each["refunded"] - each["settled"]) > 1e-3
    ]


def _grown(before: Metrics, after: Metrics, name: str, label: str) -> dict[str, float]:
    old = before.by(name, label)
    return {key: value - old.get(key, 0.0) for key, value in after.by(name, label).items()}


@asynccontextmanager
async def holding(gateway: Gateway, *engines: ScriptEngine) -> AsyncIterator[Invariants]:
    """`async with holding(gateway, engine):` around the body of a test; the check runs at the end of a good body."""
    invariants = Invariants(gateway, engines)
    await invariants.begin()
    yield invariants
    await invariants.check()


def same_stream(
    engine_events: Sequence[bytes], client_body: bytes, *, stripped: Sequence[bytes] = (), frame: bytes = b""
) -> None:
    """C6 for one stream: client body = engine body - stripped usage event + our frame, byte for byte."""
    want = b"".join(event for event in engine_events if event not in stripped) + frame
    if client_body != want:
        at = next(
            (i for i, (a, b) in enumerate(zip(want, client_body, strict=False)) if a != b),
            min(len(want), len(client_body)),
        )
        raise BrokenInvariantError(
            f"C6 differs at byte {at}: want {want[at : at + 120]!r}, got {client_body[at : at + 120]!r}"
        )
