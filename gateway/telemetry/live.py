"""Gauges over what the core holds: read from its views at every scrape, never kept beside them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.telemetry import families
from gateway.telemetry.metrics import Metrics, Reading


class TotalsView(Protocol):
    """Counts of requests in the core, as `policies.core.Totals` has them."""

    @property
    def received(self) -> int: ...
    @property
    def completed(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def expired(self) -> int: ...
    @property
    def cancelled(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def inflight(self) -> int: ...


class FlowView(Protocol):
    """The queue of one (pool, tenant, class), as `policies.core.FlowView` has it."""

    @property
    def pool(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def band(self) -> str: ...
    @property
    def queued(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def oldest_s(self) -> float: ...


class EndpointView(Protocol):
    """What is outstanding on an endpoint and its bounds, as `policies.core.EndpointView` has it."""

    @property
    def name(self) -> str: ...
    @property
    def up(self) -> bool: ...
    @property
    def sequences(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def max_seqs(self) -> int: ...
    @property
    def max_prefill_tokens(self) -> int: ...


def watch_flows(metrics: Metrics, flows: Callable[[], Sequence[FlowView]]) -> None:
    """Length, bytes and oldest age of every queue."""

    def reading(value: Callable[[FlowView], float]) -> Callable[[], Reading]:
        return lambda: [((flow.pool, flow.tenant, flow.band), value(flow)) for flow in flows()]

    metrics.watch(families.QUEUE_REQUESTS, reading(lambda flow: flow.queued))
    metrics.watch(families.QUEUE_BYTES, reading(lambda flow: flow.queued_bytes))
    metrics.watch(families.QUEUE_OLDEST, reading(lambda flow: flow.oldest_s))


def watch_endpoints(metrics: Metrics, endpoints: Callable[[], Sequence[EndpointView]]) -> None:
    """Health, outstanding work and bounds of every endpoint."""

    def reading(value: Callable[[EndpointView], float]) -> Callable[[], Reading]:
        return lambda: [((endpoint.name,), value(endpoint)) for endpoint in endpoints()]

    metrics.watch(families.ENDPOINT_UP, reading(lambda endpoint: endpoint.up))
    metrics.watch(families.ENDPOINT_SEQUENCES, reading(lambda endpoint: endpoint.sequences))
    metrics.watch(families.ENDPOINT_PREFILL, reading(lambda endpoint: endpoint.prefill_tokens))
    metrics.watch(families.ENDPOINT_MAX_SEQUENCES, reading(lambda endpoint: endpoint.max_seqs))
    metrics.watch(families.ENDPOINT_MAX_PREFILL, reading(lambda endpoint: endpoint.max_prefill_tokens))
