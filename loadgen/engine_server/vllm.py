"""vLLM 0.32 (engines.md)."""

from loadgen.engine_server import answer, ask, texts
from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.dialect import Dialect
from loadgen.engine_server.kv_events import vllm_batch
from loadgen.engine_server.messages import Messages
from loadgen.engine_server.metrics import EngineMetrics
from loadgen.engine_server.pooled import Embeddings, Rerank, Score, as_completion
from loadgen.engine_server.probes import Probes
from loadgen.engine_server.responses import Responses, as_chat
from loadgen.engine_server.shapes import Chat, Completions, event_of

POOLED = {"embeddings": Embeddings, "rerank": Rerank, "score": Score}
KEYED = (b"/v1", b"/v2", b"/inference", b"/cohere")  # all else stays open (engines.md 1)


def _read(route: str, body: bytes, markers: bool) -> Ask:
    data = ask.decoded(body)
    if route in POOLED:
        made = ask.from_fields("completions", as_completion(route, data), markers=False)
        made.route, made.fields = route, data
        return made
    return ask.from_fields(route, as_chat(data) if route == "responses" else data, markers)


def _error_event(refusal: Refusal) -> bytes:
    return event_of({"error": refusal.detail()})


def _full(reason: str) -> Refusal:
    return Refusal(503, f"The request queue is full ({reason}).", "Service Unavailable")


VLLM = Dialect(
    name="vllm",
    routes={
        b"/v1/chat/completions": "chat",
        b"/v1/completions": "completions",
        b"/v1/messages": "messages",
        b"/v1/responses": "responses",
        b"/v1/embeddings": "embeddings",
        b"/v1/rerank": "rerank",
        b"/v1/score": "score",
    },
    shapes={"chat": Chat, "completions": Completions, "messages": Messages, "responses": Responses, **POOLED},
    texts={
        b"/tokenize": texts.tokenize,
        b"/detokenize": texts.detokenize,
        b"/v1/messages/count_tokens": texts.count_tokens,
    },
    read=_read,
    room=answer.room,
    error_body=Refusal.body,
    error_event=_error_event,
    full=_full,
    victim=lambda model, newcomer: None,
    needs_key=lambda path: path.startswith(KEYED),
    abort_lag_s=lambda stream, open_s: 0.0,
    probes=Probes,
    metrics=EngineMetrics,
    kv_batch=vllm_batch,
    reads_headers=True,
    knows_models=True,
    head_at_once=True,
    empties_itself=True,
    ready="Application startup complete.",
)
