"""SGLang. `/health_generate` waits for engine output (a second or more), so `/health` is the probe; metrics need
`--enable-metrics`; the token routes exist in newer versions only."""

from gateway.engines.row import Engine, Gauges

SGLANG = Engine(
    name="sglang",
    health_path="/health",
    keepalive_s=5.0,
    salted_routes=frozenset({"chat", "completions"}),
    tokenize_path="/tokenize",
    detokenize_path="/detokenize",
    metrics_path="/metrics",
    gauges=Gauges(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs"),
        kv_usage="sglang:token_usage",
        kv_tokens=((("sglang:max_total_num_tokens", ""),),),
        block_tokens=("sglang:cache_config_info", "page_size"),
    ),
)
