"""Several cores over one store, at random: whatever is lost or dies on the way, no more is let in than the limit."""

from random import Random

import pytest

from policies.decisions import Dispatch
from policies.events import QuotaGranted, QuotaReturned, StoreChanged, Tick
from policies.leasing import Ask
from policies.state.meters import MICRO
from policies.types import Budget
from tests.policies.tenants import acme
from tests.policies.test_leasing import Replica

AMOUNT = 20_000


class Store:
    """A budget as lend.lua keeps it."""

    def __init__(self) -> None:
        self.used = 0

    def lend(self, ask: Ask, replicas: int) -> int:
        self.used = max(0, self.used - ask.back) + ask.owed
        left = AMOUNT * MICRO - self.used + ask.have
        block = min(ask.wanted, max(ask.need, max(0, left) // (2 * replicas) // MICRO * MICRO), left)
        granted = max(0, (block if block >= ask.need else 0) - ask.have)
        self.used += granted
        return granted


class World:
    """Replicas, what runs on them, and what of it was let in."""

    def __init__(self, random: Random, count: int, policy: str = "local_share") -> None:
        self.random, self.store = random, Store()
        tenant = acme(budgets=(Budget(id="b", amount=AMOUNT, period="month"),))
        self.replicas = [Replica(tenant, replicas=count, policy=policy) for _ in range(count)]
        self.needs: dict[str, int] = {}
        self.running: list[tuple[int, str]] = []
        self.settled = 0
        self.now = 1.0

    def arrive(self, at: int) -> None:
        name, need = f"r{len(self.needs)}", self.random.choice([7, 40, 100, 400])
        self.needs[name] = need
        self._see(at, [self.replicas[at].ask(name, self.now, tokens=need, max_output=0)])

    def end(self) -> None:
        at, name = self.running.pop(self.random.randrange(len(self.running)))
        used = self.random.choice([self.needs[name], self.random.randint(0, self.needs[name])])
        self.replicas[at].end(name, self.now, prompt_tokens=used, output_tokens=0)
        self.settled += used

    def sync(self, at: int, lost: str = "") -> None:
        """A round of one replica; `lost`: the call, or its answer, on the way."""
        replica = self.replicas[at]
        for ask in replica.asks(self.now):
            rule = {"scope": ask.scope, "tenant": ask.tenant, "part": ask.part, "metric": ask.metric}
            if ask.back:
                replica.happen(QuotaReturned(**rule, amount=ask.back), self.now)
            if lost == "call":
                continue
            granted = self.store.lend(ask, len(self.replicas))
            if lost == "answer":
                continue
            event = QuotaGranted(
                **rule,
                granted=granted,
                reported=ask.owed,
                used=self.store.used,
                wait_s=None if granted or not ask.need else 1e9,
            )
            self._see(at, replica.happen(event, self.now))

    def pass_time(self) -> None:
        self.now += self.random.choice([0.001, 0.02, 0.3, 1.5])
        for at, replica in enumerate(self.replicas):
            self._see(at, replica.happen(Tick(), self.now))

    def held(self) -> int:
        return sum(self.needs[name] for _, name in self.running)

    def _see(self, at: int, decisions: list[object]) -> None:
        self.running += [(at, each.request_id) for each in decisions if isinstance(each, Dispatch)]


@pytest.mark.parametrize("losing", [False, True])
def test_no_more_is_let_in_than_the_limit_and_without_losses_all_of_it(seed: int, losing: bool) -> None:
    for turn in range(12):
        random = Random(seed + turn)
        world = World(random, random.randint(1, 5), policy="closed")
        for _ in range(600):
            at, what = random.randrange(len(world.replicas)), random.random()
            if what < 0.5:
                world.arrive(at)
                world.sync(at, random.choice(["", "", "call", "answer"]) if losing else "")
            elif what < 0.8 and world.running:
                world.end()
            else:
                world.pass_time()
            assert world.held() + world.settled <= AMOUNT
        while world.running:
            world.end()
        for _ in range(3):
            world.now += 2.0
            for at in range(len(world.replicas)):
                world.sync(at)
        if losing:
            assert world.store.used >= world.settled * MICRO
        else:
            assert world.store.used == world.settled * MICRO


def test_without_the_store_replicas_take_no_more_than_a_tenth_too_much_together(seed: int) -> None:
    for turn in range(12):
        random = Random(seed + turn)
        count = random.randint(2, 5)
        world = World(random, count)
        for _ in range(100):
            at = random.randrange(count)
            world.arrive(at)
            world.sync(at)
        for replica in world.replicas:
            replica.happen(StoreChanged(up=False, replicas=count), world.now)
        for _ in range(1_500):
            world.arrive(random.randrange(count))
            if world.running and random.random() < 0.5:
                world.end()
            assert world.held() + world.settled <= 1.1 * AMOUNT
        for replica in world.replicas:
            replica.happen(StoreChanged(up=True, replicas=count), world.now)
        while world.running:
            world.end()
        for _ in range(3):
            world.now += 2.0
            for at in range(count):
                world.sync(at)
        assert world.store.used == world.settled * MICRO
