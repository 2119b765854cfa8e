"""What to do. Every decision carries `why`: the numbers it was taken on.

`Reason` is closed: it is the metric label, the `x-forebay-reason` header, and the row of the error table.
"""

from enum import StrEnum

from policies.types import Message


class Reason(StrEnum):
    """Why a request got no good answer (http.md 11). The table of statuses is gateway/errors.py."""

    MALFORMED_HTTP = "malformed_http"
    CHUNK_OVERHEAD = "chunk_overhead"
    HTTP_VERSION = "http_version"
    TRANSFER_CODING = "transfer_coding"
    TARGET_TOO_LONG = "target_too_long"
    HEAD_TOO_LARGE = "head_too_large"
    HOST = "host"
    EXPECTATION = "expectation"
    CLIENT_TIMEOUT = "client_timeout"
    BODY_TOO_LARGE = "body_too_large"
    NOT_FOUND = "not_found"
    METHOD = "method"
    MEDIA_TYPE = "media_type"
    CONTENT_CODING = "content_coding"
    BAD_KEY = "bad_key"
    AUTH_THROTTLED = "auth_throttled"
    ROUTE_FORBIDDEN = "route_forbidden"
    MODEL_UNKNOWN = "model_unknown"
    INVALID_JSON = "invalid_json"
    JSON_TOO_DEEP = "json_too_deep"
    INVALID_PARAMETER = "invalid_parameter"
    UNKNOWN_PARAMETER = "unknown_parameter"
    PARAMETER_NOT_ALLOWED = "parameter_not_allowed"
    FORBIDDEN_TARGET = "forbidden_target"
    TOO_LONG = "too_long"
    MAX_TOKENS_ABOVE_LIMIT = "max_tokens_above_limit"
    EXCEEDS_LIMIT = "exceeds_limit"
    QUOTA_REQUESTS = "quota_requests"
    QUOTA_TOKENS = "quota_tokens"
    CONCURRENCY = "concurrency"
    BUDGET = "budget"
    QUOTA_STORE = "quota_store"
    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"
    QUEUE_TIMEOUT = "queue_timeout"
    EVICTED = "evicted"
    BACKEND_SATURATED = "backend_saturated"
    NO_ENDPOINT = "no_endpoint"
    PARTITION_UNAVAILABLE = "partition_unavailable"
    DRAINING = "draining"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    BACKEND_PROTOCOL_ERROR = "backend_protocol_error"
    BACKEND_BAD_STREAM = "backend_bad_stream"
    BACKEND_TIMEOUT = "backend_timeout"
    BACKEND_STREAM_INTERRUPTED = "backend_stream_interrupted"
    BACKEND_ERROR = "backend_error"
    BACKEND_AUTH = "backend_auth"
    BACKEND_ROUTE = "backend_route"
    BACKEND_REJECTED = "backend_rejected"
    INTERNAL = "internal"
    # frames only (http.md 7)
    BACKEND_STALL = "backend_stall"
    STREAM_TIMEOUT = "stream_timeout"
    GATEWAY_SHUTDOWN = "gateway_shutdown"
    # log only
    CLIENT_CLOSED = "client_closed"
    CLIENT_STALLED = "client_stalled"


class Why(Message):
    """The numbers behind a decision, as they were before it: for the journal and for people."""

    pool: str = ""
    waited_s: float = 0.0
    queued: int = 0
    candidates: int = 0
    prefill_tokens: int = 0
    sequences: int = 0
    band: str = ""  # the effective one: a late request may have been downgraded
    lane: str = ""  # short or long
    prompt_tokens: int = 0  # as the core estimates it
    cached_tokens: int = 0  # of them, expected in the endpoint's cache
    output_tokens: int = 0  # the predicted median of the answer
    ttft_s: float = 0.0  # predicted, without the margin
    note: str = ""  # what was out of the ordinary: borrowed, warm (it waited for a warm engine), downgraded


class Shortage(Message):
    """Which limit a request was refused by: `scope` as `tenant.tpm`, and what it needed of what was left, in requests
    or cost units. `fits_output`: the most tokens of each answer with which it would have passed all of its limits, were they empty."""

    scope: str
    limit: int
    left: int
    need: int
    fits_output: int = 0


class Dispatch(Message):
    """Send this request to this endpoint now, as this attempt."""

    request_id: str
    attempt: int
    endpoint: str
    why: Why


class Reject(Message):
    """Refused before it ever queued; `shortage` where a limit was the reason."""

    request_id: str
    reason: Reason
    retry_after_s: float | None
    why: Why
    shortage: Shortage | None = None


class Evict(Message):
    """Queued, then dropped: a timeout, the deadline, a drain."""

    request_id: str
    reason: Reason
    retry_after_s: float | None
    why: Why


class Fail(Message):
    """Dispatched, came back without an answer, and no attempt is left."""

    request_id: str
    reason: Reason
    retry_after_s: float | None
    why: Why


Decision = Dispatch | Reject | Evict | Fail
