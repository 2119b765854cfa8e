"""trtllm-serve. Its `/metrics` is JSON that drains a queue when read: only `/prometheus/metrics` may be scraped.
`cache_salt` is known on chat alone; the keep-alive of 5 s is its server's default and not verified."""

from gateway.engines.row import Engine

TRTLLM = Engine(
    name="trtllm",
    health_path="/health",
    keepalive_s=5.0,
    salted_routes=frozenset({"chat"}),
    tokenize_path=None,
    detokenize_path=None,
    metrics_path="/prometheus/metrics",
    metric_prefix="trtllm_",
)
