"""SGLang. Its health waits for a token that the engine gives out, looking once a second and giving up after 20 s
(`SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION`, on by default), and while it prefills a long prompt there is none: three probes of
10 s are the half minute without a byte that engines.md 8 takes for a hang. Metrics need `--enable-metrics`; from 0.5.11 on the page
size is a gauge. The token routes exist in newer versions only."""

from gateway.engines.row import Engine, Gauges

SGLANG = Engine(
    name="sglang",
    health_path="/health",
    health_s=10.0,
    keepalive_s=5.0,
    salted_routes=frozenset({"chat", "completions"}),
    priority=-1,
    messages_priority=None,
    tokenize_path="/tokenize",
    detokenize_path="/detokenize",
    metrics_path="/metrics",
    gauges=Gauges(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs"),
        kv_usage="sglang:token_usage",
        kv_tokens=((("sglang:max_total_num_tokens", ""),),),
        block_tokens=(("sglang:page_size", ""), ("sglang:cache_config_info", "page_size")),
    ),
)
