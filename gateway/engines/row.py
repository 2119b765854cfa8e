"""The columns of the engine tables."""

from dataclasses import dataclass

Source = tuple[str, str]  # a metric and the label that holds the number; "": its value does


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Which metrics tell the load and the size of an engine, by full name.

    Each of `running` and `waiting` is a sum of metrics, `kv_usage` a share of 1. `kv_tokens`: alternatives, the best
    first; each is a product of numbers. `block_tokens`: tokens of one block of its KV cache, alternatives as well.
    """

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_usage: str
    kv_tokens: tuple[tuple[Source, ...], ...]
    block_tokens: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of engine server.

    `health_s`: how long its health may take to be told though nothing is wrong; 0: it is told at once. `keepalive_s`: seconds after which it closes an idle connection, None = unknown (`timeouts.upstream_keepalive_s`
    holds then). `salted_routes`: names of the routes on which it takes `cache_salt`; elsewhere the field is not sent.
    `priority`: 1 where it runs the lowest `priority` first, -1 where the highest, 0 where Forebay knows of none. `messages_priority`: the
    header that says it on `/v1/messages`, None where its body does.
    `gauges` None: it has no metrics.
    """

    name: str
    health_path: str
    health_s: float
    keepalive_s: float | None
    salted_routes: frozenset[str]
    priority: int
    messages_priority: str | None
    tokenize_path: str | None
    detokenize_path: str | None
    metrics_path: str | None
    gauges: Gauges | None
