"""SGLang. `/health_generate` waits for engine output (a second or more), so `/health` is the probe; metrics need
`--enable-metrics`; the token routes exist in newer versions only."""

from gateway.engines.row import Engine

SGLANG = Engine(
    name="sglang",
    health_path="/health",
    keepalive_s=5.0,
    salted_routes=frozenset({"chat", "completions"}),
    tokenize_path="/tokenize",
    detokenize_path="/detokenize",
    metrics_path="/metrics",
    metric_prefix="sglang:",
)
