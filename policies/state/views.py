"""What others may see of the core: values, copied at the moment of asking."""

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
    """How good the expected first tokens of one lane of a pool were: of `seen`, `covered` came within `margin` times it."""

    long: bool
    seen: int
    covered: int
    margin: float


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
