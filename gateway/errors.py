"""Every way a request can fail, and what the client is told: one closed table.

    Exception
    └── GatewayError          one request gets this answer (or this frame, once its stream has begun)
          .reason ── ROWS ──> status, type, code, retry, source, closes
                              source: client | policy | upstream | gateway

Rules: a `Reason` has exactly one row; policies never raise, their refusals are turned into a GatewayError at the edge;
an engine's text reaches a client only as `body`, after dialects/verdict.py has looked at it. Rows follow http.md 11.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.decisions import Reason


class Source(StrEnum):
    """Whose doing it is."""

    CLIENT = "client"
    POLICY = "policy"
    UPSTREAM = "upstream"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Retry:
    """The client may come again after so many whole seconds: the computed time held in these bounds.

    `exact`: the time is known, and beyond `at_most` the client is told not to come again by itself.
    """

    at_least: int
    at_most: int
    exact: bool = False

    def is_over(self, wish_s: float | None) -> bool:
        """Whether the time is one that no client should wait for."""
        return self.exact and wish_s is not None and wish_s > self.at_most

    def after(self, wish_s: float | None) -> int:
        """Seconds for `retry-after`: `wish_s` rounded up and clamped; the lower bound where nothing is known."""
        if wish_s is None or not wish_s > self.at_least:
            return self.at_least
        return math.ceil(min(wish_s, self.at_most))


@dataclass(frozen=True, slots=True)
class Row:
    """What one Reason looks like from outside. `retry` None: `x-should-retry: false`. `closes`: the connection ends.

    `code` empty: the Reason itself. `anthropic_status` 0: the same status in both dialects.
    """

    status: int
    type: str
    retry: Retry | None
    message: str
    source: Source = Source.CLIENT
    closes: bool = False
    code: str = ""
    anthropic_status: int = 0


class GatewayError(Exception):
    """One request is answered with an error.

    `status`, `type`, `code` come from the row of `reason` unless given; `status` is the OpenAI one, answers.py maps it
    for the Anthropic dialect. `retry_after_s` is a computed wish, clamped by the row. `allow` names the method on 405.
    `body` with `content_type` is an engine's own answer, passed on as it is (backend_rejected only).
    """

    def __init__(
        self,
        reason: Reason,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        allow: str | None = None,
    ) -> None:
        row = ROWS[reason]
        self.reason = reason
        self.message = row.message if message is None else message
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow
        self.row = row
        self.status = row.status
        self.type = row.type
        self.code = row.code or reason.value
        self.closes = row.closes
        self.body: bytes | None = None
        self.content_type = b"application/json"
        super().__init__(self.message)

    @classmethod
    def passed_on(cls, status: int, content_type: bytes, body: bytes) -> "GatewayError":
        """An engine's own refusal (4xx), handed to the client byte for byte."""
        error = cls(Reason.BACKEND_REJECTED)
        error.status, error.content_type, error.body = status, content_type, body
        return error

    def with_status(self, status: int) -> "GatewayError":
        """The same error under another status: an engine's 4xx that we word ourselves, 402 as 502."""
        self.status = status
        return self


_NEVER = None
_SOON = Retry(1, 1)
_WAIT = Retry(1, 60, exact=True)  # until this very request would fit
_DRAIN = Retry(1, 60)  # time until the queue has room; the SDKs ignore more than 60 s
_ENGINES = Retry(1, 30)  # what engines ask for, min over endpoints

_BAD = "invalid_request_error"
_BUSY = "overloaded_error"
_RATE = "rate_limit_error"
_FAULT = "server_error"
_GATEWAY = Source.GATEWAY
_POLICY = Source.POLICY
_UPSTREAM = Source.UPSTREAM

ROWS: Mapping[Reason, Row] = {
    Reason.MALFORMED_HTTP: Row(400, _BAD, _NEVER, "The request is not valid HTTP.", closes=True),
    Reason.CHUNK_OVERHEAD: Row(400, _BAD, _NEVER, "The chunked body has too much framing for its size.", closes=True),
    Reason.HTTP_VERSION: Row(505, _BAD, _NEVER, "Only HTTP/1.0 and HTTP/1.1 are spoken here.", closes=True),
    Reason.TRANSFER_CODING: Row(501, _BAD, _NEVER, "The only transfer coding understood is chunked.", closes=True),
    Reason.TARGET_TOO_LONG: Row(414, _BAD, _NEVER, "The request target is too long.", closes=True),
    Reason.HEAD_TOO_LARGE: Row(431, _BAD, _NEVER, "The request head is too large.", closes=True),
    Reason.HOST: Row(421, _BAD, _NEVER, "This host is not served here.", closes=True),
    Reason.EXPECTATION: Row(417, _BAD, _NEVER, "The only expectation understood is 100-continue.", closes=True),
    Reason.CLIENT_TIMEOUT: Row(
        408, _BAD, _NEVER, "The request did not arrive in time.", closes=True, code="request_timeout"
    ),
    Reason.BODY_TOO_LARGE: Row(
        413, _BAD, _NEVER, "The request body is too large.", closes=True, code="request_too_large"
    ),
    Reason.NOT_FOUND: Row(404, "not_found_error", _NEVER, "There is no such route.", code="route_not_found"),
    Reason.METHOD: Row(405, _BAD, _NEVER, "This route has another method.", code="method_not_allowed"),
    Reason.MEDIA_TYPE: Row(
        415,
        _BAD,
        _NEVER,
        "The content type must be application/json in UTF-8.",
        closes=True,
        code="unsupported_media_type",
    ),
    Reason.CONTENT_CODING: Row(
        415, _BAD, _NEVER, "The body must not be compressed.", closes=True, code="unsupported_encoding"
    ),
    # These two close, so that no cause can be told from what becomes of the connection.
    Reason.BAD_KEY: Row(401, "authentication_error", _NEVER, "Invalid API key.", closes=True, code="invalid_api_key"),
    Reason.AUTH_THROTTLED: Row(
        429,
        "rate_limit_error",
        _DRAIN,
        "Too many requests with a bad API key.",
        closes=True,
        code="too_many_auth_failures",
    ),
    Reason.ROUTE_FORBIDDEN: Row(403, "permission_error", _NEVER, "This route is not open to you."),
    Reason.MODEL_UNKNOWN: Row(404, "not_found_error", _NEVER, "There is no such model.", code="model_not_found"),
    Reason.INVALID_JSON: Row(400, _BAD, _NEVER, "The body must be one JSON object in UTF-8."),
    Reason.JSON_TOO_DEEP: Row(400, _BAD, _NEVER, "The body is nested too deep."),
    Reason.INVALID_PARAMETER: Row(400, _BAD, _NEVER, "A field has a value that is not allowed."),
    Reason.UNKNOWN_PARAMETER: Row(400, _BAD, _NEVER, "The body has a field that is not known here."),
    Reason.PARAMETER_NOT_ALLOWED: Row(400, _BAD, _NEVER, "The body has a field that is not allowed here."),
    Reason.FORBIDDEN_TARGET: Row(400, _BAD, _NEVER, "The body names a URL that may not be fetched."),
    Reason.TOO_LONG: Row(
        400,
        _BAD,
        _NEVER,
        "The prompt is longer than any pool of this model takes.",
        _POLICY,
        code="context_length_exceeded",
    ),
    Reason.MAX_TOKENS_ABOVE_LIMIT: Row(
        400, _BAD, _NEVER, "More output tokens are asked for than you may have.", _POLICY
    ),
    Reason.EXCEEDS_LIMIT: Row(
        400, _BAD, _NEVER, "The request is larger than your limit ever allows.", _POLICY, code="request_exceeds_limit"
    ),
    Reason.QUOTA_REQUESTS: Row(
        429, _RATE, _WAIT, "Your limit of requests is reached.", _POLICY, code="rate_limit_exceeded"
    ),
    Reason.QUOTA_TOKENS: Row(
        429, _RATE, _WAIT, "Your limit of tokens is reached.", _POLICY, code="rate_limit_exceeded"
    ),
    Reason.CONCURRENCY: Row(
        429, _RATE, _SOON, "As many requests run as you may have at a time.", _POLICY, code="concurrency_exceeded"
    ),
    Reason.BUDGET: Row(429, _RATE, _NEVER, "Your budget is used up.", _POLICY, code="insufficient_quota"),
    Reason.QUOTA_STORE: Row(
        503, _FAULT, _SOON, "Your limits cannot be checked just now.", _GATEWAY, code="quota_store_unavailable"
    ),
    Reason.QUEUE_FULL: Row(429, _RATE, _DRAIN, "As many requests wait as you may have.", _POLICY),
    Reason.OVERLOADED: Row(503, _BUSY, _DRAIN, "The service is overloaded.", _POLICY, anthropic_status=529),
    Reason.QUEUE_TIMEOUT: Row(503, _BUSY, _DRAIN, "No engine became free in time.", _POLICY, anthropic_status=529),
    Reason.EVICTED: Row(
        503, _BUSY, _DRAIN, "No engine can be in time.", _POLICY, code="overloaded", anthropic_status=529
    ),
    Reason.BACKEND_SATURATED: Row(
        503, _BUSY, _ENGINES, "All engines of this model are full.", _UPSTREAM, anthropic_status=529
    ),
    Reason.NO_ENDPOINT: Row(503, _FAULT, _SOON, "No engine of this model is up.", _UPSTREAM),
    Reason.PARTITION_UNAVAILABLE: Row(503, _FAULT, Retry(5, 5), "No engine of your partition is up.", _UPSTREAM),
    Reason.DRAINING: Row(503, _FAULT, _SOON, "This gateway is shutting down.", _GATEWAY, closes=True),
    Reason.DEADLINE_EXCEEDED: Row(504, _FAULT, _NEVER, "The deadline of the request has passed."),
    Reason.BACKEND_UNAVAILABLE: Row(502, _FAULT, _SOON, "The engine could not be reached.", _UPSTREAM),
    Reason.BACKEND_PROTOCOL_ERROR: Row(502, _FAULT, _SOON, "The engine's answer is not valid HTTP.", _UPSTREAM),
    Reason.BACKEND_BAD_STREAM: Row(502, _FAULT, _SOON, "The engine's stream is not valid.", _UPSTREAM),
    Reason.BACKEND_TIMEOUT: Row(504, _FAULT, _SOON, "The engine did not answer in time.", _UPSTREAM),
    Reason.BACKEND_STREAM_INTERRUPTED: Row(502, _FAULT, _SOON, "The engine's answer broke off.", _UPSTREAM),
    Reason.BACKEND_ERROR: Row(500, _FAULT, _SOON, "The engine failed.", _UPSTREAM),
    Reason.BACKEND_AUTH: Row(502, _FAULT, _NEVER, "The engine does not accept this gateway.", _UPSTREAM),
    Reason.BACKEND_ROUTE: Row(502, _FAULT, _NEVER, "The engine does not serve this route or model.", _UPSTREAM),
    Reason.BACKEND_REJECTED: Row(400, _BAD, _NEVER, "The engine refused the request.", _UPSTREAM),
    Reason.INTERNAL: Row(500, _FAULT, _NEVER, "The gateway failed.", _GATEWAY, code="internal_error"),
    # Frames (http.md 7). The status counts only where nothing was sent yet.
    Reason.BACKEND_STALL: Row(504, _FAULT, _SOON, "The engine stopped sending.", _UPSTREAM),
    Reason.STREAM_TIMEOUT: Row(504, _FAULT, _NEVER, "The answer took longer than allowed.", _UPSTREAM),
    Reason.GATEWAY_SHUTDOWN: Row(503, _FAULT, _SOON, "This gateway is shutting down.", _GATEWAY),
    # For the log: nobody is there to read an answer.
    Reason.CLIENT_CLOSED: Row(499, _BAD, _NEVER, "The client closed the connection.", closes=True),
    Reason.CLIENT_STALLED: Row(499, _BAD, _NEVER, "The client stopped reading.", closes=True),
}

FRAME_ONLY = frozenset({Reason.BACKEND_STALL, Reason.STREAM_TIMEOUT, Reason.GATEWAY_SHUTDOWN})
LOG_ONLY = frozenset({Reason.CLIENT_CLOSED, Reason.CLIENT_STALLED})
