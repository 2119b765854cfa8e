"""What a client is told of its limits, as bytes (tenancy.md 9)."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from gateway.dialects import quota
from gateway.dialects.routes import Dialect
from policies.decisions import Reason, Reject, Shortage, Why
from policies.state.standing import Level, Standing

RPM = Level(scope="tenant.rpm", limit=600, left=598, reset_s=0.2)
TPM = Level(scope="key.tpm", limit=100, left=20, reset_s=48.0)
OTPM = Level(scope="tenant.otpm", limit=1000, left=100, reset_s=54.0)


def headers(told: bytes) -> dict[str, str]:
    assert told.endswith(b"\r\n") or not told
    return dict(line.split(": ", 1) for line in told.decode().split("\r\n") if line)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"), (0.0001, "1ms"), (0.2, "200ms"), (1.0, "1s"), (1.5, "1.5s"), (48.0, "48s"), (60.0, "1m0s"),
        (360.0, "6m0s"), (61.25, "1m1.25s"), (3600.0, "1h0m0s"), (86399.9996, "24h0m0s"),
    ],
)  # fmt: skip
def test_a_duration_is_written_as_go_writes_it(seconds: float, text: str) -> None:
    assert quota.duration(seconds) == text


def test_openai_clients_are_told_requests_and_the_tightest_of_tokens() -> None:
    standing = Standing(levels={"rpm": RPM, "tpm": TPM, "otpm": OTPM}, budgets=("month",))
    assert headers(quota.lines(standing, Dialect.OPENAI)) == {
        "x-ratelimit-limit-requests": "600",
        "x-ratelimit-remaining-requests": "598",
        "x-ratelimit-reset-requests": "200ms",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "54s",
        "x-forebay-ratelimit-scope": "tenant.otpm",
        "x-forebay-budget-soft": "month",
    }


def test_anthropic_clients_are_told_each_kind_and_moments() -> None:
    told = headers(
        quota.lines(Standing(levels={"rpm": RPM, "tpm": TPM, "otpm": OTPM}), Dialect.ANTHROPIC, "tenant.rpm")
    )
    assert told["anthropic-ratelimit-requests-limit"] == "600"
    assert told["anthropic-ratelimit-tokens-remaining"] == "20"
    assert told["anthropic-ratelimit-output-tokens-remaining"] == "100"
    assert "anthropic-ratelimit-input-tokens-limit" not in told
    assert told["x-forebay-ratelimit-scope"] == "tenant.rpm"
    reset = datetime.fromisoformat(told["anthropic-ratelimit-tokens-reset"])
    assert timedelta(seconds=46) < reset - datetime.now(UTC) < timedelta(seconds=50)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", told["anthropic-ratelimit-tokens-reset"])


def test_who_has_only_slots_is_told_nothing() -> None:
    assert quota.lines(Standing(levels={}), Dialect.OPENAI) == b""


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (Reason.QUOTA_TOKENS, "Token limit: 40 needed, 20 left of 100."),
        (Reason.QUOTA_REQUESTS, "Request limit: 40 needed, 20 left of 100."),
        (Reason.BUDGET, "Budget tpm is used up: 40 needed, 20 left of 100."),
        (
            Reason.EXCEEDS_LIMIT,
            "The limit tenant.tpm never holds this: 40 needed of 100. With max_tokens of at most 9 it would fit.",
        ),
    ],
)
def test_a_refusal_names_the_limit_and_what_was_missing(reason: Reason, message: str) -> None:
    shortage = Shortage(scope="tenant.tpm", limit=100, left=20, need=40, fits_output=9)
    error = quota.refusal(Reject(request_id="r", reason=reason, retry_after_s=12.0, why=Why(), shortage=shortage))
    assert (error.message, error.param, error.retry_after_s) == (message, "tenant.tpm", 12.0)
