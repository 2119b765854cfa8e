"""Hard partitions: their tenants use their own endpoints and no others, and nobody else uses those."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from msgspec import structs

from policies.decisions import Dispatch
from policies.events import Arrived, Cause, EndpointUp, SettingsChanged
from policies.types import Affinity, Endpoint, Pool, Settings, Tenant
from tests.policies.given import World, endpoint, request, settings
from tests.policies.test_machine import Shadow
from tests.policies.test_machine_of_everything import AFFINITIES, MODEL_OF, Everything

LENDING = (
    Pool(name="short", model="llama", max_total_tokens=1000, borrow=("long",), lanes="off"),
    Pool(name="long", model="llama", lanes="off"),
)
BANK = Tenant(id="bank", partition="finance")


def owned(*tenants: Tenant, **more: object) -> Settings:
    made: Settings = settings(**more)  # type: ignore[arg-type]
    return replace(made, tenants={tenant.id: tenant for tenant in tenants or (BANK,)})


def world(**more: object) -> World:
    """`f` is of the partition finance, `s` shared; each takes one request at a time."""
    made = World(endpoint("s", seqs=1), settings=owned(**more))
    made.up(replace(endpoint("f", seqs=1), partition="finance"))
    return made


def test_each_tenant_goes_to_its_own_endpoints_and_waits_for_them_although_others_are_idle() -> None:
    made = world()
    assert made.arrive("a", tenant="bank") == ["a>f"]
    assert made.arrive("b", tenant="bank") == []
    assert made.arrive("c", tenant="acme") == ["c>s"]
    assert made.arrive("d", tenant="acme") == []
    assert made.finish("c", 1.0) == ["d>s"]
    assert made.finish("d", 1.0) == []
    assert made.finish("a", 2.0) == ["b>f"]


def test_a_partition_without_an_endpoint_refuses_at_once() -> None:
    made = world()
    made.down("f", 1.0)
    [decision] = made.happen(_arrived("a", "bank"), 2.0)
    assert (decision.reason, decision.retry_after_s) == ("partition_unavailable", 5.0)  # type: ignore[union-attr]
    assert made.arrive("b", 2.0, tenant="acme") == ["b>s"]


def test_who_waits_in_a_partition_is_refused_as_soon_as_its_last_endpoint_is_gone() -> None:
    made = world()
    made.arrive("a", tenant="bank")
    made.arrive("b", tenant="bank")
    made.arrive("c", tenant="acme")
    made.arrive("d", tenant="acme")
    assert made.down("f", 1.0) == ["b!partition_unavailable"]
    assert made.down("s", 1.0) == []  # the shared ones wait for its return


@pytest.mark.parametrize("cause", Cause)
def test_who_came_back_is_not_tried_in_another_partition(cause: Cause) -> None:
    made = world()
    made.arrive("a", tenant="bank")
    [told] = made.bounce("a", 1.0, cause)
    assert told.startswith("a!")


def test_borrowing_stays_within_the_partition() -> None:
    made = World(endpoint("s", seqs=9, pools=("long",)), settings=owned(pools=LENDING))
    made.up(replace(endpoint("f", seqs=1, pools=("short",)), partition="finance"))
    assert made.arrive("a", tenant="bank", max_output=10) == ["a>f"]
    assert made.arrive("b", tenant="bank", max_output=10) == []  # `s` is idle and would lend
    made.up(replace(endpoint("g", seqs=9, pools=("long",)), partition="finance"), 1.0)
    assert made.load("g") == (1, 100)  # of its own partition


def test_a_warm_engine_of_another_partition_is_neither_waited_for_nor_used() -> None:
    made = world(affinity=Affinity(block_tokens=64))
    chain = tuple(range(1, 30))
    made.arrive("a", tenant="acme", tokens=1900, prefix=chain, session="x")
    made.finish_of("a", 1.0)
    assert made.arrive("b", 2.0, tenant="bank", tokens=1900, prefix=chain, session="x") == ["b>f"]


def test_pools_of_a_partition_have_queues_and_names_of_their_own() -> None:
    made = world()
    assert [view.name for view in made.core.pools()] == ["main", "finance/main"]
    made.arrive("a", tenant="bank")
    made.arrive("b", tenant="bank")
    assert [(view.pool, view.tenant) for view in made.core.flows()] == [("finance/main", "bank")]
    assert made.why("c", tenant="acme").pool == "main"


def test_an_endpoint_of_a_partition_that_nobody_owns_serves_nobody() -> None:
    made = world()
    made.change(settings(), 1.0)
    assert made.arrive("a", 1.0, tenant="bank") == ["a>s"]
    assert made.arrive("b", 1.0, tenant="bank") == []


def test_who_waits_when_its_tenant_moves_is_refused_and_what_runs_ends_where_it_is() -> None:
    made = world()
    made.arrive("a", tenant="bank")
    made.arrive("b", tenant="bank")
    assert made.change(settings(), 1.0) == ["b!partition_unavailable"]
    assert made.arrive("c", 1.0, tenant="bank") == ["c>s"]
    assert made.bounce("a", 2.0) == ["a!backend_unavailable"]  # not to `s`: it began in the other one


def test_queues_that_nothing_needs_are_forgotten() -> None:
    made = world()
    for number in range(20):
        made.change(owned(Tenant(id="bank", partition=f"p{number}")), 1.0)
    assert len(made.core.pools()) == 2


def _arrived(name: str, tenant: str) -> Arrived:
    return Arrived(request=request(name, tenant=tenant))


class Partitioned(Everything):
    """The machine with everything on, and tenants that move between partitions."""

    partitions: tuple[str, str] = ("shared", "hard")

    def change(self, max_attempts: int, admitting: bool, queueing: bool, max_queued: int) -> None:
        self.max_attempts, self.admitting, self.queueing = max_attempts, admitting, queueing
        made = settings(
            pools=self.pools, bands=self.bands, max_queued=max_queued, max_queued_bytes=10_000, max_attempts=max_attempts,
            seed=1, admitting=admitting, queueing=queueing, ordering=self.ordering, affinity=self.affinity,
        )  # fmt: skip
        tenants = {
            name: Tenant(id=name, partition=each) for name, each in zip(("t1", "t2"), self.partitions, strict=True)
        }
        self.happen(SettingsChanged(settings=replace(made, tenants=tenants)))

    @initialize(
        endpoints=st.integers(2, 4),
        ordering=st.sampled_from(["fcfs", "edf", "by_length"]),
        affinity=st.sampled_from(AFFINITIES),
    )
    def begin(self, endpoints: int, ordering: str, affinity: Affinity | None = None) -> None:
        self.affinity, self.ordering = affinity, ordering
        self.change(2, admitting=True, queueing=True, max_queued=12)
        for number in range(endpoints):
            self.partition_up(f"e{number}", ("shared", "hard")[number % 2], ("short", "long"))

    @rule(
        name=st.sampled_from(["e0", "e1", "e2", "e3"]),
        partition=st.sampled_from(["shared", "hard", "nobody"]),
        pools=st.sampled_from([("short",), ("long",), ("short", "long"), ("short", "other")]),
    )
    def partition_up(self, name: str, partition: str, pools: tuple[str, ...]) -> None:
        self.up[name] = Endpoint(
            name=name, pools=pools, max_seqs=2, max_prefill_tokens=1000, partition=partition, step_tokens=500
        )
        self.happen(EndpointUp(endpoint=self.up[name]))

    @rule(partitions=st.sampled_from([("shared", "hard"), ("hard", "hard"), ("shared", "shared"), ("hard", "shared")]))
    def tenants_move(self, partitions: tuple[str, str]) -> None:
        self.partitions = partitions
        self.change(self.max_attempts, self.admitting, self.queueing, 12)

    def dispatched(self, shadow: Shadow, decision: Dispatch) -> None:
        at, why = self.up[decision.endpoint], decision.why
        owner = dict(zip(("t1", "t2"), self.partitions, strict=True))[shadow.request.tenant]
        assert at.partition == owner
        pool = why.pool.removeprefix("hard/")
        assert (pool != why.pool) is (owner == "hard")
        assert MODEL_OF[pool] == shadow.request.model
        super().dispatched(shadow, structs.replace(decision, why=structs.replace(why, pool=pool)))


TestPartitioned = Partitioned.TestCase
TestPartitioned.settings = limits(
    max_examples=30, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
