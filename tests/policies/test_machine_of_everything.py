"""The same machine with all at once: pools that lend, lanes, promises, prefixes, sessions, KV bounds, foreign load."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from policies.decisions import Dispatch
from policies.events import CacheCleared, CacheTurned, EndpointUp, LoadObserved
from policies.types import Affinity, Band, Endpoint, Pool
from tests.policies import given, prompts
from tests.policies.test_machine import Machine, Shadow

POOLS = (
    Pool(name="short", model="m1", max_total_tokens=1500, borrow=("long",), long_prompt_tokens=600),
    Pool(name="long", model="m1", borrow=("short",), long_prompt_tokens=900),
    Pool(name="other", model="m2", lanes="fixed", long_prompt_tokens=600),
)
BANDS = (
    Band(name="critical", rank=0, queue_timeout_s=3.0, max_queued=6, slo_ttft_s=0.4, on_late="reject", reserved=0.1),
    Band(
        name="interactive", rank=1, queue_timeout_s=9.0, max_queued=6, slo_ttft_s=0.8, on_late="downgrade", ceiling=0.9
    ),
    Band(
        name="standard",
        rank=2,
        queue_timeout_s=20.0,
        max_queued=9,
        slo_ttft_s=4.0,
        age_after_s=5.0,
        ceiling=0.8,
        min_share=0.2,
    ),
    Band(name="batch", rank=3, queue_timeout_s=90.0, max_queued=9, sheddable=True, ceiling=0.5, min_share=0.05),
)
MODEL_OF = {pool.name: pool.model for pool in POOLS}
AFFINITIES = (
    None,
    Affinity(block_tokens=64, index_bytes=1 << 20),
    Affinity(block_tokens=64, index_bytes=1 << 16, max_load_ratio=1.0, ttl_s=5.0),
    Affinity(block_tokens=32, index_bytes=1 << 20),
)


class Everything(Machine):
    pools = POOLS
    bands = BANDS

    @initialize(
        endpoints=st.integers(1, 3),
        ordering=st.sampled_from(["fcfs", "edf", "by_length"]),
        affinity=st.sampled_from(AFFINITIES),
    )
    def begin(self, endpoints: int, ordering: str, affinity: Affinity | None = None) -> None:
        self.affinity, self.ordering = affinity, ordering
        self.change(2, admitting=True, queueing=True, max_queued=12)
        for number in range(endpoints):
            self.endpoint_up_with(f"e{number}", 3, 5000, ("short", "long") if number else ("long",), 1)

    @rule(
        family=st.integers(0, 3),
        blocks=st.sampled_from([0, 1, 5, 9, 30, 200]),
        more_tokens=st.sampled_from([0, 10, 700]),
        sequences=st.sampled_from([1, 1, 1, 2, 9]),
        output=st.sampled_from([0, 256, 4000]),
        band=st.sampled_from([band.name for band in BANDS]),
        tenant=st.sampled_from(["t1", "t2"]),
        model=st.sampled_from(["m1", "m1", "m1", "m2"]),
        session=st.sampled_from(["", "", "s1", "s2"]),
        streamed=st.booleans(),
        burst=st.integers(1, 4),
    )
    def prompts_arrive(
        self,
        family: int,
        blocks: int,
        more_tokens: int,
        sequences: int,
        output: int,
        band: str,
        tenant: str,
        model: str,
        session: str,
        streamed: bool,
        burst: int,
    ) -> None:
        for _ in range(burst):
            self.take(
                given.request(
                    f"r{len(self.requests)}",
                    at=self.now,
                    tokens=64 * blocks + more_tokens,
                    sequences=sequences,
                    band=band,
                    tenant=tenant,
                    model=model,
                    streamed=streamed,
                    session=session,
                    max_output=output,
                    prefix=tuple(range(family * 1000 + 1, family * 1000 + 1 + blocks)),
                )
            )

    @rule(
        name=st.sampled_from(["e0", "e1", "e2", "e3"]),
        running=st.sampled_from([0, 1, 3, 50]),
        waiting=st.sampled_from([0, 0, 1, 9]),
        kv_usage=st.sampled_from([None, 0.0, 0.5, 1.0]),
        kv_tokens=st.sampled_from([0, 3000]),
    )
    def load_is_observed(self, name: str, running: int, waiting: int, kv_usage: float | None, kv_tokens: int) -> None:
        self.happen(
            LoadObserved(
                endpoint=name,
                observed_s=self.now,
                running=running,
                waiting=waiting,
                kv_usage=kv_usage,
                kv_tokens=kv_tokens,
            )
        )

    @rule(
        name=st.sampled_from(["e0", "e1", "e2", "e3"]),
        seqs=st.sampled_from([1, 2, 3, 70]),
        kv_tokens=st.sampled_from([0, 2000, 50_000]),
        pools=st.sampled_from([("short",), ("long",), ("short", "long"), ("short", "other"), ("nowhere",)]),
        lanes=st.sampled_from([0, 1, 1, 2]),
    )
    def endpoint_up_with(self, name: str, seqs: int, kv_tokens: int, pools: tuple[str, ...], lanes: int) -> None:
        """Those that know the size of their KV cache cap long prefills."""
        self.up[name] = Endpoint(
            name=name,
            pools=pools,
            max_seqs=seqs,
            max_prefill_tokens=1000,
            kv_tokens=kv_tokens,
            long_lanes=lanes,
            long_prefill_cap=kv_tokens and 512,
            step_tokens=500,
            context_tokens=8000,
        )
        self.happen(EndpointUp(endpoint=self.up[name]))

    @rule(name=st.sampled_from(["e0", "e1", "e2", "e3"]))
    def cache_is_cleared(self, name: str) -> None:
        self.happen(CacheCleared(endpoint=name))

    @rule(name=st.sampled_from(["e0", "e1", "e2", "e3"]), tokens=st.sampled_from([0, 100, 50_000]))
    def cache_turns(self, name: str, tokens: int) -> None:
        self.happen(CacheTurned(endpoint=name, stored_tokens=tokens, removed_tokens=tokens // 2))

    @rule(affinity=st.sampled_from(AFFINITIES))
    def affinity_changes(self, affinity: Affinity | None) -> None:
        self.affinity = affinity
        self.change(self.max_attempts, self.admitting, self.queueing, 12)

    def dispatched(self, shadow: Shadow, decision: Dispatch) -> None:
        endpoint, request, why = self.up[decision.endpoint], shadow.request, decision.why
        assert request.model in [MODEL_OF.get(pool) for pool in endpoint.pools] or why.note == "borrowed"
        assert (why.note == "borrowed") is (why.pool not in endpoint.pools)
        assert decision.endpoint not in shadow.tried
        assert decision.attempt == shadow.attempts + 1 <= shadow.allowed
        assert self.now < request.deadline_s
        sequences, prefill = self.outstanding(decision.endpoint)
        assert why.sequences == sequences
        assert why.prefill_tokens <= prefill
        assert 0 <= why.cached_tokens <= max(0, why.prompt_tokens - 1)
        if sequences:
            assert sequences + request.sequences <= endpoint.max_seqs - (4 if endpoint.max_seqs >= 64 else 0)
            assert why.lane != "long" or endpoint.long_lanes
        shadow.state, shadow.endpoint, shadow.attempts = "flying", decision.endpoint, decision.attempt

    def nobody_was_overtaken(self, served: Shadow) -> None:
        """Keys, lanes and warm engines may put one before another; `Core.check` looks for those who wait in vain."""

    def teardown(self) -> None:
        super().teardown()
        index = self.core._books.prefixes
        if index is not None:
            prompts.audit(index, bounded=False)


TestEverything = Everything.TestCase
TestEverything.settings = settings(
    max_examples=50, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
