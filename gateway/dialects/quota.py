"""What a client is told of its limits: the headers of each answer, and the words of a refusal (tenancy.md 9).

Of each kind the tightest limit is told, never less than nothing left. OpenAI's resets are durations as Go writes them,
Anthropic's are moments in UTC; both say when nothing of the limit would be in use any more.
"""

import math
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from gateway.dialects.routes import Dialect
from gateway.dialects.verdict import error_for
from gateway.errors import GatewayError
from policies.decisions import Evict, Fail, Reason, Reject, Shortage
from policies.quota import Level, Standing

_TOKENS = ("tpm", "itpm", "otpm")
_ANTHROPIC = {"rpm": b"requests", "tpm": b"tokens", "itpm": b"input-tokens", "otpm": b"output-tokens"}


def refusal(decision: Reject | Evict | Fail) -> GatewayError:
    """The error of a request that the core has refused, in the words of the limit where one was in the way."""
    shortage = decision.shortage if isinstance(decision, Reject) else None
    if shortage is None:
        return error_for(decision.reason, decision.retry_after_s)
    message = _words(decision.reason, shortage)
    return GatewayError(decision.reason, message, param=shortage.scope, retry_after_s=decision.retry_after_s)


def _words(reason: Reason, shortage: Shortage) -> str:
    numbers = f"{shortage.need} needed, {shortage.left} left of {shortage.limit}."
    match reason:
        case Reason.EXCEEDS_LIMIT:
            fits = shortage.fits_output
            hint = f" With max_tokens of at most {fits} it would fit." if fits else ""
            return f"The limit {shortage.scope} never holds this: {shortage.need} needed of {shortage.limit}.{hint}"
        case Reason.BUDGET:
            return f"Budget {shortage.scope.partition('.')[2]} is used up: {numbers}"
        case Reason.QUOTA_REQUESTS:
            return f"Request limit: {numbers}"
        case _:
            return f"Token limit: {numbers}"


def lines(standing: Standing, dialect: Dialect, refused_by: str = "") -> bytes:
    """The header lines about limits. `refused_by`: the scope that has refused the request."""
    levels = standing.levels
    if dialect is Dialect.ANTHROPIC:
        told = b"".join(_anthropic(_ANTHROPIC[metric], level) for metric, level in levels.items())
    else:
        tokens = _tightest(levels[metric] for metric in _TOKENS if metric in levels)
        told = _openai(b"requests", levels.get("rpm")) + _openai(b"tokens", tokens)
    tightest = _tightest(levels.values())
    scope = refused_by or (tightest.scope if tightest is not None else "")
    if scope:
        told += b"x-forebay-ratelimit-scope: %b\r\n" % scope.encode()
    if standing.budgets:
        told += b"x-forebay-budget-soft: %b\r\n" % ",".join(standing.budgets).encode()
    return told


def _tightest(levels: Iterable[Level]) -> Level | None:
    return min(levels, key=lambda level: level.left / level.limit, default=None)


def _openai(kind: bytes, level: Level | None) -> bytes:
    if level is None:
        return b""
    return (
        b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n"
        % (kind, level.limit, kind, level.left, kind, duration(level.reset_s).encode())
    )  # fmt: skip


def _anthropic(kind: bytes, level: Level) -> bytes:
    return (
        b"anthropic-ratelimit-%b-limit: %d\r\nanthropic-ratelimit-%b-remaining: %d\r\nanthropic-ratelimit-%b-reset: %b\r\n"
        % (kind, level.limit, kind, level.left, kind, moment(level.reset_s).encode())
    )  # fmt: skip


def duration(seconds: float) -> str:
    """As Go writes it, rounded up to a millisecond: `200ms`, `48s`, `1m0.5s`, `1h0m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds == 0:
        return "0s"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def moment(after_s: float) -> str:
    """When that is, from now on, to the next whole second."""
    return datetime.fromtimestamp(math.ceil(time.time() + after_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
