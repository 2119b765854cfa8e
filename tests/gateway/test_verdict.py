"""What an engine's refusal turns into: another try, the engine's own words, or ours."""

import json

import pytest

from gateway.dialects.answers import error_answer
from gateway.dialects.routes import ROUTES, Dialect
from gateway.dialects.stream import EventFacts, EventKind, read_event
from gateway.dialects.verdict import Bounce, error_for, judge, judge_event, retry_after_s
from gateway.errors import LOG_ONLY, GatewayError
from policies.decisions import Reason
from policies.events import Cause

JSON = b"application/json"
CHAT = next(route for route in ROUTES if route.name == "chat")
REFUSAL = json.dumps(
    {"error": {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}}
).encode()


def judged(status: int, body: bytes = REFUSAL, hide: tuple[bytes, ...] = ()) -> Bounce | GatewayError:
    return judge(status, JSON, None, body, hide)


def told(status: int, body: bytes = REFUSAL, hide: tuple[bytes, ...] = ()) -> GatewayError:
    verdict = judged(status, body, hide)
    assert isinstance(verdict, GatewayError)
    return verdict


@pytest.mark.parametrize(
    ("status", "cause"),
    [(429, Cause.STATUS_429), (500, Cause.STATUS_500), (502, Cause.STATUS_502), (503, Cause.STATUS_503),
     (504, Cause.STATUS_504), (529, Cause.STATUS_503),
     *((status, Cause.PROTOCOL) for status in (100, 101, 199, 201, 204, 206, 301, 302, 304, 600, 999))],
)  # fmt: skip
def test_what_another_engine_may_answer_is_bounced(status: int, cause: Cause) -> None:
    assert judged(status) == Bounce(cause)


@pytest.mark.parametrize(
    ("status", "reason", "answered"),
    [(401, Reason.BACKEND_AUTH, 502), (403, Reason.BACKEND_AUTH, 502), (404, Reason.BACKEND_ROUTE, 502),
     (405, Reason.BACKEND_ROUTE, 502), (501, Reason.BACKEND_ROUTE, 502), (402, Reason.BACKEND_ERROR, 502),
     (408, Reason.BACKEND_ERROR, 502), (409, Reason.BACKEND_ERROR, 502), (425, Reason.BACKEND_ERROR, 502),
     (505, Reason.BACKEND_ERROR, 500), (599, Reason.BACKEND_ERROR, 500)],
)  # fmt: skip
def test_what_is_ours_or_the_engines_fault_is_never_shown_as_the_clients(
    status: int, reason: Reason, answered: int
) -> None:
    error = told(status)
    assert (error.reason, error.status, error.body) == (reason, answered, None)
    assert "too long" not in error.message


@pytest.mark.parametrize("status", [400, 406, 410, 411, 412, 413, 415, 422, 426, 451, 499])
def test_a_refusal_of_the_engine_passes_byte_for_byte(status: int) -> None:
    error = told(status)
    answer = error_answer(error, Dialect.OPENAI, "r")
    assert (error.reason, answer.status, answer.body) == (Reason.BACKEND_REJECTED, status, REFUSAL)
    assert (b"x-forebay-reason", b"backend_rejected") in answer.headers
    assert (b"x-should-retry", b"false") in answer.headers
    assert error_answer(error, Dialect.ANTHROPIC, "r").status == status


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>nginx</html>", b"null", b"[]", b'{"error":null}', b'{"error":""}', b'{"detail":"x"}', b"\xff", b"[" * 9999,
     b'{"error":"' + b"x" * 65536 + b'"}', b'{"error":"see http://10.1.2.3:8000/docs"}', b'{"error":"gpu-node-7 died"}'],
)  # fmt: skip
def test_a_refusal_that_is_no_clean_json_is_worded_by_us(body: bytes) -> None:
    error = told(400, body, (b"10.1.2.3", b"", b"gpu-node-7"))
    assert (error.reason, error.status, error.body) == (Reason.BACKEND_REJECTED, 400, None)
    assert error.message == "The engine refused the request."


@pytest.mark.parametrize("status", [400, 422])
def test_a_flat_refusal_keeps_its_words_in_our_shape(status: int) -> None:
    body = json.dumps(
        {"object": "error", "message": "The input is too long.", "type": "BadRequest", "param": "messages", "code": 400}
    )
    answer = error_answer(told(status, body.encode()), Dialect.OPENAI, "r")
    assert answer.status == status
    assert json.loads(answer.body)["error"] == {
        "message": "The input is too long.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "backend_rejected",
    }
    anthropic = json.loads(error_answer(told(status, body.encode()), Dialect.ANTHROPIC, "r").body)
    assert anthropic["error"] == {"type": "invalid_request_error", "message": "The input is too long."}


def test_a_refusal_keeps_its_content_type_only_where_that_is_json() -> None:
    for sent, passed in {
        b"application/json; charset=utf-8": b"application/json; charset=utf-8",
        b"application/problem+json": JSON,
        b"text/html": JSON,
        b"": JSON,
        b"application/json; x=\xff": JSON,
    }.items():
        verdict = judge(400, sent, None, REFUSAL, ())
        assert isinstance(verdict, GatewayError) and verdict.content_type == passed


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"5", 5.0), (b"0", 0.0), (b"30", 30.0), (b"31", 30.0), (b"9" * 400, 30.0), (b"007", 7.0), (None, None), (b"", None),
     (b"-1", None), (b"1.5", None), (b"1_0", None), (b" 5", None), ("٣".encode(), None), (b"5 ", None), (b"+5", None),
     (b"NaN", None), (b"1e3", None), (b"Wed, 21 Oct 2026 07:28:00 GMT", None)],
)  # fmt: skip
def test_retry_after_is_digits_and_clamped(value: bytes | None, seconds: float | None) -> None:
    assert retry_after_s(value) == seconds
    assert judge(503, JSON, value, b"", ()) == Bounce(Cause.STATUS_503, seconds)


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b'{"error":{"message":"full","code":503}}', Bounce(Cause.STATUS_503)),
        (b'{"error":{"message":"full","code":429}}', Bounce(Cause.STATUS_429)),
        (b'{"error":{"message":"x","code":500}}', Bounce(Cause.STATUS_500)),
        (b'{"error":{"message":"x","code":7}}', Bounce(Cause.STATUS_502)),
        (b'{"error":{"message":"x","code":200}}', Bounce(Cause.STATUS_502)),
        (b'{"error":"rescaling"}', Bounce(Cause.STATUS_502)),
        (b'{"choices":[{"finish_reason":"abort"}]}', Bounce(Cause.ABORTED)),
    ],
)
def test_an_error_first_stream_is_an_answer_with_that_status(data: bytes, verdict: Bounce) -> None:
    assert judge_event(read_event(CHAT, b"data: " + data + b"\n\n")) == verdict


def test_an_error_first_stream_that_blames_the_client_passes_its_json() -> None:
    data = b'{"error":{"message":"bad","code":400}}'
    verdict = judge_event(read_event(CHAT, b"data: " + data + b"\n\n"))
    assert isinstance(verdict, GatewayError)
    assert (verdict.status, verdict.body) == (400, data)
    hidden = judge_event(read_event(CHAT, b"data: " + data + b"\n\n"), (b"bad",))
    assert isinstance(hidden, GatewayError) and hidden.body is None


def test_a_response_that_fails_at_once_is_bounced() -> None:
    assert judge_event(EventFacts(kind=EventKind.END, failed=True)) == Bounce(Cause.STATUS_502)


@pytest.mark.parametrize("reason", sorted(set(Reason) - LOG_ONLY))
def test_every_refusal_of_the_core_has_an_answer(reason: Reason) -> None:
    error = error_for(reason, 2.4)
    assert (error.reason, error.retry_after_s) == (reason, 2.4)
    assert error_answer(error, Dialect.OPENAI, "r").status == error.status
