"""Answers the gateway writes itself: errors as a whole answer, errors as the last frame of a stream, model lists.

Every value goes through a JSON encoder or is a number, so no byte of a client reaches a header. `x-should-retry` says
what the SDKs shall do; `retry-after` is whole seconds, `retry-after-ms` the same plus 0-25 % so that clients refused
together do not come back together, or exactly the time after which a limit has room again (http.md 11). Frames are worded so that both SDKs raise (http.md 7).
"""

import math
import random
from collections.abc import Iterable

import msgspec

from gateway.dialects.routes import Dialect, Route
from gateway.errors import GatewayError

Header = tuple[bytes, bytes]

_encode = msgspec.json.Encoder().encode
_JITTER = 0.25
_EPOCH = "1970-01-01T00:00:00Z"  # the models' age is not known here


class ErrorAnswer(msgspec.Struct, frozen=True):
    """A whole error answer but for what frames it (content-length, connection)."""

    status: int
    headers: list[Header]
    body: bytes


def error_answer(error: GatewayError, dialect: Dialect, request_id: str) -> ErrorAnswer:
    """The answer to a request that failed before anything was sent."""
    status = _status(error, dialect)
    body = error.body if error.body is not None else _encode(_body(error, dialect, request_id))
    headers = [(b"content-type", error.content_type), (b"x-request-id", request_id.encode())]
    if dialect is Dialect.ANTHROPIC:
        headers.append((b"request-id", request_id.encode()))
    headers.append((b"x-forebay-reason", error.reason.value.encode()))
    headers += _retry_headers(error)
    if error.allow is not None:
        headers.append((b"allow", error.allow.encode()))
    return ErrorAnswer(status, headers, body)


def error_frame(route: Route, error: GatewayError, request_id: str, sequence_number: int) -> bytes:
    """The last event of a stream that failed after its head was sent; `sequence_number` counts on (responses only)."""
    if route.dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: " + _encode(_body(error, route.dialect, request_id)) + b"\n\n"
    inner = _openai(error)
    if route.name != "responses":
        return b"data: " + _encode({"error": inner}) + b"\n\n"
    event = {
        "type": "error",
        "code": inner["code"],
        "message": inner["message"],
        "param": None,
        "sequence_number": sequence_number,
        "error": inner,  # without it the SDK takes the event for an ordinary one
    }
    return b"event: error\ndata: " + _encode(event) + b"\n\n"


def models_answer(dialect: Dialect, names: Iterable[str]) -> bytes:
    """The body of GET /v1/models."""
    models = [_model(dialect, name) for name in names]
    if dialect is Dialect.OPENAI:
        return _encode({"object": "list", "data": models})
    first, last = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return _encode({"data": models, "has_more": False, "first_id": first, "last_id": last})


def model_answer(dialect: Dialect, name: str) -> bytes:
    """The body of GET /v1/models/{id}."""
    return _encode(_model(dialect, name))


def _model(dialect: Dialect, name: str) -> dict[str, str | int]:
    if dialect is Dialect.OPENAI:
        return {"id": name, "object": "model", "created": 0, "owned_by": "forebay"}
    return {"type": "model", "id": name, "display_name": name, "created_at": _EPOCH}


def _status(error: GatewayError, dialect: Dialect) -> int:
    mapped = error.row.anthropic_status
    if dialect is Dialect.ANTHROPIC and mapped and error.status == error.row.status:
        return mapped
    return error.status


def _body(error: GatewayError, dialect: Dialect, request_id: str) -> dict[str, object]:
    if dialect is Dialect.OPENAI:
        return {"error": _openai(error)}
    inner = {"type": _anthropic_type(_status(error, dialect)), "message": error.message}
    return {"type": "error", "error": inner, "request_id": request_id}


def _openai(error: GatewayError) -> dict[str, str | None]:
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _retry_headers(error: GatewayError) -> list[Header]:
    retry, wish_s = error.row.retry, error.retry_after_s
    if retry is None or retry.is_over(wish_s):
        return [(b"x-should-retry", b"false")]
    seconds = retry.after(wish_s)
    if retry.exact and wish_s:
        milliseconds = math.ceil(wish_s * 1000)
    else:
        milliseconds = round(seconds * 1000 * (1 + random.random() * _JITTER))
    return [
        (b"x-should-retry", b"true"),
        (b"retry-after", b"%d" % seconds),
        (b"retry-after-ms", b"%d" % milliseconds),
    ]
