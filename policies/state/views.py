"""What others may see of the core: values, copied at the moment of asking."""

from collections.abc import Mapping

from policies.types import record


@record
class Totals:
    """The terms of the conservation invariant: received = the sum of the others (faults.md 1, C1)."""

    received: int
    completed: int
    rejected: int
    expired: int
    cancelled: int
    failed: int
    queued: int
    inflight: int


@record
class FlowView:
    """A flow with somebody in it. `oldest_s` is when its head arrived, on the driver's clock."""

    pool: str
    tenant: str
    band: str
    queued: int
    queued_bytes: int
    oldest_s: float


@record
class ForecastView:
    """How good the expected first tokens of a class were in one lane of a pool: of `seen`, `covered` came within `margin`
    times what was expected."""

    band: str
    long: bool
    seen: int
    covered: int
    margin: float


@record
class ShareView:
    """One class of a pool in the last minute: the cost of what was `served`, by tenant, and the `weights` of those who were
    served or wait."""

    pool: str
    partition: str
    band: str
    served: Mapping[str, float]
    weights: Mapping[str, float]


@record
class PoolView:
    """A pool's lanes: of `endpoints` that are up `taking_long` take long prompts, moved `lane_moves` times so far."""

    name: str
    endpoints: int
    taking_long: int
    lane_moves: int
    forecasts: tuple[ForecastView, ...]


@record
class EndpointView:
    """An endpoint that is up, or still holds attempts: what is outstanding on it, and its bounds."""

    name: str
    up: bool
    sequences: int
    prefill_tokens: int
    max_seqs: int
    max_prefill_tokens: int
    kv_tokens: int
    prefill_tokens_per_s: float


@record
class MeterView:
    """A limit and what is used of it, in requests or cost units; `limit` for each `period`, of which `capacity` may be
    used at once. `soft`: it is a budget, and as much is used as clients are told of. The sums are those of tenancy.md 3.6: reserved + extra - refunded - settled = held."""

    tenant: str
    scope: str
    part: str
    metric: str
    period: str
    limit: int
    capacity: int
    left: float
    reset_s: float
    used: float
    soft: bool
    held: float
    reserved: float
    extra: float
    refunded: float
    settled: float
    written_off: float
    denied: int
    denied_shadow: int


@record
class SlotView:
    """How many requests of a scope may run at a time, and how many do."""

    scope: str
    part: str
    cap: int
    used: int


@record
class AccountView:
    """What waits of a tenant, in all its queues; None: no bound."""

    queued: int
    queued_bytes: int
    max_queued: int | None
    max_queued_bytes: int | None
