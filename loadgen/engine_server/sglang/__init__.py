"""SGLang 0.5.10 (engines.md)."""

from loadgen.engine_server.dialect import Dialect
from loadgen.engine_server.sglang import ask
from loadgen.engine_server.sglang.inside import kv_batch, victim
from loadgen.engine_server.sglang.metrics import SglangMetrics
from loadgen.engine_server.sglang.probes import SglangProbes
from loadgen.engine_server.sglang.shapes import Chat, Completions, Generate

SGLANG = Dialect(
    name="sglang",
    routes={b"/v1/chat/completions": "chat", b"/v1/completions": "completions", b"/generate": "generate"},
    shapes={"chat": Chat, "completions": Completions, "generate": Generate},
    texts={},
    read=ask.read,
    room=ask.room,
    error_body=ask.error_body,
    error_event=ask.error_event,
    full=ask.full,
    victim=victim,
    needs_key=ask.needs_key,
    abort_lag_s=ask.abort_lag_s,
    probes=SglangProbes,
    metrics=SglangMetrics,
    kv_batch=kv_batch,
    reads_headers=False,
    knows_models=False,
    head_at_once=False,
    empties_itself=False,
    ready="The server is fired up and ready to roll!",
)
