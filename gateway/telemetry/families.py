"""Every metric Forebay exposes: name, kind, labels, meaning. `docs/metrics.md` is generated from here:

    python -m gateway.telemetry.families > docs/metrics.md

Label values come from the configuration and from closed sets; a model that is not configured is `unknown`, and what
exceeds the number of labels kept is `other`. Nothing a client writes ever becomes a label.
"""

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from gateway.telemetry.histogram import LAG_BOUNDS, REQUEST_BOUNDS, STORE_BOUNDS

Across = Literal["sum", "max", "min"]


class MetricKind(StrEnum):
    """The Prometheus type of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric. `bounds` are set for histograms only. `watched`: read from a live table when rendered, not counted.

    `across`: what the values of several processes make; of counts it is always their sum.
    """

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    text: str
    bounds: tuple[float, ...] = ()
    watched: bool = False
    across: Across = "sum"


def _counter(name: str, labels: str, text: str) -> Family:
    return Family(name=name, kind=MetricKind.COUNTER, labels=tuple(labels.split()), text=text)


def _watched_counter(name: str, labels: str, text: str) -> Family:
    return Family(name=name, kind=MetricKind.COUNTER, labels=tuple(labels.split()), text=text, watched=True)


def _gauge(name: str, labels: str, text: str, across: Across = "sum") -> Family:
    kind = MetricKind.GAUGE
    return Family(name=name, kind=kind, labels=tuple(labels.split()), text=text, watched=True, across=across)


def _histogram(name: str, labels: str, text: str, bounds: tuple[float, ...] = REQUEST_BOUNDS) -> Family:
    return Family(name=name, kind=MetricKind.HISTOGRAM, labels=tuple(labels.split()), text=text, bounds=bounds)


RECEIVED = _counter(
    "forebay_requests_received_total",
    "tenant model class",
    "Requests for a route that reaches engines, from a known tenant. At every instant: received = sum of ended + queued + inflight.",
)
ENDED = _counter(
    "forebay_requests_ended_total",
    "outcome reason tenant model class",
    "Requests that ended: completed, rejected (never queued), expired (queued, then dropped), failed (dispatched, no good end; reason worker_lost: the process died with it), cancelled (the client left; reason is the stage: body, queued, connect, sent, stream).",
)
SLO = _counter(
    "forebay_slo_requests_total",
    "missed tenant model class",
    "Completed streams of a class with an `slo`, by what of it they missed: none, ttft, itl (the mean time per output token), both.",
)
TOKENS = _counter(
    "forebay_tokens_total",
    "kind tenant model class",
    "Tokens by the engines' own usage: prompt (cached ones included), cached, output.",
)
DURATION = _histogram(
    "forebay_request_duration_seconds",
    "class model",
    "Completed requests: first byte of the request to the end of the answer.",
)
TTFT = _histogram(
    "forebay_time_to_first_token_seconds",
    "class model",
    "Streams: first byte of the request to the first token, queueing included.",
)
TPOT = _histogram(
    "forebay_time_per_output_token_seconds",
    "class model",
    "Completed streams of two tokens and more: (end - first token) / (tokens - 1).",
)
QUEUE_TIME = _histogram(
    "forebay_queue_time_seconds",
    "class model",
    "From arrival at the scheduler to the last dispatch, or to the end of a request that was never dispatched.",
)
HTTP_REFUSED = _counter(
    "forebay_http_refused_total", "reason", "Messages refused by HTTP rules before they counted as a request."
)
HTTP_RESPONSES = _counter(
    "forebay_http_responses_total",
    "route status",
    "Answers on the data listener by route and status; 499 = the client left.",
)
BODY_BYTES = _counter(
    "forebay_body_bytes_total", "direction", "Body bytes on the data listener: in (from clients), out (to clients)."
)
ATTEMPTS_STARTED = _counter(
    "forebay_attempts_started_total",
    "",
    "Tries of a request on an endpoint. At every instant: started = sum of attempts + open.",
)
ATTEMPTS = _counter(
    "forebay_attempts_total",
    "result",
    "Tries that ended: connect_failed (head never written), bounced (refused before the first byte), stale_resent (pooled connection was closed, sent again), finished, broken (died after the first byte), aborted (by us).",
)
DISPATCHES_NOTED = _counter(
    "forebay_dispatches_noted_total",
    "pool note",
    "Tries out of the ordinary: borrowed (an idle engine of another pool), warm (waited for an engine that has its prefix), downgraded (waited in a less urgent class).",
)
UPSTREAM_FAILURES = _counter(
    "forebay_upstream_failures_total", "endpoint cause", "Failures of an endpoint to answer well, by cause."
)
LOOP_LAG = _histogram(
    "forebay_event_loop_lag_seconds", "", "How late the event loop runs a timer, sampled 20 times a second.", LAG_BOUNDS
)

AUTH_FAILURES = _watched_counter(
    "forebay_auth_failures_total",
    "cause",
    "Requests whose key was not accepted: missing, malformed, contradicting (two different ones), unknown, blocked, expired, disabled (its tenant). Clients are told the same whatever the cause.",
)
CLASS_CLAMPED = _watched_counter(
    "forebay_class_clamped_total",
    "from to",
    "Requests that asked for a more urgent class than their key may have, by that and by what they got.",
)
CLASS_UNKNOWN = _watched_counter(
    "forebay_class_unknown_total", "", "Requests that asked for a class that does not exist, and got their tenant's."
)

REQUESTS_QUEUED = _gauge("forebay_requests_queued", "", "Requests waiting for a slot.")
REQUESTS_INFLIGHT = _gauge("forebay_requests_inflight", "", "Requests received that have neither ended nor are queued.")
QUEUE_REQUESTS = _gauge("forebay_queue_requests", "pool tenant class", "Requests waiting, by queue.")
QUEUE_BYTES = _gauge("forebay_queue_bytes", "pool tenant class", "Bytes of the bodies that wait, by queue.")
QUEUE_OLDEST = _gauge("forebay_queue_oldest_seconds", "pool tenant class", "Age of the oldest waiting request.", "max")
POOL_SATURATION = _gauge(
    "forebay_pool_saturation",
    "pool",
    "How full a pool's engines are of what they may hold: 0 idle, 1 full. Near 1 whenever anybody waits.",
    "max",
)
ATTEMPTS_OPEN = _gauge("forebay_attempts_open", "", "Tries that have not ended.")
ENDPOINT_UP = _gauge("forebay_endpoint_up", "endpoint", "1 = the endpoint is well, as its probes find.", "min")
ENDPOINT_DRAINED = _gauge(
    "forebay_endpoint_drained",
    "endpoint",
    "1 = an operator has drained it: it gets nothing new, however well it is.",
    "max",
)
ENDPOINT_SEQUENCES = _gauge("forebay_endpoint_sequences", "endpoint", "Sequences outstanding on the endpoint.")
ENDPOINT_PREFILL = _gauge(
    "forebay_endpoint_prefill_tokens", "endpoint", "Prompt tokens outstanding whose prefill is not known to be done."
)
ENDPOINT_KV = _gauge(
    "forebay_endpoint_kv_tokens", "endpoint", "KV-cache tokens reserved for what is outstanding on the endpoint."
)
ENDPOINT_MAX_SEQUENCES = _gauge("forebay_endpoint_max_sequences", "endpoint", "Bound of outstanding sequences.")
ENDPOINT_MAX_PREFILL = _gauge("forebay_endpoint_max_prefill_tokens", "endpoint", "Bound of outstanding prefill tokens.")
PROBES = _watched_counter("forebay_probes_total", "endpoint result", "Health probes: good or failed.")
SCRAPES = _watched_counter(
    "forebay_scrapes_total",
    "endpoint result",
    "Reads of an engine's metrics: good, failed (no answer), invalid (without the figures of its kind of engine), frozen (busy, and no figure moves).",
)
ENDPOINT_STALE = _gauge(
    "forebay_endpoint_stale",
    "endpoint",
    "1 = its metrics have told nothing good for four periods: own counts decide alone.",
    "max",
)
ENGINE_RUNNING = _gauge(
    "forebay_engine_running", "endpoint", "Sequences in the engine's batch, as it says itself.", "max"
)
ENGINE_WAITING = _gauge(
    "forebay_engine_waiting", "endpoint", "Sequences in the engine's own queue, as it says itself.", "max"
)
ENGINE_KV_USAGE = _gauge(
    "forebay_engine_kv_usage", "endpoint", "Share of its KV cache in use, as the engine says itself.", "max"
)
KV_EVENTS = _watched_counter(
    "forebay_kv_events_total",
    "endpoint kind",
    "What an engine published of its KV cache: stored, removed and cleared, other (of no use here), invalid (not understood), restarted (the sequence began again), late (a message that came again).",
)
KV_EVENT_GAPS = _watched_counter(
    "forebay_kv_event_gaps_total", "endpoint", "Times that messages with such events were lost on the way."
)
KV_EVENT_REPLAYS = _watched_counter(
    "forebay_kv_event_replays_total",
    "endpoint result",
    "Times that an engine was asked for lost messages again: whole (all were told again), lost (not all; its cache is taken for empty).",
)
STORE_DEGRADED = _gauge(
    "forebay_store_degraded", "", "1 = the store of several replicas does not answer: `on_store_down` rules.", "max"
)
STORE_REPLICAS = _gauge(
    "forebay_store_replicas", "", "Replicas that live, as the store last said; 0 = not known.", "max"
)
STORE_CALLS = _watched_counter(
    "forebay_store_calls_total", "op result", "Calls to the store (beat, lend, lease, block): good or failed."
)
STORE_SECONDS = _histogram("forebay_store_call_seconds", "", "How long calls to the store took.", STORE_BOUNDS)
STORE_BLOCK = _gauge(
    "forebay_store_block_units", "scope metric", "Of limits, what is set aside for this replica and not spent."
)
STORE_PARKED = _watched_counter(
    "forebay_store_parked_total", "", "Requests that waited for the store to lend more of a limit, at most 50 ms each."
)
RELOADS = _watched_counter(
    "forebay_config_reload_total", "result", "Times the configuration was read again: ok, or error (nothing changed)."
)
RELOAD_FAILED = _gauge(
    "forebay_config_reload_failed",
    "",
    "1 = what the files say now is wrong, and the configuration before is in force.",
    "max",
)
CONFIG = _gauge(
    "forebay_config_info", "checksum", "Always 1. The checksum is the same where the same values are in force.", "max"
)
USAGE_MISSING = _counter(
    "forebay_usage_missing_total", "", "Completed requests of which the engine told no usage: the estimate is charged."
)
QUOTA_RESERVED = _watched_counter(
    "forebay_quota_reserved_units_total",
    "tenant scope metric",
    "Requests (rpm) or cost units held for requests when they came. reserved + extra - refunded - settled = held.",
)
QUOTA_EXTRA = _watched_counter(
    "forebay_quota_extra_units_total", "tenant scope metric", "What requests have used beyond what was held for them."
)
QUOTA_REFUNDED = _watched_counter(
    "forebay_quota_refunded_units_total", "tenant scope metric", "What was held for requests and not used."
)
QUOTA_SETTLED = _watched_counter(
    "forebay_quota_settled_units_total", "tenant scope metric", "What requests that have ended have used."
)
QUOTA_WRITTEN_OFF = _watched_counter(
    "forebay_quota_written_off_units_total", "tenant scope metric", "Debt beyond twice a capacity, forgiven."
)
QUOTA_HELD = _gauge("forebay_quota_held_units", "tenant scope metric", "What is held for requests that have not ended.")
QUOTA_USED = _gauge("forebay_quota_used_units", "tenant scope metric", "What counts against the limit now.", "max")
QUOTA_SOFT = _gauge(
    "forebay_quota_soft",
    "tenant scope metric",
    "Budgets of which as much is used, or held, as their `soft_ratio` says: 1 or 0.",
    "max",
)
QUOTA_DENIED = _watched_counter(
    "forebay_quota_denied_total",
    "tenant scope metric mode",
    "Requests that a limit has refused (enforce), or would have (shadow).",
)
CLIENT_CONNECTIONS = _gauge("forebay_client_connections", "", "Open connections of clients.")
BODY_HELD = _gauge(
    "forebay_body_held_bytes",
    "",
    "Bytes of request bodies in memory, on their way here or waiting; at most `admission.max_queued_bytes`.",
)
UPSTREAM_CONNECTIONS = _gauge(
    "forebay_upstream_connections", "state", "Open connections to endpoints: busy (in use) and idle (pooled)."
)
READY = _gauge("forebay_ready", "", "1 = /readyz answers 200.", "max")
WORKERS = _gauge("forebay_workers", "", "Processes that serve; 1 without `--workers`.")
WORKER_RESTARTS = _watched_counter(
    "forebay_worker_restarts_total", "", "Workers that ended and were started again by their supervisor."
)
LOG_DROPPED = _watched_counter(
    "forebay_log_dropped_total", "log", "Log lines dropped because the reader was too slow: access or events."
)
JOURNAL_DROPPED = _watched_counter(
    "forebay_journal_dropped_total", "", "Journal lines dropped because the disk was full or too slow."
)
TASKS = _gauge("forebay_tasks", "", "Background tasks that have not ended.")
BUILD = _gauge("forebay_build_info", "version", "Always 1.", "max")
START_TIME = _gauge("process_start_time_seconds", "", "When the process started, Unix time.", "min")
CPU = _watched_counter("process_cpu_seconds_total", "", "User and system CPU time of the process.")
MEMORY = _gauge("process_resident_memory_bytes", "", "Resident memory of the process.")
OPEN_FDS = _gauge("process_open_fds", "", "Open file descriptors.")
MAX_FDS = _gauge("process_max_fds", "", "Soft limit of open file descriptors.")

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))


def markdown() -> str:
    """The page docs/metrics.md."""
    rows = [_row(family) for family in FAMILIES]
    return "\n".join([_HEAD, *rows, ""])


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    kind = {"sum": "", "max": ", largest", "min": ", smallest"}[family.across]
    return f"| `{family.name}` | {family.kind}{kind} | {labels} | {family.text} |"


_HEAD = """# Metrics

Generated by `python -m gateway.telemetry.families`; a test compares this page with what the gateway exposes.
Served as Prometheus text (version 0.0.4) at `GET /metrics` of the admin listener.

Label values come from the configuration and from closed sets. A model that is not configured is `unknown`; what exceeds
the number of labels kept is `other`. Nothing a client writes becomes a label. All values of one scrape are of one instant.
With `--workers` they are what all workers have together: counts are added up, and gauges unless a row says `largest` or `smallest`.
Histogram bounds are 1, 1.5, 2, 3, 4, 5 and 7 of every decade.

| name | type | labels | meaning |
|---|---|---|---|"""

if __name__ == "__main__":
    sys.stdout.write(markdown())
