"""Anything may happen, in any order: the core against a shadow that knows only what was told and decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from policies.core import Core
from policies.decisions import Decision, Dispatch, Evict, Fail, Reason, Reject
from policies.events import (
    Arrived,
    Bounced,
    Cancelled,
    Cause,
    EndpointDown,
    EndpointUp,
    Event,
    Finished,
    FirstToken,
    Outcome,
    SettingsChanged,
    Tick,
)
from policies.types import Affinity, Band, Endpoint, InferenceRequest, Model, Pool, Settings, Tenant
from tests.policies import given

POOLS = (
    Pool(name="p1", model="m1", lanes="off"),
    Pool(name="p2", model="m1", lanes="off"),
    Pool(name="q", model="m2", long_prompt_tokens=600),  # the one with lanes
)
MODEL_OF = {pool.name: pool.model for pool in POOLS}
BANDS = (
    Band(name="interactive", rank=1, queue_timeout_s=3.0, max_queued=6, slo_ttft_s=0.4, on_late="reject"),
    Band(name="standard", rank=2, queue_timeout_s=9.0, max_queued=9),
)
RANKS = {"interactive": 1, "standard": 2, "gone": 2}
STALE = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])  # which attempt an event is about, from the one that is open
SELDOM = st.sampled_from([False, False, False, True])


@dataclass
class Shadow:
    """One request as an outsider knows it. `endpoint` is set while it is in flight."""

    request: InferenceRequest
    order: int
    state: str = "queued"
    endpoint: str = ""
    attempts: int = 0
    allowed: int = 1  # attempts, as was the rule when it last came back
    tried: list[str] = field(default_factory=list)
    token_seen: bool = False


class Machine(RuleBasedStateMachine):
    """Every rule is one event; after each the shadow and the core's own check have to agree."""

    pools: Sequence[Pool] = POOLS
    bands: Sequence[Band] = BANDS
    affinity: Affinity | None = None
    tenants: Mapping[str, Tenant] = {}
    models: Mapping[str, Model] = {}

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()
        self.now = 0.0
        self.requests: dict[str, Shadow] = {}
        self.up: dict[str, Endpoint] = {}
        self.counts = dict.fromkeys(("received", "completed", "rejected", "expired", "cancelled", "failed"), 0)
        self.max_attempts = 2
        self.ordering = "fcfs"
        self.admitting = self.queueing = True

    # ---- what may happen

    @initialize(endpoints=st.integers(1, 3), ordering=st.sampled_from(["fcfs", "edf", "by_length"]))
    def begin(self, endpoints: int, ordering: str) -> None:
        self.ordering = ordering
        self.change(2, admitting=True, queueing=True, max_queued=12)
        for number in range(endpoints):
            self.endpoint_up(f"e{number}", 2, 1000, ("p1", "q"))

    @rule(step=st.sampled_from([0.0, 0.01, 0.3, 2.0, 20.0]))
    def time_passes(self, step: float) -> None:
        self.now += step
        self.happen(Tick())

    @rule()
    def the_timer_rings(self) -> None:
        due = self.core.next_wakeup()
        if due is not None:
            self.now = max(self.now, due)
            self.happen(Tick())

    @rule(
        tokens=st.sampled_from([0, 10, 400, 900, 5000]),
        sequences=st.sampled_from([1, 1, 1, 2, 9]),
        band=st.sampled_from(["interactive", "standard", "gone"]),
        tenant=st.sampled_from(["t1", "t2"]),
        model=st.sampled_from(["m1", "m1", "m1", "m1", "m2", "unknown"]),
        age=st.sampled_from([0.0, 0.0, 0.0, 0.0, 1.0, 12.0]),
        deadline=st.sampled_from([100.0, 100.0, 100.0, 6.0, 0.5]),
        streamed=st.booleans(),
        burst=st.integers(1, 4),
    )
    def arrives(
        self,
        tokens: int,
        sequences: int,
        band: str,
        tenant: str,
        model: str,
        age: float,
        deadline: float,
        streamed: bool,
        burst: int,
    ) -> None:
        for _ in range(burst):
            self.arrive_one(tokens, sequences, band, tenant, model, age, deadline, streamed)

    def arrive_one(
        self,
        tokens: int,
        sequences: int,
        band: str,
        tenant: str,
        model: str,
        age: float,
        deadline: float,
        streamed: bool,
    ) -> None:
        name = f"r{len(self.requests)}"
        request = given.request(
            name,
            at=self.now - age,
            tokens=tokens,
            sequences=sequences,
            band=band,
            tenant=tenant,
            model=model,
            deadline_s=deadline,
            streamed=streamed,
        )
        self.take(request)

    def take(self, request: InferenceRequest) -> None:
        self.counts["received"] += 1
        self.requests[request.id] = Shadow(request, len(self.requests))
        self.happen(Arrived(request=request))

    @rule(pick=st.integers(0, 1_000_000))
    def arrives_again_while_alive(self, pick: int) -> None:
        living = [shadow for shadow in self.requests.values() if shadow.state in ("queued", "flying")]
        if living and not self.expires_first(shadow := living[pick % len(living)]):
            self.happen(Arrived(request=shadow.request))

    @rule(pick=st.integers(0, 1_000_000), stale=STALE)
    def first_token(self, pick: int, stale: int) -> None:
        shadow = self.any_request(pick, "flying")
        if shadow.state == "flying" and stale == 0:
            shadow.token_seen = True
        self.happen(FirstToken(request_id=shadow.request.id, attempt=shadow.attempts + stale))

    @rule(pick=st.integers(0, 1_000_000), stale=STALE, outcome=st.sampled_from(Outcome))
    def finishes(self, pick: int, stale: int, outcome: Outcome) -> None:
        shadow = self.any_request(pick, "flying")
        if shadow.state == "flying" and stale == 0:
            self.end(shadow, "completed" if outcome is Outcome.COMPLETED else "failed")
        self.happen(Finished(request_id=shadow.request.id, attempt=shadow.attempts + stale, outcome=outcome))

    @rule(pick=st.integers(0, 1_000_000), stale=STALE, cause=st.sampled_from(Cause))
    def bounces(self, pick: int, stale: int, cause: Cause) -> None:
        shadow = self.any_request(pick, "flying")
        if shadow.state == "flying" and stale == 0:
            shadow.tried.append(shadow.endpoint)
            shadow.allowed = self.max_attempts
            shadow.state, shadow.endpoint, shadow.token_seen = "queued", "", False
        self.happen(Bounced(request_id=shadow.request.id, attempt=shadow.attempts + stale, cause=cause))

    @rule(pick=st.integers(0, 1_000_000))
    def cancelled(self, pick: int) -> None:
        shadow = self.any_request(pick, "queued", "flying")
        alive = shadow.state in ("queued", "flying") and not self.expires_first(shadow)
        if alive:
            self.end(shadow, "cancelled")
        self.happen(Cancelled(request_id=shadow.request.id))

    @rule(
        name=st.sampled_from(["e0", "e1", "e2", "e3"]),
        seqs=st.sampled_from([1, 2, 3, 70]),
        prefill=st.sampled_from([500, 1000]),
        pools=st.sampled_from([("p1",), ("p2",), ("p1", "q"), ("p1", "p2"), ("nowhere",)]),
    )
    def endpoint_up(self, name: str, seqs: int, prefill: int, pools: tuple[str, ...]) -> None:
        self.up[name] = Endpoint(name=name, pools=pools, max_seqs=seqs, max_prefill_tokens=prefill)
        self.happen(EndpointUp(endpoint=self.up[name]))

    @rule(name=st.sampled_from(["e0", "e1", "e2", "e3"]), really=SELDOM)
    def endpoint_down(self, name: str, really: bool) -> None:
        if not really:
            return
        self.up.pop(name, None)
        self.happen(EndpointDown(name=name))

    @rule(
        max_attempts=st.sampled_from([1, 2, 2, 3]),
        admitting=st.sampled_from([True, True, True, False]),
        queueing=st.sampled_from([True, True, True, False]),
        max_queued=st.sampled_from([0, 3, 12, 12]),
        really=SELDOM,
    )
    def settings_change(
        self, max_attempts: int, admitting: bool, queueing: bool, max_queued: int, really: bool
    ) -> None:
        if really:
            self.change(max_attempts, admitting, queueing, max_queued)

    def change(self, max_attempts: int, admitting: bool, queueing: bool, max_queued: int) -> None:
        self.max_attempts, self.admitting, self.queueing = max_attempts, admitting, queueing
        changed = Settings(
            pools={pool.name: pool for pool in self.pools},
            bands={band.name: band for band in self.bands},
            max_queued=max_queued,
            max_queued_bytes=10_000,
            max_attempts=max_attempts,
            seed=1,
            admitting=admitting,
            queueing=queueing,
            ordering=self.ordering,
            affinity=self.affinity,
            tenants=self.tenants,
            models=self.models,
        )
        self.happen(SettingsChanged(settings=changed))

    # ---- what must hold

    def any_request(self, pick: int, *states: str) -> Shadow:
        """Mostly one in these states, sometimes another one, or one nobody knows."""
        living = [shadow for shadow in self.requests.values() if shadow.state in states]
        pool = living if living and pick % 8 else list(self.requests.values())
        return pool[pick % len(pool)] if pool else Shadow(given.request("nobody"), 0, state="ended")

    def expires_first(self, shadow: Shadow) -> bool:
        """Whether its own timer ends it before an event at this moment can."""
        due = self.core.next_wakeup()
        if shadow.state != "queued" or due is None or due > self.now:
            return False
        self.happen(Tick())
        return shadow.state not in ("queued", "flying")

    def end(self, shadow: Shadow, how: str) -> None:
        shadow.state, shadow.endpoint = "ended", ""
        self.counts[how] += 1

    def happen(self, event: Event) -> None:
        decisions = self.core.handle(event, self.now)
        for decision in decisions:
            self.apply(decision)
        self.core.check()
        self.compare()
        for decision in decisions:
            if isinstance(decision, Dispatch) and self.ordering == "fcfs":
                self.nobody_was_overtaken(self.requests[decision.request_id])

    def apply(self, decision: Decision) -> None:
        shadow = self.requests[decision.request_id]
        assert shadow.state == "queued", f"{decision} for one that is {shadow.state}"
        match decision:
            case Dispatch():
                self.dispatched(shadow, decision)
            case Reject():
                assert shadow.attempts == 0
                self.end(shadow, "rejected")
            case Evict():
                self.end(shadow, "expired")
            case Fail():
                assert shadow.attempts >= 1
                self.end(shadow, "failed")
        if isinstance(decision, Reject) and decision.shortage is not None:
            never = decision.reason in (Reason.EXCEEDS_LIMIT, Reason.BUDGET)
            assert (decision.retry_after_s is None) is never
        elif isinstance(decision, Reject | Evict | Fail):
            assert (decision.retry_after_s is None) is (decision.reason is Reason.DEADLINE_EXCEEDED)
            assert decision.retry_after_s is None or 1.0 <= decision.retry_after_s <= 60.0

    def dispatched(self, shadow: Shadow, decision: Dispatch) -> None:
        endpoint, request = self.up[decision.endpoint], shadow.request
        assert request.model in [MODEL_OF.get(pool) for pool in endpoint.pools]
        assert decision.endpoint not in shadow.tried
        assert decision.attempt == shadow.attempts + 1 <= shadow.allowed
        assert self.now < request.deadline_s
        sequences, prefill = self.outstanding(decision.endpoint)
        here = [shadow for shadow in self.requests.values() if shadow.endpoint == decision.endpoint]
        models = {shadow.request.model for shadow in [*here, self.requests[decision.request_id]]}
        assert decision.why.sequences == sequences
        assert decision.why.prefill_tokens <= prefill  # less what an estimate has released
        if sequences:
            margin = 4 if endpoint.max_seqs >= 64 else 0
            assert sequences + request.sequences <= endpoint.max_seqs - margin
            less = decision.why.prefill_tokens < endpoint.max_prefill_tokens
            assert less or "m2" in models  # a long prompt counts by its lane
        shadow.state, shadow.endpoint, shadow.attempts = "flying", decision.endpoint, decision.attempt

    def outstanding(self, name: str) -> tuple[int, int]:
        there = [shadow for shadow in self.requests.values() if shadow.endpoint == name]
        prefill = sum(shadow.request.prompt_tokens for shadow in there if not shadow.token_seen)
        return sum(shadow.request.sequences for shadow in there), prefill

    def compare(self) -> None:
        totals = self.core.totals()
        assert {name: getattr(totals, name) for name in self.counts} == self.counts
        states = [shadow.state for shadow in self.requests.values()]
        assert (totals.queued, totals.inflight) == (states.count("queued"), states.count("flying"))
        assert self.queueing or totals.queued == 0
        for view in self.core.endpoints():
            sequences, prefill = self.outstanding(view.name)
            assert view.sequences == sequences
            assert 0 <= view.prefill_tokens <= prefill
            assert view.up is (view.name in self.up)

    @staticmethod
    def goes_before(first: InferenceRequest, second: InferenceRequest) -> bool:
        """Between tenants of a class fairness decides."""
        urgency, other = RANKS[first.band], RANKS[second.band]
        return urgency < other or (urgency == other and first.tenant == second.tenant)

    def nobody_was_overtaken(self, served: Shadow) -> None:
        for shadow in self.requests.values():
            assert not (
                shadow.state == "queued"
                and shadow.order < served.order
                and shadow.request.model == served.request.model == "m1"
                and self.goes_before(shadow.request, served.request)
                and served.endpoint not in shadow.tried
            ), f"{served.request.id} overtook {shadow.request.id} on {served.endpoint}"

    def teardown(self) -> None:
        if not self.requests:
            return
        for shadow in list(self.requests.values()):
            if shadow.state == "flying":
                self.end(shadow, "completed")
                self.happen(Finished(request_id=shadow.request.id, attempt=shadow.attempts, outcome=Outcome.COMPLETED))
        for shadow in list(self.requests.values()):
            if shadow.state in ("queued", "flying"):
                self.end(shadow, "cancelled")
                self.happen(Cancelled(request_id=shadow.request.id))
        totals = self.core.totals()
        assert (totals.queued, totals.inflight) == (0, 0)
        assert all((view.sequences, view.prefill_tokens, view.kv_tokens) == (0, 0, 0) for view in self.core.endpoints())


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
