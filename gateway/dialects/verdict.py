"""What an engine's refusal means: may the request be placed again, or what is the client told?

| engine says | then |
|---|---|
| 429, 500, 502, 503, 504, 529 | Bounce: nothing was answered, the core may place it again |
| 401, 403; 404, 405, 501 | our configuration, never shown as the client's: 502 |
| 402, 408, 409, 425 | 502 `backend_error` |
| any other 4xx | the client's own mistake: the engine's body if it is clean, else our wording under its status |
| other 5xx | 500 `backend_error` |
| anything else but 200 | Bounce(PROTOCOL) |

The same holds for an error that comes as the first event of a 200 stream, with the event's code as the status.
An engine's 5xx text never reaches a client: it names hosts, files and stacks.
"""

import re
from collections.abc import Sequence

import msgspec

from gateway.dialects.facts import EventFacts, EventKind, as_object
from gateway.errors import GatewayError
from policies.decisions import Reason
from policies.events import Cause

LONGEST_BODY = 64 * 1024  # bytes of an engine's error that are passed on
LONGEST_RETRY_S = 30.0
_LONGEST_MESSAGE = 1024
_PLAIN = b"application/json"
_JSON = re.compile(rb"application/json(; ?charset=utf-8)?", re.IGNORECASE)


class Bounce(msgspec.Struct, frozen=True):
    """The attempt came back unanswered. `retry_after_s` is the engine's own wish, at most 30 s."""

    cause: Cause
    retry_after_s: float | None = None


_CAUSES = {
    429: Cause.STATUS_429,
    500: Cause.STATUS_500,
    502: Cause.STATUS_502,
    503: Cause.STATUS_503,
    504: Cause.STATUS_504,
    529: Cause.STATUS_503,  # Anthropic's word for it
}
_OURS = {
    401: Reason.BACKEND_AUTH,
    403: Reason.BACKEND_AUTH,
    404: Reason.BACKEND_ROUTE,
    405: Reason.BACKEND_ROUTE,
    501: Reason.BACKEND_ROUTE,
}
_NOT_THE_CLIENTS = frozenset({402, 408, 409, 425})


def judge(
    status: int, content_type: bytes, retry_after: bytes | None, body: bytes, hide: Sequence[bytes]
) -> Bounce | GatewayError:
    """Judge a whole answer that is not 200. `hide` are our hosts and addresses: a body with one is not passed on."""
    cause = _CAUSES.get(status)
    if cause is not None:
        return Bounce(cause, retry_after_s(retry_after))
    if not 400 <= status <= 599:
        return Bounce(Cause.PROTOCOL)
    reason = _OURS.get(status)
    if reason is not None:
        return GatewayError(reason)
    if status in _NOT_THE_CLIENTS:
        return GatewayError(Reason.BACKEND_ERROR).with_status(502)
    if status >= 500:
        return GatewayError(Reason.BACKEND_ERROR)
    return _rejected(status, content_type, body, hide)


def judge_event(facts: EventFacts, hide: Sequence[bytes] = ()) -> Bounce | GatewayError:
    """Judge the first event of a stream where it is an ERROR, an ABORT or a failed END: nothing was relayed yet."""
    if facts.kind is EventKind.ABORT:
        return Bounce(Cause.ABORTED)
    status = facts.status if facts.status is not None and 400 <= facts.status <= 599 else 502
    return judge(status, _PLAIN, None, facts.error, hide)


def error_for(reason: Reason, retry_after_s: float | None) -> GatewayError:
    """What the client is told when the core refuses, drops or gives up (Reject, Evict, Fail)."""
    return GatewayError(reason, retry_after_s=retry_after_s)


def retry_after_s(value: bytes | None) -> float | None:
    """Seconds of a `retry-after` header, at most 30; None for a date, a sign, a fraction, anything but digits."""
    if value is None or not value.isdigit():  # bytes: ASCII digits only
        return None
    return LONGEST_RETRY_S if len(value) > 9 else min(float(int(value)), LONGEST_RETRY_S)


def _rejected(status: int, content_type: bytes, body: bytes, hide: Sequence[bytes]) -> GatewayError:
    if len(body) > LONGEST_BODY or any(name and name in body for name in hide):
        return GatewayError(Reason.BACKEND_REJECTED).with_status(status)
    try:
        value = as_object(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = {}
    if value.get("error"):
        return GatewayError.passed_on(status, content_type if _JSON.fullmatch(content_type) else _PLAIN, body)
    return _reworded(value.get("message"), value.get("param")).with_status(status)


def _reworded(message: object, param: object) -> GatewayError:
    """SGLang and TensorRT-LLM answer flat, without `error`: their words in our shape."""
    said = message if isinstance(message, str) and 0 < len(message) <= _LONGEST_MESSAGE else None
    named = param if isinstance(param, str) and len(param) <= 64 else None
    return GatewayError(Reason.BACKEND_REJECTED, said, param=named)
