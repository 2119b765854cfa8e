"""Tenants are served fairly over several replicas: tenancy.md 8.4 and row 30 of its acceptance, without a store."""

from collections import Counter, defaultdict
from random import Random

import pytest

from policies.events import ServedElsewhere, StoreChanged
from tests.policies.test_fairness import QUANTUM, Shop, backlog, given

SYNC_S = 0.25


class Fleet:
    """Replicas with one place each, and what they know of each other, `SYNC_S` late at most."""

    def __init__(self, count: int, **weights: float) -> None:
        self.shops = [Shop(given(**weights)) for _ in range(count)]
        self.totals: Counter[tuple[str, str, str]] = Counter()
        self.known: list[Counter[tuple[str, str, str]]] = [Counter() for _ in range(count)]
        for shop in self.shops:
            shop.happen(StoreChanged(up=True, replicas=count))
        self.synced = [0.0] * count

    def sync(self, at: int) -> None:
        shop, known = self.shops[at], self.known[at]
        for ask in list(shop.world.core.metering.leasing.sharing.asks()):
            elsewhere = []
            for tenant, served in zip(ask.tenants, ask.served, strict=True):
                key = (ask.pool, ask.band, tenant)
                self.totals[key] += served
                elsewhere.append(self.totals[key] - known[key] - served)
                known[key] = self.totals[key]
            facts = {"pool": ask.pool, "band": ask.band, "tenants": ask.tenants, "served": ask.served}
            shop.happen(ServedElsewhere(**facts, elsewhere=tuple(elsewhere)))  # type: ignore[arg-type]

    def run(self, seconds: float) -> None:
        """Everybody serves for so long; the one that is behind is next."""
        until_s = max(shop.now for shop in self.shops) + seconds
        while (at := min(range(len(self.shops)), key=lambda each: self.shops[each].now)) is not None:
            shop = self.shops[at]
            if shop.now >= until_s:
                return
            if not shop.running:  # nothing waits here
                shop.now = until_s
                continue
            shop.step()
            if shop.now - self.synced[at] >= SYNC_S:
                self.synced[at] = shop.now
                self.sync(at)

    def served(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for shop in self.shops:
            for tenant, cost in shop.served.items():
                found[tenant] += cost
        return found

    def check(self) -> None:
        for shop in self.shops:
            shop.world.core.check()


def test_row_30_a_tenant_on_two_replicas_has_no_more_than_one_on_one() -> None:
    fleet = Fleet(2, a=1.0, b=1.0)
    for shop in fleet.shops:
        backlog(shop, "a", 2600, 2048, 256)
    backlog(fleet.shops[1], "b", 2600, 2048, 256)
    fleet.run(60.0)
    served = fleet.served()
    assert 0.45 <= served["a"] / (served["a"] + served["b"]) <= 0.55
    fleet.check()


def test_without_a_store_each_replica_shares_what_it_has() -> None:
    """What row 30 would be without the counters: three quarters for the one on both."""
    fleet = Fleet(2, a=1.0, b=1.0)
    for shop in fleet.shops:
        shop.happen(StoreChanged(up=False, replicas=2))
        backlog(shop, "a", 800, 2048, 256)
    backlog(fleet.shops[1], "b", 800, 2048, 256)
    fleet.run(15.0)
    served = fleet.served()
    assert 0.7 <= served["a"] / (served["a"] + served["b"]) <= 0.8
    assert list(fleet.shops[0].world.core.metering.leasing.sharing.asks()) == []


@pytest.mark.parametrize("count", [2, 4])
def test_weights_hold_over_all_replicas_whoever_comes_where(count: int) -> None:
    fleet = Fleet(count, a=3.0, b=1.0, c=1.0)
    for shop in fleet.shops[1:]:
        backlog(shop, "a", 1400, 2048, 256)
    backlog(fleet.shops[0], "b", 1400, 2048, 256)
    backlog(fleet.shops[1], "b", 1400, 2048, 256)
    backlog(fleet.shops[1], "c", 1400, 2048, 256)
    for shop in fleet.shops:
        shop.served.clear()
    fleet.run(20.0)
    served = fleet.served()
    assert served["a"] == pytest.approx(3 * served["c"], rel=0.1)
    assert fleet.shops[1].served["b"] <= 0.02 * served["b"]  # it has all of another one
    fleet.check()


@pytest.mark.parametrize("count", [3, 5])
def test_where_all_wait_everywhere_replicas_do_not_swing_from_one_to_the_other(count: int) -> None:
    """Each hears the same of the others: if each made up for all of it at once, they would take turns of `SYNC_S`."""
    fleet = Fleet(count, a=1.0, b=1.0)
    random = Random(count)
    for shop in fleet.shops:
        shop.speed = 400_000.0  # in `SYNC_S` much more than a round
        for tenant in "ab" * 400:
            shop.send(tenant, random.randint(100, 5000))
    fleet.run(0.5)
    for _ in range(12):
        before = [shop.served["a"] - shop.served["b"] for shop in fleet.shops]
        fleet.run(SYNC_S)
        after = [shop.served["a"] - shop.served["b"] for shop in fleet.shops]
        assert all(abs(now - then) <= 0.4 * 400_000 * SYNC_S for now, then in zip(after, before, strict=True))
    served = fleet.served()
    assert abs(served["a"] - served["b"]) <= QUANTUM + 2 * 5000


def test_what_was_served_before_a_tenant_came_is_not_held_against_it() -> None:
    fleet = Fleet(2, a=1.0, b=1.0)
    backlog(fleet.shops[0], "a", 1000, 2048, 256)
    backlog(fleet.shops[1], "b", 1000, 2048, 256)
    fleet.run(10.0)
    first = fleet.shops[1].send("a", 2048, 256)
    fleet.shops[1].step()
    assert fleet.shops[1].running == first


def test_a_lead_is_made_up_for_within_sixteen_rounds() -> None:
    """`a` had all of another replica for long; once it waits here alone with `b`, it is not shut out for as long."""
    fleet = Fleet(2, a=1.0, b=1.0)
    backlog(fleet.shops[0], "a", 1200, 2048, 256)
    backlog(fleet.shops[1], "a", 1200, 2048, 256)
    backlog(fleet.shops[1], "b", 3000, 2048, 256)
    fleet.run(25.0)
    here = fleet.shops[1]
    left_at, had = here.served["b"], here.served["a"]
    while here.served["a"] == had:
        here.step()
    assert here.served["b"] - left_at <= 18 * QUANTUM


def test_requests_that_find_room_count_too_and_those_that_come_back_do_not() -> None:
    fleet = Fleet(2, a=1.0)
    shop = fleet.shops[0]
    shop.send("a", 1000, 0)
    sharing = shop.world.core.metering.leasing.sharing
    assert [(ask.tenants, ask.served) for ask in sharing.asks()] == [(("a",), (1000,))]
    fleet.sync(0)
    shop.end(answer=10)  # of which nobody had thought
    assert [(ask.tenants, ask.served) for ask in sharing.asks()] == [(("a",), (20,))]
    fleet.sync(0)
    assert list(sharing.asks()) == []
    assert fleet.totals["main", "standard", "a"] == 1020
