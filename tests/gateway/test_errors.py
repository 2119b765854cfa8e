"""The table of errors is whole and says what http.md 11 says."""

import pytest

from gateway.errors import FRAME_ONLY, LOG_ONLY, ROWS, GatewayError, Retry, Source
from policies.decisions import Reason

SAID = {  # http.md 11, row by row: status, anthropic status, type, code, retry (None = no), closes
    "malformed_http": (400, 400, "invalid_request_error", "malformed_http", None, True),
    "chunk_overhead": (400, 400, "invalid_request_error", "chunk_overhead", None, True),
    "http_version": (505, 505, "invalid_request_error", "http_version", None, True),
    "transfer_coding": (501, 501, "invalid_request_error", "transfer_coding", None, True),
    "target_too_long": (414, 414, "invalid_request_error", "target_too_long", None, True),
    "head_too_large": (431, 431, "invalid_request_error", "head_too_large", None, True),
    "host": (421, 421, "invalid_request_error", "host", None, True),
    "expectation": (417, 417, "invalid_request_error", "expectation", None, True),
    "client_timeout": (408, 408, "invalid_request_error", "request_timeout", None, True),
    "body_too_large": (413, 413, "invalid_request_error", "request_too_large", None, True),
    "not_found": (404, 404, "not_found_error", "route_not_found", None, False),
    "method": (405, 405, "invalid_request_error", "method_not_allowed", None, False),
    "media_type": (415, 415, "invalid_request_error", "unsupported_media_type", None, True),
    "content_coding": (415, 415, "invalid_request_error", "unsupported_encoding", None, True),
    "bad_key": (401, 401, "authentication_error", "invalid_api_key", None, True),
    "auth_throttled": (429, 429, "rate_limit_error", "too_many_auth_failures", (1, 60), True),
    "route_forbidden": (403, 403, "permission_error", "route_forbidden", None, False),
    "model_unknown": (404, 404, "not_found_error", "model_not_found", None, False),
    "invalid_json": (400, 400, "invalid_request_error", "invalid_json", None, False),
    "json_too_deep": (400, 400, "invalid_request_error", "json_too_deep", None, False),
    "invalid_parameter": (400, 400, "invalid_request_error", "invalid_parameter", None, False),
    "unknown_parameter": (400, 400, "invalid_request_error", "unknown_parameter", None, False),
    "parameter_not_allowed": (400, 400, "invalid_request_error", "parameter_not_allowed", None, False),
    "forbidden_target": (400, 400, "invalid_request_error", "forbidden_target", None, False),
    "too_long": (400, 400, "invalid_request_error", "context_length_exceeded", None, False),
    "max_tokens_above_limit": (400, 400, "invalid_request_error", "max_tokens_above_limit", None, False),
    "exceeds_limit": (400, 400, "invalid_request_error", "request_exceeds_limit", None, False),
    "quota_requests": (429, 429, "rate_limit_error", "rate_limit_exceeded", (1, 60), False),
    "quota_tokens": (429, 429, "rate_limit_error", "rate_limit_exceeded", (1, 60), False),
    "concurrency": (429, 429, "rate_limit_error", "concurrency_exceeded", (1, 1), False),
    "budget": (429, 429, "rate_limit_error", "insufficient_quota", None, False),
    "quota_store": (503, 503, "server_error", "quota_store_unavailable", (1, 1), False),
    "queue_full": (429, 429, "rate_limit_error", "queue_full", (1, 60), False),
    "overloaded": (503, 529, "overloaded_error", "overloaded", (1, 60), False),
    "queue_timeout": (503, 529, "overloaded_error", "queue_timeout", (1, 60), False),
    "evicted": (503, 529, "overloaded_error", "overloaded", (1, 60), False),
    "backend_saturated": (503, 529, "overloaded_error", "backend_saturated", (1, 30), False),
    "no_endpoint": (503, 503, "server_error", "no_endpoint", (1, 1), False),
    "partition_unavailable": (503, 503, "server_error", "partition_unavailable", (5, 5), False),
    "draining": (503, 503, "server_error", "draining", (1, 1), True),
    "deadline_exceeded": (504, 504, "server_error", "deadline_exceeded", None, False),
    "backend_unavailable": (502, 502, "server_error", "backend_unavailable", (1, 1), False),
    "backend_protocol_error": (502, 502, "server_error", "backend_protocol_error", (1, 1), False),
    "backend_bad_stream": (502, 502, "server_error", "backend_bad_stream", (1, 1), False),
    "backend_timeout": (504, 504, "server_error", "backend_timeout", (1, 1), False),
    "backend_stream_interrupted": (502, 502, "server_error", "backend_stream_interrupted", (1, 1), False),
    "backend_error": (500, 500, "server_error", "backend_error", (1, 1), False),
    "backend_auth": (502, 502, "server_error", "backend_auth", None, False),
    "backend_route": (502, 502, "server_error", "backend_route", None, False),
    "backend_rejected": (400, 400, "invalid_request_error", "backend_rejected", None, False),
    "internal": (500, 500, "server_error", "internal_error", None, False),
}


def test_every_reason_has_one_row_and_is_answered_framed_or_logged() -> None:
    assert set(ROWS) == set(Reason)
    assert {reason.value for reason in Reason} == set(SAID) | FRAME_ONLY | LOG_ONLY
    assert not FRAME_ONLY & LOG_ONLY


@pytest.mark.parametrize("name", SAID)
def test_a_row_says_what_the_contract_says(name: str) -> None:
    error = GatewayError(Reason(name))
    retry = (error.row.retry.at_least, error.row.retry.at_most) if error.row.retry else None
    anthropic = error.row.anthropic_status or error.status
    assert (error.status, anthropic, error.type, error.code, retry, error.closes) == SAID[name]


@pytest.mark.parametrize("reason", sorted(FRAME_ONLY))
def test_a_frame_has_a_type_and_a_code_of_its_own(reason: Reason) -> None:
    error = GatewayError(reason)
    assert (error.type, error.code) == ("server_error", reason.value)


@pytest.mark.parametrize("reason", sorted(LOG_ONLY))
def test_a_client_that_has_gone_is_logged_as_499(reason: Reason) -> None:
    assert GatewayError(reason).status == 499


def test_whose_fault_it_is_follows_the_reason() -> None:
    assert {reason for reason, row in ROWS.items() if row.source is Source.POLICY} == {
        Reason.TOO_LONG,
        Reason.MAX_TOKENS_ABOVE_LIMIT,
        Reason.EXCEEDS_LIMIT,
        Reason.QUOTA_REQUESTS,
        Reason.QUOTA_TOKENS,
        Reason.CONCURRENCY,
        Reason.BUDGET,
        Reason.QUEUE_FULL,
        Reason.OVERLOADED,
        Reason.QUEUE_TIMEOUT,
        Reason.EVICTED,
    }
    assert all(ROWS[reason].source is Source.UPSTREAM for reason in Reason if reason.value.startswith("backend_"))
    assert ROWS[Reason.INTERNAL].source is Source.GATEWAY
    assert ROWS[Reason.INVALID_JSON].source is Source.CLIENT


@pytest.mark.parametrize(
    ("wish", "seconds"),
    [
        (None, 1),
        (0.0, 1),
        (-3.0, 1),
        (1.0, 1),
        (1.001, 2),
        (59.2, 60),
        (61.0, 60),
        (float("inf"), 60),
        (float("nan"), 1),
    ],
)
def test_a_wish_for_a_retry_is_rounded_up_and_clamped(wish: float | None, seconds: int) -> None:
    assert Retry(1, 60).after(wish) == seconds


def test_no_message_names_a_host_or_a_path() -> None:
    assert all(
        "://" not in row.message and "/" not in row.message.replace("HTTP/1.", "").replace("application/json", "")
        for row in ROWS.values()
    )
