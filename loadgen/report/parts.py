"""What a report is made of: small values, each of which says what it holds. `document.Report` has them all."""

from enum import StrEnum
from typing import Any

import msgspec

from loadgen.report.figures import Figures
from loadgen.report.record import Outcome
from loadgen.report.times import Spread

Interval = tuple[float, float]
Plain = dict[str, Any]


class State(StrEnum):
    """What became of a rule."""

    OK = "ok"
    BREACH = "breach"
    ALLOWED = "allowed"  # broken, and let pass by name


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of validity (loadgen.md 8.2): `id` is V1 to V10, `value` what was found, `limit` what may be, both in the
    unit of `words`, which say what the rule is about and what was found, for people.
    """

    id: str
    state: State
    value: float | None
    limit: float | None
    words: str


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run can be trusted: every rule that was judged, and by their ids why others could not be.

    A rule about what nobody asked for (what is scraped) is in neither.
    """

    rules: tuple[Rule, ...] = ()
    unjudged: dict[str, str] = {}

    @property
    def valid(self) -> bool:
        """No rule is broken, but for those let pass by name."""
        return not any(rule.state is State.BREACH for rule in self.rules)


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Bad ends alike: outcome, HTTP status (0: none), the code or the first 80 characters of what was said."""

    outcome: Outcome
    status: int
    reason: str
    count: int


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one class, tenant and priority. `judged`: enough of them, and its target binds the exit code.

    `outcomes`: how often each came, planned cancels too; `ends`: the bad ones of those that were offered.
    """

    cls: str = msgspec.field(name="class")
    tenant: str
    priority: str
    target: float
    judged: bool
    attainment_95: Interval | None
    figures: Figures
    outcomes: dict[str, int] = {}
    ends: tuple[End, ...] = ()

    @property
    def name(self) -> str:
        """All of it, for people."""
        return " ".join(part for part in (self.tenant, self.cls, self.priority) if part)


class TenantShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant got: prompt and output tokens served in the window, its share of them and of their cost beside the
    share of its weight.

    Cached and ideal shares are of its prompt tokens, None where nothing is known.
    """

    tenant: str
    weight: float
    service_tokens: float
    service_share: float
    cost_share: float
    entitled_share: float
    prompt_tokens: int
    cached_share: float | None
    ideal_share: float | None


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """Ten seconds: tokens served of each tenant, and Jain's index of those that waited all the time (share; cost,
    with a cached token at 0.1 and one of an answer at 2) and of what everybody needed (need). None: fewer than two tenants to be compared.
    """

    start_s: float
    service_tokens: dict[str, float]
    backlogged: tuple[str, ...]
    j_share: float | None
    j_cost: float | None
    j_need: float | None


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant alone, and once others had come: p99 of the first token, adjusted, and their ratio."""

    tenant: str
    alone_p99_ms: float
    shared_p99_ms: float
    ratio: float


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """Between tenants (loadgen.md 6.2). `attainment_gap` is the largest attainment less the smallest, of tenants with
    enough requests; `service_gap_tokens` the most that one of two backlogged tenants got more than the other in a
    slot, each by its weight.
    """

    j_share_mean: float | None = None
    j_share_worst: float | None = None
    j_cost_mean: float | None = None
    j_cost_worst: float | None = None
    j_need_mean: float | None = None
    j_need_worst: float | None = None
    attainment_gap: float | None = None
    service_gap_tokens: float | None = None
    slowdowns: tuple[Slowdown, ...] = ()
    tenants: tuple[TenantShare, ...] = ()
    slots: tuple[Slot, ...] = ()


class Second(msgspec.Struct, frozen=True, kw_only=True):
    """One second of the run, warm-up and tail too. `offered` by intended time, `sent` by the moment; `ended` counts
    outcomes; `in_flight` (mean) and `waiting` (without a first token) stand at its middle. `sent_of` and `completed_of`
    are the same by tenant, the second of complete answers.
    """

    t_s: int
    offered: dict[str, int]  # by tenant
    sent: int
    ended: dict[str, int]  # by outcome
    output_tokens: float
    in_flight: int
    waiting: int
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    ttft_max_ms: float | None
    cached_tokens: int
    prompt_tokens: int
    ideal_tokens: int
    sent_of: dict[str, int] = {}
    completed_of: dict[str, int] = {}


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How well the client kept up. `lag`: of sends, over all requests that were sent; `loop_lag_p99_ms`: of its event
    loops; `cpu_max` the busiest five seconds of a worker, as a share of one core; `local_failures` what the machine
    refused, by name. Rates are over the window.
    """

    lag: Spread = Spread()
    loop_lag_p99_ms: float | None = None
    local_failures: dict[str, int] = {}
    cpu_max: float | None = None
    offered_per_s: float = 0.0
    sent_per_s: float = 0.0
    completed_per_s: float = 0.0
    in_flight_max: int = 0
    think_s: float | None = None  # mean between the end of a turn and the next one's intended time
    timeline: tuple["HealthSecond", ...] = ()


class HealthSecond(msgspec.Struct, frozen=True, kw_only=True):
    """One second: the worst lag of a send and of an event loop, the busiest worker's CPU as a share of one core."""

    t_s: int
    lag_ms: float | None
    loop_lag_ms: float | None
    cpu: float | None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What was scraped of one server, second by second."""

    name: str
    t_s: tuple[int, ...]
    running: tuple[float | None, ...]
    waiting: tuple[float | None, ...]


class EndpointUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine got over the run, as the answers' headers say, or as it counts itself. `timeline`: requests in each
    10 s from the start of the run on, by when they were sent to it where headers say so, else by when it counted them.
    """

    name: str
    requests: float
    share: float
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float
    preemptions: float | None = None
    timeline: tuple[int, ...] = ()


class GatewayUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway's headers say of the requests it answered from one pool and in one class: how many, in how many it
    placed more than once, how long they waited in it.
    """

    pool: str
    cls: str = msgspec.field(name="class")
    requests: int
    again: int
    queued: Spread


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution, drawn through up to 200 of its points: (ms, share of all offered, or of the pauses of 3,000 answers, up
    to it).

    `of` is ttft, ttft_service, tpot, stall or itl; `cls` the class of the scenario, "" for all together.
    """

    of: str
    cls: str = msgspec.field(name="class")
    points: tuple[tuple[float, float], ...]


class Dot(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A request in the picture of prompt length and first token: planned tokens, ms from the intended arrival, the
    limit at that length, whether it was good. At most 1,500 of a run, evenly taken.
    """

    input_tokens: int
    ttft_ms: float
    limit_ms: float
    good: bool


class RateProbe(msgspec.Struct, frozen=True, kw_only=True):
    """One try of `--find-max-rate`: `scale` times the scenario's rate, requests/s; `why` it failed, "" if it passed."""

    scale: float
    rate: float
    seed: int
    passed: bool
    attainment: float | None
    why: str = ""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the requests of one cell that arrived in one block of 10 s: what intervals are drawn from.

    `ttft_ms` has one entry for each streamed request offered (inf: never), `tpot_ms` and `stall_ms` for each complete
    one that has it. `output_tokens` are those read in these 10 s, whenever asked for.
    """

    offered: int = 0
    good: int = 0
    rejected: int = 0
    output_tokens: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: tuple[float, ...] = ()
    tpot_ms: tuple[float, ...] = ()
    stall_ms: tuple[float, ...] = ()


class CellBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a cell, from the start of the window on."""

    cls: str = msgspec.field(name="class")
    tenant: str
    priority: str
    blocks: tuple[Block, ...]
