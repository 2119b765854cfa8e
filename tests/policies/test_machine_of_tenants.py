"""The same machine with tenants that have limits, and limits that change under live requests."""

from collections.abc import Mapping

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from policies.events import ServedElsewhere, StoreChanged, WallClock
from policies.types import Budget, Cost, InferenceRequest, Limits, Model, Reserve, Tenant
from tests.policies.test_machine import Machine, Shadow

KEYS = {"k1": Limits(max_concurrency=1), "k2": Limits(rpm=20)}
TENANCIES: tuple[Mapping[str, Tenant], ...] = (
    {},
    {"t1": Tenant(id="t1", limits=Limits(max_concurrency=1), max_queued=0, keys=KEYS)},
    {
        "t1": Tenant(id="t1", limits=Limits(rpm=600, tpm=9000, max_concurrency=2), keys=KEYS, max_queued=3),
        "t2": Tenant(id="t2", models={"m1": Limits(max_concurrency=1, tpm=5000)}, queue_timeout_s=2.0),
    },
    {
        "t1": Tenant(id="t1", limits=Limits(tpm=4000, otpm=2000), mode="shadow", max_queued_bytes=2500, keys=KEYS),
        "t2": Tenant(
            id="t2",
            limits=Limits(itpm=3000, rpm=30),
            burst_s=10.0,
            cost=Cost(input=0.5, cached=0.1, output=3.0),
            reserve=Reserve(oversize="clamp"),
            budgets=(Budget(id="today", amount=20_000),),
        ),
    },
)

MODELS: tuple[Mapping[str, Model], ...] = (
    {},
    {"m1": Model(name="m1", limits=Limits(max_concurrency=2))},
    {"m1": Model(name="m1", limits=Limits(rpm=60)), "m2": Model(name="m2", limits=Limits(max_concurrency=1))},
    {"m1": Model(name="m1", limits=Limits(tpm=9000, max_concurrency=3)), "m2": Model(name="m2", context_tokens=4096)},
)


class Tenants(Machine):
    tenants = TENANCIES[2]

    def take(self, request: InferenceRequest) -> None:
        key = ("k1", "k2", "k3")[len(self.requests) % 3]
        super().take(replace(request, key=key, names_most=len(self.requests) % 2 == 0))

    @rule(tenancy=st.sampled_from(TENANCIES))
    def tenants_change(self, tenancy: Mapping[str, Tenant]) -> None:
        self.tenants = tenancy
        self.change(self.max_attempts, self.admitting, self.queueing, 12)

    @rule(models=st.sampled_from(MODELS), tenancy=st.none() | st.sampled_from(TENANCIES))
    def what_models_allow_changes(self, models: Mapping[str, Model], tenancy: Mapping[str, Tenant] | None) -> None:
        self.models = models
        self.tenants = self.tenants if tenancy is None else tenancy
        self.change(self.max_attempts, self.admitting, self.queueing, 12)

    @rule(days=st.sampled_from([0.0, 0.5, 400.0]))
    def the_wall_clock_is_told(self, days: float) -> None:
        self.happen(WallClock(offset_s=days * 86_400.0))

    @rule(up=st.booleans(), replicas=st.integers(1, 3))
    def replicas_come_and_go(self, up: bool, replicas: int) -> None:
        self.happen(StoreChanged(up=up, replicas=replicas))

    @rule(data=st.data())
    def others_have_served(self, data: st.DataObject) -> None:
        for ask in list(self.core.metering.leasing.sharing.asks()):
            costs = st.lists(st.integers(-9000, 90_000), min_size=len(ask.tenants), max_size=len(ask.tenants))
            self.happen(
                ServedElsewhere(
                    pool=ask.pool,
                    band=ask.band,
                    tenants=ask.tenants,
                    served=ask.served,
                    elsewhere=tuple(data.draw(costs)),
                )
            )

    def nobody_was_overtaken(self, served: Shadow) -> None:
        """Who waits for a slot is overtaken; `Core.check` looks for those who wait in vain."""

    def compare(self) -> None:
        super().compare()
        for tenant in self.tenants.values():
            cap = tenant.limits.max_concurrency
            metering = self.core.metering
            waiting = [s for s in self.requests.values() if s.request.tenant == tenant.id and s.state == "queued"]
            assert metering.account_of(tenant.id).queued in (0, len(waiting))
            slots = [view for view in metering.slots_of(tenant.id) if view.scope == "tenant"]
            assert all(view.cap == cap for view in slots)
        for view in self.core.metering.meters(self.now):
            assert view.used >= 0.0
            assert view.period != "minute" or view.used <= 2 * view.capacity or view.left == 0.0

    def teardown(self) -> None:
        super().teardown()
        assert all(view.held == 0.0 for view in self.core.metering.meters(self.now))
        assert all(view.used == 0 for tenant in self.tenants for view in self.core.metering.slots_of(tenant))


TestTenants = Tenants.TestCase
TestTenants.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
