"""trtllm-serve. Its `/metrics` is JSON that drains a queue when read: only `/prometheus/metrics` may be scraped.
`cache_salt` is known on chat alone; the keep-alive of 5 s is its server's default and not verified."""

from gateway.engines.row import Engine, Gauges

TRTLLM = Engine(
    name="trtllm",
    health_path="/health",
    health_s=0.0,
    keepalive_s=5.0,
    salted_routes=frozenset({"chat"}),
    priority=0,
    messages_priority=None,
    tokenize_path=None,
    detokenize_path=None,
    metrics_path="/prometheus/metrics",
    gauges=Gauges(
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        kv_usage="trtllm_kv_cache_utilization",
        kv_tokens=((("trtllm_kv_cache_max_blocks", ""), ("trtllm_kv_cache_tokens_per_block", "")),),
        block_tokens=(("trtllm_kv_cache_tokens_per_block", ""),),
    ),
)
