"""What a client is told of its limits: the headers of each answer, and the words of a refusal (tenancy.md 9).

Of each kind the tightest limit is told, never less than nothing left. OpenAI's resets are durations as Go writes them,
Anthropic's are moments in UTC; both say when nothing of the limit would be in use any more.
"""

import math
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from gateway.dialects.routes import Dialect
from gateway.dialects.verdict import error_for
from gateway.errors import GatewayError
from policies.decisions import Evict, Fail, Reason, Reject, Shortage
from policies.state.standing import Level, Standing

_IS_ANTHROPIC: Final = Dialect.ANTHROPIC
MOST_KNOWN: Final = 4096
# What is told of a lasting standing, by its id, which holds as long as it is held here.
_known: Final[dict[int, tuple[Standing, bytes]]] = {}
_ANTHROPIC: Final = {"rpm": b"requests", "tpm": b"tokens", "itpm": b"input-tokens", "otpm": b"output-tokens"}


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
    if not standing.lasting or refused_by or dialect is _IS_ANTHROPIC:
        return _lines(standing, dialect, refused_by)
    known = _known.get(id(standing))
    if known is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        known = _known[id(standing)] = standing, _lines(standing, dialect, "")
    return known[1]


def _lines(standing: Standing, dialect: Dialect, refused_by: str) -> bytes:
    levels = standing.levels
    tightest: Level | None
    if dialect is _IS_ANTHROPIC:
        told = b"".join([_anthropic(_ANTHROPIC[metric], level) for metric, level in levels.items()])
        tightest = _tightest(levels.values())
    else:
        requests, tokens = levels.get("rpm"), None
        for metric, level in levels.items():
            if metric != "rpm" and (tokens is None or _part_left(level) < _part_left(tokens)):
                tokens = level
        told, tightest = b"", tokens
        if requests is not None:
            told = _openai(b"requests", requests)
            if tokens is None or _part_left(requests) <= _part_left(tokens):
                tightest = requests
        if tokens is not None:
            told += _openai(b"tokens", tokens)
    scope = refused_by or (tightest.scope if tightest is not None else "")
    if scope:
        told += b"x-forebay-ratelimit-scope: %b\r\n" % scope.encode()
    if standing.budgets:
        told += b"x-forebay-budget-soft: %b\r\n" % ",".join(standing.budgets).encode()
    return told


def _tightest(levels: Iterable[Level]) -> Level | None:
    """The first of those of which least is left."""
    return min(levels, key=_part_left, default=None)


def _part_left(level: Level) -> float:
    return level.left / level.limit


def _openai(kind: bytes, level: Level) -> bytes:
    reset = duration(level.reset_s).encode()
    return (
        b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n"
        % (kind, level.limit, kind, level.left, kind, reset)
    )  # fmt: skip


def _anthropic(kind: bytes, level: Level) -> bytes:
    reset = moment(level.reset_s).encode()
    return (
        b"anthropic-ratelimit-%b-limit: %d\r\nanthropic-ratelimit-%b-remaining: %d\r\n"
        b"anthropic-ratelimit-%b-reset: %b\r\n" % (kind, level.limit, kind, level.left, kind, reset)
    )  # fmt: skip


def duration(seconds: float) -> str:
    """As Go writes it, rounded up to a millisecond: `200ms`, `48s`, `1m0.5s`, `1h0m0s`."""
    if seconds == 0.0:
        return "0s"
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    whole_s, thousandths = milliseconds // 1000, milliseconds % 1000
    part = "." + str(1000 + thousandths)[1:].rstrip("0") if thousandths else ""
    text, minutes = f"{whole_s % 60}{part}s", whole_s // 60
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60}m{text}"
    return f"{minutes}m{text}" if minutes else text


def moment(after_s: float) -> str:
    """When that is, from now on, to the next whole second."""
    return datetime.fromtimestamp(math.ceil(time.time() + after_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
