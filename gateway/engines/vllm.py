"""vLLM 0.32. It closes idle connections after `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`, 5 s when unset."""

from gateway.engines.row import Engine

VLLM = Engine(
    name="vllm",
    health_path="/health",
    keepalive_s=5.0,
    salted_routes=frozenset({"chat", "completions", "responses", "messages"}),
    tokenize_path="/tokenize",
    detokenize_path="/detokenize",
    metrics_path="/metrics",
    metric_prefix="vllm:",
)
