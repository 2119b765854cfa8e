"""The Anthropic dialect in answers: message events and usage.

A `content_block_delta` with text, thinking or tool input is a TOKEN. The prompt's size comes with `message_start`, the
output's with `message_delta`. `input_tokens` counts what was not read from the cache, so the parts are added up.
"""

from typing import Final

from gateway.dialects.facts import EventFacts, EventKind, Object, Usage, as_count, as_object, as_status, is_text

_ERROR: Final = EventKind.ERROR
_ABORT: Final = EventKind.ABORT
_END: Final = EventKind.END
_TOKEN: Final = EventKind.TOKEN
_OTHER: Final = EventKind.OTHER
# The status behind an error type: Anthropic's events carry no code.
_STATUS: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_TEXTS: Final = ("text", "thinking", "partial_json")


def message_facts(event: bytes, data: Object, raw: bytes) -> EventFacts:
    """Facts of one event of the messages route; `event` is its event field, `raw` its data."""
    kind = data.get("type")
    error = data.get("error")
    if error or kind == "error" or event == b"error":
        return EventFacts(kind=_ERROR, status=_status(as_object(error), data), error=raw)
    if kind == "message_stop":
        return EventFacts(kind=_END)
    delta = as_object(data.get("delta"))
    usage = usage_of(data.get("usage") or as_object(data.get("message")).get("usage"))
    if kind == "message_start" and usage is not None:
        usage = Usage(usage.prompt_tokens, usage.cached_tokens)  # its output count says nothing of the answer to come
    if delta.get("stop_reason") == "abort":
        return EventFacts(kind=_ABORT, usage=usage)
    if kind == "content_block_delta" and any(is_text(delta.get(name)) for name in _TEXTS):
        return EventFacts(kind=_TOKEN, usage=usage)
    return EventFacts(kind=_OTHER, usage=usage)


def usage_of(value: object) -> Usage | None:
    """Usage of a message, whole or in one of its two halves."""
    if not isinstance(value, dict):
        return None
    usage = as_object(value)
    fresh = as_count(usage.get("input_tokens"))
    read = as_count(usage.get("cache_read_input_tokens"))
    written = as_count(usage.get("cache_creation_input_tokens"))
    prompt = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Usage(prompt, read, as_count(usage.get("output_tokens")))


def _status(error: Object, data: Object) -> int | None:
    told = as_status(error.get("code"), error.get("status"), data.get("code"), data.get("status"))
    if told is not None:
        return told
    kind = error.get("type")
    return _STATUS.get(kind) if isinstance(kind, str) else None


def watch_messages(events: bytes) -> bool:
    """May these events hold an end, an error, an abort or usage? All but errors are `message_*` events."""
    return events.find(b"message_") >= 0 or events.find(b"error") >= 0
