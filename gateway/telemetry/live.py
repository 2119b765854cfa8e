"""Gauges over what the core and the probes know: read at every scrape, never kept beside them."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gateway.telemetry import families
from gateway.telemetry.metrics import Metrics, Reading
from policies.state.views import EndpointView, FlowView


class StandingView(Protocol):
    """What probes have told about one endpoint, as the directory has it."""

    @property
    def up(self) -> bool: ...
    @property
    def probes_good(self) -> int: ...
    @property
    def probes_failed(self) -> int: ...


def watch_flows(
    metrics: Metrics, flows: Callable[[], Sequence[FlowView]], now: Callable[[], float] = time.monotonic
) -> None:
    """Length, bytes and oldest age of every queue; `now` is the clock the core is driven by."""

    def reading(value: Callable[[FlowView], float]) -> Callable[[], Reading]:
        return lambda: [((flow.pool, flow.tenant, flow.band), value(flow)) for flow in flows()]

    metrics.watch(families.QUEUE_REQUESTS, reading(lambda flow: flow.queued))
    metrics.watch(families.QUEUE_BYTES, reading(lambda flow: flow.queued_bytes))
    metrics.watch(families.QUEUE_OLDEST, reading(lambda flow: max(0.0, now() - flow.oldest_s)))


def watch_endpoints(metrics: Metrics, endpoints: Callable[[], Sequence[EndpointView]]) -> None:
    """Outstanding work and bounds of every endpoint that is up or still holds work."""

    def reading(value: Callable[[EndpointView], float]) -> Callable[[], Reading]:
        return lambda: [((endpoint.name,), value(endpoint)) for endpoint in endpoints()]

    metrics.watch(families.ENDPOINT_SEQUENCES, reading(lambda endpoint: endpoint.sequences))
    metrics.watch(families.ENDPOINT_PREFILL, reading(lambda endpoint: endpoint.prefill_tokens))
    metrics.watch(families.ENDPOINT_KV, reading(lambda endpoint: endpoint.kv_tokens))
    metrics.watch(families.ENDPOINT_MAX_SEQUENCES, reading(lambda endpoint: endpoint.max_seqs))
    metrics.watch(families.ENDPOINT_MAX_PREFILL, reading(lambda endpoint: endpoint.max_prefill_tokens))


def watch_probes(metrics: Metrics, standings: Callable[[], Iterable[tuple[str, StandingView]]]) -> None:
    """Health of every configured endpoint, and how its probes went."""

    def probes() -> Reading:
        for name, standing in standings():
            yield (name, "good"), standing.probes_good
            yield (name, "failed"), standing.probes_failed

    metrics.watch(families.ENDPOINT_UP, lambda: [((name,), standing.up) for name, standing in standings()])
    metrics.watch(families.PROBES, probes)
