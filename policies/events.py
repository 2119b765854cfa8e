"""What happened. The core learns of the world through these and nothing else.

An attempt is one try of one request on one endpoint, numbered from 1; every event about it names both, so an event
that comes twice, or late, settles nothing twice.
"""

from enum import StrEnum

from policies.types import Endpoint, InferenceRequest, Message, Settings


class Cause(StrEnum):
    """Why an attempt came back without a byte of an answer."""

    CONNECT = "connect"  # refused, unreachable, connect or TLS timeout: nothing was sent
    RESET = "reset"  # reset or end of file before the first body byte
    STATUS_429 = "status_429"
    STATUS_500 = "status_500"
    STATUS_502 = "status_502"
    STATUS_503 = "status_503"
    STATUS_504 = "status_504"
    ABORTED = "aborted"  # the engine ended it with finish_reason "abort" before anything was relayed
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    PROTOCOL = "protocol"  # not HTTP, or not what was asked for


class Outcome(StrEnum):
    """How an attempt that had begun to answer ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"  # by the engine, for what the client asked (4xx): it cost nothing


class Arrived(Message):
    """A request asks to be served."""

    request: InferenceRequest


class Cancelled(Message):
    """The client left. Legal at any time, also between a Dispatch and the moment anybody acts on it.

    `sent`: the engine was sent the request; `seen_tokens` of the answer were seen, or told. `prompt_tokens` and `cached_tokens` are
    None where the engine had not told them yet.
    """

    request_id: str
    sent: bool = True
    seen_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class FirstToken(Message):
    """The first token of an attempt was seen: its prefill is done."""

    request_id: str
    attempt: int


class Finished(Message):
    """An attempt ended after it had begun to answer. Token counts are None where the engine told none; `seen_tokens`
    of the answer were counted on their way. `left`: its client had gone, and the engine was read to its end."""

    request_id: str
    attempt: int
    outcome: Outcome
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    seen_tokens: int = 0
    left: bool = False


class Bounced(Message):
    """An attempt failed before its first byte: it may be placed again. `retry_after_s` is the engine's own wish."""

    request_id: str
    attempt: int
    cause: Cause
    retry_after_s: float | None = None


class EndpointUp(Message):
    """An endpoint may be used; repeatable with new bounds."""

    endpoint: Endpoint


class EndpointDown(Message):
    """An endpoint may not be used. What it holds ends by its own events."""

    name: str


class LoadObserved(Message):
    """What an engine said of itself, seen at `observed_s`: sequences in its batch and its queue, the share of its KV
    blocks in use (0..1; None: it does not say). `kv_tokens` is the size of its KV cache, 0 unknown."""

    endpoint: str
    observed_s: float
    running: int
    waiting: int
    kv_usage: float | None = None
    kv_tokens: int = 0


class CacheCleared(Message):
    """An engine says that its KV cache is empty: it was told to forget everything, or it is a new process."""

    endpoint: str


class CacheTurned(Message):
    """So many tokens entered and left an engine's KV cache since the last such event, as it says itself."""

    endpoint: str
    stored_tokens: int
    removed_tokens: int


class LengthsRestored(Message):
    """What an earlier run of the gateway had learned about lengths: the pieces of `Core.lengths()`, put together."""

    state: str


class SettingsChanged(Message):
    """New settings, whole. The first event of every journal."""

    settings: Settings


class WallClock(Message):
    """UTC is `offset_s` seconds since 1970 ahead of the driver's clock: when days and months begin."""

    offset_s: float


class QuotaReturned(Message):
    """So many micro-units of a block are on their way back to the store (policies/leasing.py)."""

    scope: str
    tenant: str
    part: str
    metric: str
    amount: int


class QuotaGranted(Message):
    """What the store has answered for one limit, in micro-units: `granted` are this replica's now, `reported` that it
    owed are known there, `used` of the whole limit are. `wait_s` until what was asked for could be there; None: it is,
    or no waiting helps."""

    scope: str
    tenant: str
    part: str
    metric: str
    granted: int
    reported: int
    used: int
    written_off: int = 0
    wait_s: float | None = None


class SlotsLeased(Message):
    """So many of the slots of a scope may be used here until `until_s`, on the driver's clock, of those that were `wanted`.
    `contended`: other replicas want more than they have."""

    scope: str
    tenant: str
    part: str
    count: int
    contended: bool
    until_s: float
    wanted: int = 0


class ServedElsewhere(Message):
    """What other replicas have served `tenants` of a class in a pool since this was told last, in cost units, and how
    much of what was `served` here they know now (policies/sharing.py)."""

    pool: str
    band: str
    tenants: tuple[str, ...]
    served: tuple[int, ...]
    elsewhere: tuple[int, ...]


class StoreChanged(Message):
    """Whether the store of several replicas answers, and how many replicas it knows."""

    up: bool
    replicas: int


class Tick(Message):
    """Nothing happened but time."""


Event = (
    Arrived
    | Cancelled
    | FirstToken
    | Finished
    | Bounced
    | EndpointUp
    | EndpointDown
    | LoadObserved
    | CacheCleared
    | CacheTurned
    | LengthsRestored
    | SettingsChanged
    | WallClock
    | QuotaReturned
    | QuotaGranted
    | SlotsLeased
    | ServedElsewhere
    | StoreChanged
    | Tick
)
OfStore = QuotaReturned | QuotaGranted | SlotsLeased | ServedElsewhere | StoreChanged
