"""Well-formed engine answers as bytes: JSON bodies and event streams of every dialect, with canaries and usage.

A stream here is a list of whole events, so that a test may cut, glue or spoil it anywhere before framing it.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.kit.script_engine import Seen

Usage = dict[str, int]
ROUTES = {
    "chat": b"/v1/chat/completions",
    "completions": b"/v1/completions",
    "responses": b"/v1/responses",
    "messages": b"/v1/messages",
}
NAMES = {path: name for name, path in ROUTES.items()}
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def head(status: int = 200, *, content_type: str = "application/json", extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """A response head without its framing header, unless `extra` has it."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", "server: kit", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def answer(
    body: bytes, *, status: int = 200, content_type: str = "application/json", extra: Sequence[tuple[str, str]] = ()
) -> bytes:
    return head(status, content_type=content_type, extra=[*extra, ("content-length", str(len(body)))]) + body


def json_answer(value: Any, *, status: int = 200, extra: Sequence[tuple[str, str]] = ()) -> bytes:
    return answer(json.dumps(value).encode(), status=status, extra=extra)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def stream_head(extra: Sequence[tuple[str, str]] = ()) -> bytes:
    return head(content_type="text/event-stream; charset=utf-8", extra=[("transfer-encoding", "chunked"), *extra])


def stream(events: Iterable[bytes], *, end: bool = True) -> list[bytes]:
    """Head, one chunk per event, last chunk."""
    return [stream_head(), *(chunk(event) for event in events), *([LAST_CHUNK] if end else [])]


def dechunk(data: bytes) -> tuple[bytes | None, int]:
    """The body of a chunked message and how many bytes it took, or (None, 0) if incomplete."""
    body, at = b"", 0
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None, 0
        size = int(data[at:line_end].split(b";")[0], 16)
        at = line_end + 2
        if size == 0:
            stop = data.find(b"\r\n", at) if data[at : at + 2] == b"\r\n" else data.find(b"\r\n\r\n", at) + 2
            return (body, stop + 2) if stop >= at else (None, 0)
        if len(data) < at + size + 2:
            return None, 0
        body += data[at : at + size]
        at += size + 2


def event(data: Any, name: str = "") -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


DONE = event("[DONE]")


def usage(route: str, prompt: int, output: int) -> Usage:
    if route in ("messages", "responses"):
        return {"input_tokens": prompt, "output_tokens": output}
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def events(
    route: str, words: Sequence[str], *, prompt: int = 7, with_usage: bool = True, model: str = "m"
) -> list[bytes]:
    """A good stream of that route, one word per event, with its end marker."""
    return _STREAMS[route](words, prompt, with_usage, model)


def _chat(words: Sequence[str], prompt: int, with_usage: bool, model: str) -> list[bytes]:
    base = {"id": "chatcmpl-kit", "object": "chat.completion.chunk", "created": 1, "model": model}

    def choice(delta: dict[str, str], finish: str | None = None) -> bytes:
        return event({**base, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

    made = [choice({"role": "assistant", "content": ""})]
    made += [choice({"content": word}) for word in words]
    made += [choice({}, "stop")]
    return [*made, *_usage_event(base, len(words), prompt, with_usage), DONE]


def _completions(words: Sequence[str], prompt: int, with_usage: bool, model: str) -> list[bytes]:
    base = {"id": "cmpl-kit", "object": "text_completion", "created": 1, "model": model}

    def choice(text: str, finish: str | None = None) -> bytes:
        return event({**base, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]})

    made = [choice(word) for word in words[:-1]] + [choice(words[-1], "stop")]
    return [*made, *_usage_event(base, len(words), prompt, with_usage), DONE]


def _usage_event(base: dict[str, Any], output: int, prompt: int, wanted: bool) -> list[bytes]:
    return [event({**base, "choices": [], "usage": usage("chat", prompt, output)})] if wanted else []


def _messages(words: Sequence[str], prompt: int, with_usage: bool, model: str) -> list[bytes]:
    message = {
        "id": "msg_kit", "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": prompt, "output_tokens": 0},
    }  # fmt: skip
    made = [{"type": "message_start", "message": message}]
    made += [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}]
    made += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in words
    ]
    made += [{"type": "content_block_stop", "index": 0}]
    last = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": usage("messages", prompt, len(words)),
    }
    return [event(one, str(one["type"])) for one in (*made, last, {"type": "message_stop"})]


def response_object(
    text: str, prompt: int, output: int, *, model: str = "m", status: str = "completed"
) -> dict[str, Any]:
    content = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "msg_kit", "type": "message", "role": "assistant", "status": "completed", "content": [content]}
    return {
        "id": "resp_kit", "object": "response", "created_at": 1, "status": status, "model": model, "output": [message],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": {**usage("responses", prompt, output), "total_tokens": prompt + output,
                  "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
    }  # fmt: skip


def _responses(words: Sequence[str], prompt: int, with_usage: bool, model: str) -> list[bytes]:
    whole = response_object("".join(words), prompt, len(words), model=model)
    started = {**whole, "status": "in_progress", "output": [], "usage": None}
    made: list[dict[str, Any]] = [{"type": "response.created", "response": started}]
    made += [
        {
            "type": "response.output_text.delta",
            "item_id": "msg_kit",
            "output_index": 0,
            "content_index": 0,
            "delta": word,
            "logprobs": [],
        }
        for word in words
    ]
    made += [{"type": "response.completed", "response": whole}]
    return [event({**one, "sequence_number": at}, one["type"]) for at, one in enumerate(made)]


_STREAMS = {"chat": _chat, "completions": _completions, "messages": _messages, "responses": _responses}


def body(route: str, text: str, *, prompt: int = 7, output: int = 3, model: str = "m") -> dict[str, Any]:
    """A good answer that is not streamed."""
    if route == "chat":
        choices = [
            {"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": None, "finish_reason": "stop"}
        ]
        return {
            "id": "chatcmpl-kit",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": choices,
            "usage": usage(route, prompt, output),
        }
    if route == "completions":
        choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}]
        return {
            "id": "cmpl-kit",
            "object": "text_completion",
            "created": 1,
            "model": model,
            "choices": choices,
            "usage": usage(route, prompt, output),
        }
    if route == "messages":
        return {
            "id": "msg_kit", "type": "message", "role": "assistant", "model": model, "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn", "stop_sequence": None, "usage": usage(route, prompt, output),
        }  # fmt: skip
    if route == "responses":
        return response_object(text, prompt, output, model=model)
    return {
        "object": "list",
        "model": model,
        "data": [],
        "results": [],
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt},
    }


def request_body(route: str, text: str, *, stream: bool = False, model: str = "m", **more: Any) -> dict[str, Any]:
    """What a client would send on that route, carrying `text` as its prompt."""
    made: dict[str, Any] = {"model": model}
    if route in ("chat", "messages"):
        made["messages"] = [{"role": "user", "content": text}]
    elif route == "completions":
        made["prompt"] = text
    elif route in ("responses", "embeddings"):
        made["input"] = text
    elif route == "rerank":
        made |= {"query": text, "documents": ["a", "b"]}
    elif route == "score":
        made |= {"text_1": text, "text_2": "b"}
    if route == "messages":
        made["max_tokens"] = 64
    if stream:
        made["stream"] = True
    return made | more


def request(
    path: str, value: Any, *, extra: Sequence[tuple[str, str]] = (), method: str = "POST", host: str = "forebay"
) -> bytes:
    """One request as a plain client sends it."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        f"content-length: {len(data)}",
    ]
    lines += [f"{name}: {content}" for name, content in extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def prompt_of(value: Any) -> str:
    """The text that `request_body` put in."""
    for key in ("prompt", "input", "query", "text_1"):
        if isinstance(value.get(key), str):
            return str(value[key])
    messages = value.get("messages") or [{}]
    content = messages[-1].get("content", "")
    return content if isinstance(content, str) else json.dumps(content)


def echo(seen: "Seen") -> list[Any]:
    """The answer that sends the prompt back as a canary, streamed if asked: what a healthy engine does here."""
    try:
        value = seen.json
        text = prompt_of(value)
    except (ValueError, AttributeError, LookupError):
        return [
            json_answer(
                {"error": {"message": "not JSON", "type": "BadRequestError", "param": None, "code": 400}}, status=400
            )
        ]
    route = NAMES.get(seen.target, "other")
    if route == "other" or not value.get("stream"):
        return [json_answer(body(route, text))]
    wants = bool((value.get("stream_options") or {}).get("include_usage"))
    return list(stream(events(route, [text, " of", " kit"], with_usage=wants or route in ("messages", "responses"))))
