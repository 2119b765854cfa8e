"""All events in any order, while everything changes: pools, classes, tenants, partitions, bounds, replicas and their store.

The machines know what has to come of each event. This one knows only what holds whatever comes: the books add up, each
request is decided about when it waits and once, no queue outgrows its bound, in the end everybody has gone, and another
core that hears the same from a journal decides the same.
"""

import json
from dataclasses import replace
from random import Random

from gateway.recorder import encode_line
from policies.core import Core
from policies.decisions import Dispatch
from policies.events import (
    Arrived,
    Bounced,
    CacheCleared,
    CacheTurned,
    Cancelled,
    Cause,
    EndpointDown,
    EndpointUp,
    Event,
    Finished,
    FirstToken,
    LoadObserved,
    Outcome,
    QuotaGranted,
    ServedElsewhere,
    SettingsChanged,
    SlotsLeased,
    StoreChanged,
    Tick,
    WallClock,
)
from policies.journal import decode_event
from policies.types import Affinity, Band, Endpoint, Fairness, Fleet, InferenceRequest, Limits, Model, Pool, Tenant
from tests.kit.sizes import sized
from tests.policies import given

POOLS = (
    Pool(name="short", model="m1", max_total_tokens=1500, borrow=("long",), long_prompt_tokens=600),
    Pool(name="middle", model="m1", max_total_tokens=3000, lanes="off"),
    Pool(name="long", model="m1", borrow=("short",), long_prompt_tokens=900),
    Pool(name="other", model="m2", lanes="fixed", long_prompt_tokens=600),
)
BANDS = (
    Band(name="critical", rank=0, queue_timeout_s=1.0, max_queued=6, slo_ttft_s=0.4, on_late="reject", reserved=0.1),
    Band(name="interactive", rank=1, queue_timeout_s=9.0, max_queued=6, slo_ttft_s=0.8, on_late="downgrade"),
    Band(name="standard", rank=2, queue_timeout_s=20.0, max_queued=9, slo_ttft_s=4.0, ceiling=0.8, min_share=0.2),
    Band(name="batch", rank=3, queue_timeout_s=60.0, max_queued=9, sheddable=True, ceiling=0.5),
)
SMALL = Affinity(index_bytes=1 << 16, max_load_ratio=1.0, ttl_s=5.0)
NAMES = ("e0", "e1", "e2", "e3")
STEPS = 400


class AnyOrder:
    """A core, and of each request that lives the endpoint that it was sent to ("": it waits) and its attempt."""

    def __init__(self, random: Random) -> None:
        self.random, self.one = random, random.choice
        self.core, self.replay = Core(), Core()
        self.now, self.came, self.most = 100.0, 0, 0
        self.living: dict[str, tuple[InferenceRequest, str, int]] = {}
        self.up: set[str] = set()
        self.fleet = Fleet() if random.random() < 0.4 else None
        self.settings_change()
        for _ in NAMES:
            self.endpoint_up()

    def happen(self, event: Event) -> None:
        queued = self.core.totals().queued
        decisions = self.core.handle(event, self.now)
        journal = json.loads(encode_line(0, self.now, event, decisions))
        assert self.replay.handle(decode_event(journal), self.now) == decisions
        for decision in decisions:
            request, where, _ = self.living[decision.request_id]
            assert not where, decision
            if isinstance(decision, Dispatch):
                assert decision.endpoint in self.up
                self.living[request.id] = request, decision.endpoint, decision.attempt
            else:
                del self.living[request.id]
        self.core.check()
        totals = self.core.totals()
        waiting = sum(not where for _, where, _ in self.living.values())
        assert totals.queued + self.core.parked() == waiting
        assert totals.queued + totals.inflight == len(self.living)
        assert totals.queued <= max(queued, self.most) or isinstance(event, Bounced | SettingsChanged)

    # ---- what may happen

    def time_passes(self) -> None:
        self.now += self.one((0.0, 0.001, 0.05, 0.3, 2.0, 20.0))
        self.happen(Tick())

    def the_timer_rings(self) -> None:
        self.now = max(self.now, self.core.next_wakeup() or 0.0)
        self.happen(Tick())

    def some_arrive(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            self.came += 1
            request = self.a_request(f"r{self.came}")
            self.living[request.id] = request, "", 0
            self.happen(Arrived(request=request))

    def a_request(self, name: str) -> InferenceRequest:
        one, blocks = self.one, self.one((0, 1, 5, 9, 30, 200))
        first = 1000 * self.random.randint(0, 3)
        return given.request(
            name,
            at=self.now - one((0.0, 0.0, 0.5)),
            tokens=64 * blocks + one((0, 10, 700)),
            sequences=one((1, 1, 1, 2, 9)),
            max_output=one((0, 256, 4000)),
            band=one((*(band.name for band in BANDS), "gone")),
            tenant=one(("t1", "t2", "t3")),
            model=one(("m1", "m1", "m2", "unknown")),
            session=one(("", "s1", "s2")),
            streamed=one((True, True, False)),
            deadline_s=one((1800.0, 1800.0, 1.0, 0.06)),
            key=one(("k1", "k2")),
            body_bytes=one((100, 1000, 4000)),
            prefix=tuple(range(first, first + blocks)),
        )

    def one_is_told_of_again(self) -> None:
        self.happen(Tick())  # else it may end before, and be another one
        if self.living:
            self.happen(Arrived(request=self.one(list(self.living.values()))[0]))

    def one_leaves(self) -> None:
        self.happen(Tick())
        name, _ = self.some_request()
        self.living.pop(name, None)
        told, seen = self.one((None, 7)), self.one((0, 5))
        self.happen(Cancelled(request_id=name, sent=self.one((True, False)), seen_tokens=seen, prompt_tokens=told))

    def some_request(self) -> tuple[str, int]:
        """Mostly one that runs and its attempt, sometimes another attempt, one that waits, or one nobody knows."""
        running = [name for name, (_, where, _) in self.living.items() if where]
        name = (
            self.one(running or ["r0"]) if self.random.random() < 0.8 else f"r{self.random.randint(0, self.came + 1)}"
        )
        return name, self.living[name][2] if name in self.living else 1

    def first_token(self) -> None:
        name, attempt = self.some_request()
        self.happen(FirstToken(request_id=name, attempt=attempt + self.one((0, 0, 0, -1, 1))))

    def one_ends(self) -> None:
        name, attempt = self.some_request()
        late = self.one((0, 0, 0, 0, -1, 1))
        if not late and self.living.get(name, ("", "", 0))[1]:
            del self.living[name]
        one = self.one
        self.happen(
            Finished(
                request_id=name,
                attempt=attempt + late,
                outcome=one(tuple(Outcome)),
                prompt_tokens=one((None, 0, 100)),
                cached_tokens=one((None, 0, 90, 1000)),
                output_tokens=one((None, 0, 50, 5000)),
                seen_tokens=one((0, 7)),
                left=one((False, False, False, True)),
            )
        )

    def one_bounces(self) -> None:
        name, attempt = self.some_request()
        late = self.one((0, 0, 0, 0, -1, 1))
        if not late and self.living.get(name, ("", "", 0))[1]:
            self.living[name] = self.living[name][0], "", attempt
        self.happen(Bounced(request_id=name, attempt=attempt + late, cause=self.one(tuple(Cause))))

    def endpoint_up(self) -> None:
        one, kv_tokens = self.one, self.one((0, 2000, 50_000))
        endpoint = Endpoint(
            name=one(NAMES),
            pools=one((("short",), ("long",), ("short", "long"), ("short", "other"), ("middle",), ("nowhere",))),
            max_seqs=one((1, 2, 3, 10, 70)),
            max_prefill_tokens=one((500, 1000)),
            partition=one(("shared", "shared", "finance")),
            kv_tokens=kv_tokens,
            long_lanes=one((0, 1, 1, 2)),
            long_prefill_cap=kv_tokens and 512,
            step_tokens=one((0, 500)),
            context_tokens=one((0, 8000)),
            replicas=one((1, 1, 3)),
            prefill_tokens_per_s=one((1000.0, 8000.0)),
        )
        self.up.add(endpoint.name)
        self.happen(EndpointUp(endpoint=endpoint))

    def endpoint_down(self) -> None:
        name = self.one(NAMES)
        self.up.discard(name)
        self.happen(EndpointDown(name=name))

    def an_engine_tells(self) -> None:
        one, name = self.one, self.one(NAMES)
        load = LoadObserved(
            endpoint=name,
            observed_s=self.now,
            running=one((0, 1, 3, 50)),
            waiting=one((0, 0, 9)),
            kv_usage=one((None, 0.0, 1.0)),
            kv_tokens=one((0, 3000)),
        )
        turned = CacheTurned(endpoint=name, stored_tokens=one((0, 50_000)), removed_tokens=50)
        self.happen(one((load, load, load, CacheCleared(endpoint=name), turned)))

    def settings_change(self) -> None:
        one, random = self.one, self.random
        self.most = one((1, 3, 12))
        pools = [pool for pool in POOLS if random.random() < 0.8] or [*POOLS[:1]]
        names = {pool.name for pool in pools}
        settings = given.settings(
            pools=[replace(pool, borrow=tuple(name for name in pool.borrow if name in names)) for pool in pools],
            bands=[band for band in BANDS if random.random() < 0.9] or BANDS,
            max_queued=self.most,
            max_queued_bytes=10_000,
            max_attempts=one((1, 2, 3)),
            admitting=random.random() < 0.95,
            queueing=random.random() < 0.95,
            ordering=one(("fcfs", "edf", "by_length")),
            shed=one(("auto", "llmd", "off")),
            affinity=one((None, Affinity(), SMALL, Affinity(block_tokens=32))),
            fairness=Fairness(quantum=one((100, 8192))),
        )
        settings = replace(settings, tenants=self.tenants(), models=self.models(), fleet=self.fleet)
        self.happen(SettingsChanged(settings=replace(settings, length=one(("learned", "declared")))))

    def tenants(self) -> dict[str, Tenant]:
        one = self.one
        made = (
            Tenant(
                id=name,
                weight=one((1.0, 3.0)),
                partition=one(("shared", "shared", "finance")),
                limits=self.limits(),
                max_queued=one((None, 3)),
                queue_timeout_s=one((None, 2.0, 0.05)),
                mode=one(("enforce", "shadow")),
                keys=one(({}, {"k1": Limits(max_concurrency=1)})),
            )
            for name in ("t1", "t2", "t3")
        )
        return {tenant.id: tenant for tenant in made if self.random.random() < 0.6}

    def models(self) -> dict[str, Model]:
        return self.one(({}, {"m1": Model(name="m1", limits=self.limits())}))

    def limits(self) -> Limits:
        one = self.one
        return Limits(rpm=one((None, 600)), tpm=one((None, 9000)), max_concurrency=one((None, None, 1, 2, 5)))

    def the_clock_is_set(self) -> None:
        self.happen(WallClock(offset_s=86_400.0 * self.one((0.0, 0.5, 400.0))))

    def replicas_come_and_go(self) -> None:
        if self.fleet is not None:
            self.happen(StoreChanged(up=self.one((True, True, False)), replicas=self.random.randint(1, 3)))

    def the_store_answers(self) -> None:
        leasing, one = self.core.metering.leasing, self.one
        for ask in leasing.asks(self.now):
            rule = {"scope": ask.scope, "tenant": ask.tenant, "part": ask.part, "metric": ask.metric}
            granted, used = one((0, ask.need, ask.wanted)), one((0, ask.wanted))
            waits_s = one((None, 0.1, 5.0))
            self.happen(QuotaGranted(**rule, granted=granted, reported=ask.owed, used=used, wait_s=waits_s))
        for slots in list(leasing.slots.asks(self.now, leasing.replicas)):
            whose = {"scope": slots.scope, "tenant": slots.tenant, "part": slots.part}
            until_s = self.now + one((0.5, 30.0))
            told = {"contended": one((True, False)), "until_s": until_s, "wanted": slots.want}
            self.happen(SlotsLeased(**whose, count=one((0, 1, 2)), **told))
        for share in list(leasing.sharing.asks()):
            elsewhere = tuple(self.random.randint(-9000, 90_000) for _ in share.tenants)
            facts = {"pool": share.pool, "band": share.band, "tenants": share.tenants, "served": share.served}
            self.happen(ServedElsewhere(**facts, elsewhere=elsewhere))

    # ---- and then nothing more

    def everybody_goes(self) -> None:
        """What runs ends at once; who waits has its turn, or its time is over."""
        began_s = self.now
        while self.living:
            name = next((name for name, (_, where, _) in self.living.items() if where), None)
            if name is None:
                self.the_timer_rings()
            else:
                _, _, attempt = self.living.pop(name)
                self.happen(Finished(request_id=name, attempt=attempt, outcome=Outcome.COMPLETED))
            assert self.now - began_s < 1.0 + max(band.queue_timeout_s for band in BANDS)
        assert all((view.sequences, view.prefill_tokens, view.kv_tokens) == (0, 0, 0) for view in self.core.endpoints())


MAY_HAPPEN = {
    AnyOrder.some_arrive: 33,
    AnyOrder.time_passes: 12,
    AnyOrder.the_timer_rings: 5,
    AnyOrder.one_is_told_of_again: 2,
    AnyOrder.one_leaves: 6,
    AnyOrder.first_token: 8,
    AnyOrder.one_ends: 9,
    AnyOrder.one_bounces: 6,
    AnyOrder.endpoint_up: 5,
    AnyOrder.endpoint_down: 2,
    AnyOrder.an_engine_tells: 7,
    AnyOrder.settings_change: 3,
    AnyOrder.the_clock_is_set: 1,
    AnyOrder.replicas_come_and_go: 1,
    AnyOrder.the_store_answers: 2,
}


def test_whatever_comes_in_whatever_order_the_books_add_up_and_nobody_waits_for_ever(seed: int) -> None:
    for turn in range(sized(ci=8, nightly=2000)):
        random = Random(seed + turn)
        world = AnyOrder(random)
        for event in random.choices(list(MAY_HAPPEN), list(MAY_HAPPEN.values()), k=STEPS):
            event(world)
        world.everybody_goes()
