"""Tenants of one class share it by what their requests cost: tenancy.md 6 and rows 27 to 29 of its acceptance."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from policies.decisions import Decision
from policies.events import Arrived, Event, Finished, Outcome
from policies.types import Band, Fairness, Settings, Tenant
from tests.policies.given import World, endpoint, request, settings, told

BAND = Band(name="standard", rank=2, queue_timeout_s=1e6, max_queued=100_000)
QUANTUM = 8192


def given(*, fairness: Fairness | None = None, **weights: float) -> Settings:
    tenants = {name: Tenant(id=name, weight=weight) for name, weight in weights.items()}
    return replace(
        settings(bands=(BAND,), max_queued=100_000, fairness=fairness or Fairness()), tenants=tenants, length="declared"
    )


@dataclass
class Shop:
    """One place; each request holds it for as long as its cost takes at `speed` cost units a second."""

    settings: Settings
    speed: float = 100_000.0
    now: float = 0.0
    sent: int = 0
    events: int = 0
    running: str = ""
    cost: dict[str, float] = field(default_factory=dict)
    served: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(endpoint("x", seqs=1, prefill=1 << 30), settings=self.settings)

    def send(self, tenant: str, tokens: int, answer: int = 0) -> str:
        self.sent += 1
        name = f"{tenant}:{self.sent}"
        self.cost[name] = max(1, tokens + 2 * answer)
        asked = request(name, at=self.now, tokens=tokens, max_output=answer, tenant=tenant, deadline_s=1e6)
        self.took(told(self.happen(Arrived(request=asked))))
        return name

    def happen(self, event: Event) -> list[Decision]:
        """The books are checked now and then: that is linear in all that waits."""
        self.events += 1
        if self.events % 100 == 0:
            self.world.core.check()
        return self.world.core.handle(event, self.now)

    def took(self, told: list[str]) -> None:
        for text in told:
            self.running = text.partition(">")[0]
            self.served[self.running.partition(":")[0]] += self.cost[self.running]
            self.order.append(self.running)

    def step(self) -> None:
        """What runs ends; the next one begins."""
        tokens = int(self.cost[self.running])
        self.now += tokens / self.speed
        self.end()

    def end(self, answer: int | None = None) -> None:
        """What runs ends now, and the engine counts so much of an answer."""
        event = Finished(
            request_id=self.running,
            attempt=1,
            outcome=Outcome.COMPLETED,
            prompt_tokens=int(self.cost[self.running]) if answer else None,
            output_tokens=answer,
        )
        self.took(told(self.happen(event)))


def backlog(shop: Shop, tenant: str, count: int, tokens: int, answer: int = 0) -> None:
    for _ in range(count):
        shop.send(tenant, tokens, answer)


def test_row_27_shares_follow_the_weights_and_the_bound_holds_at_every_instant() -> None:
    shop = Shop(given(a=4.0, b=1.0))
    backlog(shop, "a", 2200, 2048, 256)
    backlog(shop, "b", 700, 2048, 256)
    shop.served.clear()
    while shop.now < 60.0:
        shop.step()
        gap = abs(shop.served["a"] / 4.0 - shop.served["b"])
        assert gap <= QUANTUM + 2560 * (1 / 4.0 + 1)
    share = shop.served["a"] / (shop.served["a"] + shop.served["b"])
    assert 0.78 <= share <= 0.82


@pytest.mark.parametrize("long", "ab")
def test_row_27_shares_are_the_same_where_one_sends_prompts_of_a_hundred_thousand_tokens(long: str) -> None:
    shop = Shop(given(a=4.0, b=1.0), speed=200_000.0)
    for tenant in "ab":
        backlog(shop, tenant, *((110, 100_000) if tenant == long else (2_200, 5_000)))
    shop.served.clear()
    while shop.now < 60.0:
        shop.step()
    assert 0.78 <= shop.served["a"] / (shop.served["a"] + shop.served["b"]) <= 0.82
    assert shop.world.core.totals().queued > 100  # both waited to the end


def test_row_28_the_first_request_of_one_who_was_away_goes_next() -> None:
    shop = Shop(given(a=1.0, b=1.0))
    backlog(shop, "a", 200, 2048, 256)
    for _ in range(50):
        shop.step()
    first = shop.send("b", 2048, 256)
    backlog(shop, "b", 19, 2048, 256)
    shop.step()
    assert shop.running == first
    shop.served.clear()
    for _ in range(38):
        shop.step()
    assert shop.served["b"] == pytest.approx(shop.served["a"], abs=QUANTUM + 2 * 2560)


def test_row_29_long_prompts_do_not_count_as_one() -> None:
    shop = Shop(given(a=1.0, b=1.0))
    backlog(shop, "a", 36, 100_000)
    backlog(shop, "b", 7_000, 500)
    shop.served.clear()
    while shop.now < 60.0:
        shop.step()
    assert shop.served["a"] == pytest.approx(shop.served["b"], rel=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_holds_over_every_interval_whatever_comes(seed: int) -> None:
    """|S_i / w_i - S_j / w_j| <= Q + Cmax x (1 / w_i + 1 / w_j) while both wait, with comings and goings of a third."""
    random = Random(seed)
    weights = {"a": random.choice([1.0, 2.5, 8.0]), "b": random.choice([0.5, 1.0, 3.0]), "c": 1.0}
    largest = random.choice([600, 9000, 60_000])
    shop = Shop(given(**weights))
    waiting = dict.fromkeys(weights, 0)
    lead = {(one, other): [0.0, 0.0] for one, other in (("a", "b"), ("a", "c"), ("b", "c"))}  # least and most so far
    for _ in range(400):
        for tenant in weights:
            while waiting[tenant] < (5 if tenant != "c" or random.random() < 0.3 else 0):
                shop.send(tenant, random.randint(1, largest))
                waiting[tenant] += 1
        shop.step()
        for tenant in weights:
            waiting[tenant] = sum(name.startswith(tenant) for name in shop.cost) - sum(
                name.startswith(tenant) for name in shop.order
            )
        for (one, other), seen in lead.items():
            gap = shop.served[one] / weights[one] - shop.served[other] / weights[other]
            if not (waiting[one] and waiting[other]):
                seen[:] = [gap, gap]
            seen[:] = [min(seen[0], gap), max(seen[1], gap)]
            assert seen[1] - seen[0] <= QUANTUM + largest * (1 / weights[one] + 1 / weights[other])


def test_one_who_leaves_and_comes_back_does_not_escape_what_it_owes() -> None:
    shop = Shop(given(a=1.0, b=1.0))
    shop.send("a", 100)
    debtor = shop.send("b", 1000)
    backlog(shop, "a", 400, 1000)
    while shop.running != debtor:
        shop.step()
    shop.now += 1.0
    shop.end(answer=20_000)  # it was to have none
    again = shop.send("b", 1000)
    steps = 0
    while shop.running != again:
        shop.step()
        steps += 1
    assert 30 <= steps <= 60  # of 1,000 each: about what it had too much


def test_a_debt_is_forgotten_after_a_minute() -> None:
    shop = Shop(given(a=1.0, b=1.0), speed=1000.0)
    shop.send("a", 100)
    debtor = shop.send("b", 1000)
    backlog(shop, "a", 40, 1000)
    while shop.running != debtor:
        shop.step()
    shop.end(answer=200_000)
    for _ in range(12):
        shop.step()  # `a` has had its first quantum
    shop.now += 62.0
    shop.world.tick(shop.now)
    again = shop.send("b", 1000)
    shop.step()
    assert shop.running == again


def test_round_robin_counts_requests() -> None:
    shop = Shop(given(fairness=Fairness(kind="round_robin"), a=2.0, b=1.0))
    backlog(shop, "a", 100, 10_000)
    backlog(shop, "b", 100, 100)
    for _ in range(60):
        shop.step()
    counts = [sum(name.startswith(tenant) for name in shop.order[1:]) for tenant in "ab"]
    assert counts[0] == pytest.approx(2 * counts[1], abs=3)


def test_a_tenant_without_a_place_it_could_use_holds_up_nobody() -> None:
    """`b` came back from `x` and waits for `y`, which is full: `a` and `c` share `x` as before."""
    world = World(endpoint("x", seqs=1), settings=given(a=1.0, b=1.0, c=1.0))
    world.arrive("b", tenant="b")
    world.up(endpoint("y", seqs=1), 0.1)
    assert world.arrive("long", 0.2, tenant="a") == ["long>y"]
    for number in range(6):
        world.arrive(f"{'ac'[number % 2]}{number}", 0.3, tokens=5000, tenant="ac"[number % 2])
    gone = world.bounce("b", 0.5)
    for at in range(1, 6):
        running = gone[0].partition(">")[0]
        assert gone == [f"{running}>x"]
        gone = world.finish(running, float(at))
    assert world.finish("long", 9.0) == ["b>y#2"]


def test_accounts_of_those_who_are_away_are_forgotten() -> None:
    shop = Shop(given(a=1.0, b=1.0))
    backlog(shop, "a", 5, 1000)
    backlog(shop, "b", 5, 1000)
    while shop.world.core.totals().queued:
        shop.step()
    shop.step()
    [pool] = shop.world.core._books.pools.values()
    assert set(pool.shares["standard"].accounts) <= {"a", "b"}
    for later in (1.5, 3.0, 63.0, 65.0):
        shop.world.tick(shop.now + later)
    assert pool.shares["standard"].accounts == {}


def test_places_do_not_run_out_where_somebody_new_always_breaks_in() -> None:
    names = [f"t{number}" for number in range(40)]
    shop = Shop(given(a=1.0), speed=1000.0)
    backlog(shop, "a", 400, 9000)
    for number in range(300):
        shop.send(names[number % 40], 10)
        shop.step()
    shop.world.core.check()
    assert len(set(shop.order)) == len(shop.order)
    assert sum(not name.startswith("a") for name in shop.order) > 250
