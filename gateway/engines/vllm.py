"""vLLM 0.32. It closes idle connections after `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`, 5 s when unset."""

from gateway.engines.row import Engine, Gauges

VLLM = Engine(
    name="vllm",
    health_path="/health",
    health_s=0.0,
    keepalive_s=5.0,
    salted_routes=frozenset({"chat", "completions", "responses", "messages"}),
    priority=1,
    messages_priority="x-vllm-priority",
    tokenize_path="/tokenize",
    detokenize_path="/detokenize",
    metrics_path="/metrics",
    gauges=Gauges(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_usage="vllm:kv_cache_usage_perc",
        kv_tokens=(
            (("vllm:cache_config_info", "kv_cache_size_tokens"),),  # blocks x block size is wrong for hybrid models
            (("vllm:cache_config_info", "num_gpu_blocks"), ("vllm:cache_config_info", "block_size")),
        ),
        block_tokens=(("vllm:cache_config_info", "block_size"),),
    ),
)
