"""Any other server that speaks the OpenAI dialect (DeepSpeed-MII and others): nothing is taken for granted."""

from gateway.engines.row import Engine

OPENAI = Engine(
    name="openai",
    health_path="/health",
    health_s=0.0,
    keepalive_s=None,
    salted_routes=frozenset(),
    priority=0,
    messages_priority=None,
    tokenize_path=None,
    detokenize_path=None,
    metrics_path=None,
    gauges=None,
)
