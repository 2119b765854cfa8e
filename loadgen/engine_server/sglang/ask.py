"""Request bodies as SGLang reads them, and what it refuses (engines.md 3 and 4.2; `entrypoints/openai`, `io_struct.py`).

Error bodies are flat; inside a stream they stand under `error`. Any `model` will do: behind its first colon is the name of
an adapter. Salt and extra key are put together without anything between them.
"""

from typing import Any

import msgspec

from loadgen.engine_server import ask as asks
from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.shapes import event_of

LEAST_PRIORITY = -(1 << 63)  # of a request that names none: behind all that do
NATIVE_TOKENS = 128  # what /generate gives when nothing is said
STREAM_LAG_S = 2.0  # a stream's abort waits so long after its end
LOOK_S = 4.0  # between two looks whether the client of an answer in one piece is still there


def read(route: str, body: bytes, markers: bool) -> Ask:
    """The request in `body`, or a `Refusal`."""
    data = asks.decoded(body)
    if route == "generate":
        data = _as_completion(data)
    elif route == "chat" and data.get("messages") == []:
        raise Refusal(400, "Messages cannot be empty.")
    ask = asks.basic(route, data)
    ask.id = asks.text(data, "rid", "")
    ask.salt = asks.text(data, "cache_salt", "") + asks.text(data, "extra_key", "")
    ask.namespace = f"{ask.salt}\0{ask.model.partition(':')[2]}"
    ask.priority = asks.integer(data, "priority", LEAST_PRIORITY, least=LEAST_PRIORITY)
    if ask.max_tokens is not None and ask.min_tokens > ask.max_tokens:
        text = f"min_new_tokens must be in [0, max_new_tokens({ask.max_tokens})], got {ask.min_tokens}."
        raise Refusal(400, text)
    asks.prompts(data, ask, markers)
    return ask


def room(ask: Ask, prompt_tokens: int, context: int) -> int:
    """By SGLang's rule: prompt and answer together stay below the context."""
    if prompt_tokens >= context:
        raise Refusal(
            400, f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens)."
        )
    left = context - 1 - prompt_tokens
    if ask.max_tokens is not None and ask.max_tokens > left:
        text = (
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total "
            f"of {prompt_tokens + ask.max_tokens} tokens: {prompt_tokens} tokens from the input messages and "
            f"{ask.max_tokens} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit."
        )
        raise Refusal(400, text)
    return max(1, left)


def error_body(refusal: Refusal, route: str) -> bytes:
    """An error answer; that of the native route knows its message only."""
    if refusal.raw is not None:
        return msgspec.json.encode(refusal.raw)
    if route == "generate" and refusal.status == 400:
        return msgspec.json.encode({"error": {"message": refusal.message}})
    kind = refusal.kind if refusal.status < 500 else str(refusal.status)
    return msgspec.json.encode(_flat(refusal, kind))


def error_event(refusal: Refusal) -> bytes:
    """An error inside a stream."""
    return event_of({"error": _flat(refusal, refusal.kind)})


def full(reason: str) -> Refusal:
    """Of `--max-queued-requests`."""
    return Refusal(503, "The request queue is full.", "SERVICE_UNAVAILABLE")


def needs_key(path: bytes) -> bool:
    """All but health and metrics is behind the key."""
    return not path.startswith((b"/health", b"/metrics"))


def abort_lag_s(stream: bool, open_s: float) -> float:
    """How long a request still runs whose client has left: until the next look, or the time that a stream's abort waits."""
    return STREAM_LAG_S if stream else LOOK_S - open_s % LOOK_S


def _flat(refusal: Refusal, kind: str) -> dict[str, object]:
    return {"object": "error", "message": refusal.message, "type": kind, "param": None, "code": refusal.status}


def _as_completion(data: dict[str, Any]) -> dict[str, Any]:
    """A body of /generate with the names of /v1/completions."""
    sampling = data.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise Refusal(400, "sampling_params: Input should be a valid dictionary", "Bad Request")
    ids = data.get("input_ids")
    common: dict[str, Any] = {
        name: data[name] for name in ("rid", "stream", "cache_salt", "extra_key", "priority") if name in data
    }
    return {
        **common,
        **{name: sampling[name] for name in ("ignore_eos", "stop", "n") if name in sampling},
        "prompt": data.get("text") if ids is None else ids,
        "max_tokens": sampling.get("max_new_tokens", NATIVE_TOKENS),
        "min_tokens": sampling.get("min_new_tokens", 0),
        "stream_options": {"continuous_usage_stats": True},  # each event counts
    }
