"""The columns of the engine tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of engine server.

    `keepalive_s`: seconds after which it closes an idle connection, None = unknown (`timeouts.upstream_keepalive_s`
    holds then). `salted_routes`: names of the routes on which it takes `cache_salt`; elsewhere the field is not sent.
    `metric_prefix`: how its metric names begin, "" = it has no metrics.
    """

    name: str
    health_path: str
    keepalive_s: float | None
    salted_routes: frozenset[str]
    tokenize_path: str | None
    detokenize_path: str | None
    metrics_path: str | None
    metric_prefix: str
