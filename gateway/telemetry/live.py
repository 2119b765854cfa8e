"""Gauges over what the core and the probes know: read at every scrape, never kept beside them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add
from typing import Protocol

from gateway.telemetry import families
from gateway.telemetry.metrics import Metrics, Reading
from policies.state.views import EndpointView, FlowView
from policies.types import RATES


class CallersView(Protocol):
    """What was found out about who asks."""

    @property
    def failures(self) -> Mapping[str, int]: ...
    @property
    def clamped(self) -> Mapping[tuple[str, str], int]: ...
    @property
    def unknown_classes(self) -> int: ...


class ReloadsView(Protocol):
    """How reading new configurations went."""

    @property
    def results(self) -> Mapping[str, int]: ...
    @property
    def failed(self) -> bool: ...


class StoreView(Protocol):
    """How the store of several replicas does."""

    @property
    def degraded(self) -> bool: ...
    @property
    def replicas(self) -> int: ...
    @property
    def calls(self) -> Mapping[tuple[str, str], int]: ...


class LeasingView(Protocol):
    """What is lent to this replica."""

    @property
    def parked_total(self) -> int: ...
    def lent(self) -> Iterable[tuple[tuple[str, str, str, str], int]]: ...


class StandingView(Protocol):
    """What probes have told about one endpoint, as the directory has it."""

    @property
    def up(self) -> bool: ...
    @property
    def drained(self) -> bool: ...
    @property
    def probes_good(self) -> int: ...
    @property
    def probes_failed(self) -> int: ...


class LoadView(Protocol):
    """What an engine says of itself."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float | None: ...


class ReportView(Protocol):
    """What scrapes have found out about one endpoint."""

    @property
    def name(self) -> str: ...
    @property
    def has_metrics(self) -> bool: ...
    @property
    def stale(self) -> bool: ...
    @property
    def load(self) -> LoadView | None: ...
    @property
    def counts(self) -> Mapping[str, int]: ...


class LogView(Protocol):
    """Where lines go."""

    @property
    def dropped(self) -> int: ...


class FeedView(Protocol):
    """What an engine has published of its KV cache."""

    @property
    def endpoint(self) -> str: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def gaps(self) -> int: ...
    @property
    def replays(self) -> Mapping[str, int]: ...


def watch_flows(
    metrics: Metrics, flows: Callable[[], Sequence[FlowView]], now: Callable[[], float] = time.monotonic
) -> None:
    """Length, bytes and oldest age of every queue; `now` is the clock the core is driven by."""

    def reading(value: Callable[[FlowView], float], join: Callable[[float, float], float]) -> Callable[[], Reading]:
        def read() -> Reading:
            made: dict[tuple[str, ...], float] = {}  # several tenants may have one label
            for flow in flows():
                key = (flow.pool, metrics.tenant_label(flow.tenant), flow.band)
                made[key] = join(made.get(key, 0.0), value(flow))
            return list(made.items())

        return read

    metrics.watch(families.QUEUE_REQUESTS, reading(lambda flow: flow.queued, add))
    metrics.watch(families.QUEUE_BYTES, reading(lambda flow: flow.queued_bytes, add))
    metrics.watch(families.QUEUE_OLDEST, reading(lambda flow: now() - flow.oldest_s, max))


def watch_readiness(metrics: Metrics, ready: Callable[[], bool]) -> None:
    """Whether this process serves. A supervisor adds up how many do, and adds how often it has started one again."""
    metrics.watch_value(families.READY, ready)
    metrics.watch_value(families.WORKERS, ready)
    metrics.watch_value(families.WORKER_RESTARTS, lambda: 0)


def watch_upstream(metrics: Metrics, counts: Callable[[], tuple[int, int]]) -> None:
    """Open connections to engines: `counts` gives all and those that are idle."""

    def reading() -> Reading:
        opened, idle = counts()
        return [(("busy",), opened - idle), (("idle",), idle)]

    metrics.watch(families.UPSTREAM_CONNECTIONS, reading)


def watch_logs(metrics: Metrics, logs: Mapping[str, LogView]) -> None:
    """Lines that were never written."""
    metrics.watch(families.LOG_DROPPED, lambda: [((name,), log.dropped) for name, log in logs.items()])


def watch_callers(metrics: Metrics, callers: CallersView) -> None:
    """Bad keys, and classes that were asked for and not given."""
    metrics.watch(families.AUTH_FAILURES, lambda: [((cause,), n) for cause, n in callers.failures.items()])
    metrics.watch(families.CLASS_CLAMPED, lambda: list(callers.clamped.items()))
    metrics.watch_value(families.CLASS_UNKNOWN, lambda: callers.unknown_classes)


def watch_reloads(metrics: Metrics, reloads: ReloadsView, checksum: Callable[[], str]) -> None:
    """Which configuration is in force, and how reading new ones went."""
    metrics.watch(families.RELOADS, lambda: [((result,), count) for result, count in reloads.results.items()])
    metrics.watch_value(families.RELOAD_FAILED, lambda: reloads.failed)
    metrics.watch(families.CONFIG, lambda: [((checksum(),), 1)])


def watch_endpoints(
    metrics: Metrics, endpoints: Callable[[], Sequence[EndpointView]], saturations: Callable[[], Mapping[str, float]]
) -> None:
    """Outstanding work and bounds of every endpoint that is up or still holds work, and how full every pool is."""

    def reading(value: Callable[[EndpointView], float]) -> Callable[[], Reading]:
        return lambda: [((endpoint.name,), value(endpoint)) for endpoint in endpoints()]

    metrics.watch(families.ENDPOINT_SEQUENCES, reading(lambda endpoint: endpoint.sequences))
    metrics.watch(families.ENDPOINT_PREFILL, reading(lambda endpoint: endpoint.prefill_tokens))
    metrics.watch(families.ENDPOINT_KV, reading(lambda endpoint: endpoint.kv_tokens))
    metrics.watch(families.ENDPOINT_MAX_SEQUENCES, reading(lambda endpoint: endpoint.max_seqs))
    metrics.watch(families.ENDPOINT_MAX_PREFILL, reading(lambda endpoint: endpoint.max_prefill_tokens))
    metrics.watch(families.POOL_SATURATION, lambda: [((pool,), full) for pool, full in saturations().items()])


def watch_probes(metrics: Metrics, standings: Callable[[], Iterable[tuple[str, StandingView]]]) -> None:
    """Health of every configured endpoint, and how its probes went."""

    def probes() -> Reading:
        for name, standing in standings():
            yield (name, "good"), standing.probes_good
            yield (name, "failed"), standing.probes_failed

    metrics.watch(families.ENDPOINT_UP, lambda: [((name,), standing.up) for name, standing in standings()])
    metrics.watch(families.ENDPOINT_DRAINED, lambda: [((name,), standing.drained) for name, standing in standings()])
    metrics.watch(families.PROBES, probes)


def watch_engines(metrics: Metrics, reports: Callable[[], Iterable[ReportView]]) -> None:
    """What engines say of themselves, as long as it is not too old, and how asking them went."""

    def reading(value: Callable[[LoadView], float | None]) -> Callable[[], Reading]:
        def read() -> Reading:
            for report in reports():
                found = value(report.load) if report.load is not None else None
                if found is not None:
                    yield (report.name,), found

        return read

    def scrapes() -> Reading:
        for report in reports():
            if report.has_metrics:
                yield from (((report.name, result), count) for result, count in report.counts.items())

    metrics.watch(families.SCRAPES, scrapes)
    metrics.watch(families.ENDPOINT_STALE, lambda: [((r.name,), r.stale) for r in reports() if r.has_metrics])
    metrics.watch(families.ENGINE_RUNNING, reading(lambda load: load.running))
    metrics.watch(families.ENGINE_WAITING, reading(lambda load: load.waiting))
    metrics.watch(families.ENGINE_KV_USAGE, reading(lambda load: load.kv_usage))


def watch_store(metrics: Metrics, store: StoreView | None, leasing: LeasingView) -> None:
    """How the store of several replicas does, and what is lent to this one. None: there is one replica, and no store."""

    def blocks() -> Reading:
        made: dict[tuple[str, ...], float] = {}
        for rule, micros in leasing.lent():
            key = (rule[0], rule[3])
            made[key] = made.get(key, 0.0) + micros / 1e6
        return list(made.items())

    metrics.watch_value(families.STORE_DEGRADED, lambda: store is not None and store.degraded)
    metrics.watch_value(families.STORE_REPLICAS, lambda: store.replicas if store is not None else 0)
    metrics.watch(families.STORE_CALLS, lambda: list(store.calls.items()) if store is not None else [])
    metrics.watch(families.STORE_BLOCK, blocks)
    metrics.watch_value(families.STORE_PARKED, lambda: leasing.parked_total)


def watch_quotas(metrics: Metrics, sums: Callable[[str], Iterable[tuple[tuple[str, str, str], float]]]) -> None:
    """What limits have held, settled and refused; `sums` gives one counter by (tenant, scope, metric)."""

    def reading(name: str) -> Callable[[], Reading]:
        return lambda: sums(name)

    def denied() -> Reading:
        for mode, name in (("enforce", "denied"), ("shadow", "denied_shadow")):
            yield from (((*key, mode), value) for key, value in sums(name))

    def soft() -> Reading:
        return ((key, value) for key, value in sums("soft") if key[2] not in RATES)

    metrics.watch(families.QUOTA_RESERVED, reading("reserved"))
    metrics.watch(families.QUOTA_EXTRA, reading("extra"))
    metrics.watch(families.QUOTA_REFUNDED, reading("refunded"))
    metrics.watch(families.QUOTA_SETTLED, reading("settled"))
    metrics.watch(families.QUOTA_WRITTEN_OFF, reading("written_off"))
    metrics.watch(families.QUOTA_HELD, reading("held"))
    metrics.watch(families.QUOTA_USED, reading("used"))
    metrics.watch(families.QUOTA_SOFT, soft)
    metrics.watch(families.QUOTA_DENIED, denied)


def watch_feeds(metrics: Metrics, feeds: Callable[[], Iterable[FeedView]]) -> None:
    """What engines publish of their KV caches, and what of it was lost."""

    def summed(count: Callable[[FeedView], Mapping[str, int]]) -> Reading:
        totals: Counter[tuple[str, ...]] = Counter()
        for feed in feeds():
            totals.update({(feed.endpoint, kind): told for kind, told in count(feed).items()})
        return totals.items()

    def gaps() -> Reading:
        totals: Counter[tuple[str, ...]] = Counter()
        for feed in feeds():
            totals[(feed.endpoint,)] += feed.gaps
        return totals.items()

    metrics.watch(families.KV_EVENTS, lambda: summed(lambda feed: feed.counts))
    metrics.watch(families.KV_EVENT_GAPS, gaps)
    metrics.watch(families.KV_EVENT_REPLAYS, lambda: summed(lambda feed: feed.replays))
