"""Limits of several replicas in the core: blocks, who waits for one, and what holds without the store."""

from dataclasses import replace
from typing import Any

import pytest

from policies.decisions import Dispatch, Reason, Reject
from policies.events import QuotaGranted, QuotaReturned, SettingsChanged, SlotsLeased, StoreChanged, Tick, WallClock
from policies.leasing import PARK_S, Ask
from policies.state.meters import MICRO
from policies.state.slotleases import SlotAsk
from policies.types import Band, Budget, Fleet, Limits, Model, Settings, Tenant
from tests.policies import given
from tests.policies.tenants import Quotas, acme, limited


class Replica(Quotas):
    """A core that shares limits. Its store is played by the test: `grant` answers the oldest ask."""

    def __init__(self, tenant: Any, replicas: int = 2, policy: str = "local_share", **more: Any) -> None:
        super().__init__(tenant, **more)
        self.fleet = Fleet(on_store_down=policy, replicas=replicas)
        self.settings: Settings = replace(limited(tenant, **more), fleet=self.fleet)
        self.core = type(self.core)()
        self.happen(SettingsChanged(settings=self.settings), 0.0)
        self.up(given.endpoint("x", seqs=500, prefill=10_000_000))

    def asks(self, now: float, *, leaving: bool = False) -> list[Ask]:
        return self.core.metering.leasing.asks(now, leaving=leaving)

    def grant(self, ask: Ask, now: float, units: float, used: float = 0.0, wait_s: float | None = None) -> list[str]:
        """Everything is told that was handed back, then what the store says. Who was told what."""
        rule = {"scope": ask.scope, "tenant": ask.tenant, "part": ask.part, "metric": ask.metric}
        if ask.back:
            self.happen(QuotaReturned(**rule, amount=ask.back), now)
        granted, taken = round(units * MICRO), round(used * MICRO)
        decisions = self.happen(
            QuotaGranted(**rule, granted=granted, reported=ask.owed, used=taken, wait_s=wait_s), now
        )
        return [
            f"{each.request_id} {'ok' if isinstance(each, Dispatch) else getattr(each, 'reason', each)}"
            for each in decisions
        ]

    def filled(self, units: float, now: float = 0.0) -> None:
        """A block of so many units, by a request that needed one and was refunded."""
        self.ask("first", now, tokens=1, max_output=0)
        (ask,) = self.asks(now)
        self.grant(ask, now, units, used=units)
        self.end("first", now, prompt_tokens=0, output_tokens=0)


def test_a_request_waits_for_the_first_block_and_the_next_one_does_not() -> None:
    world = Replica(acme(tpm=1000))
    assert world.told("a") == "queued"
    assert world.core.totals().inflight == 1
    (ask,) = world.asks(0.0)
    assert (ask.need, ask.wanted, ask.capacity, ask.per_minute) == (40 * MICRO, 80 * MICRO, 1000, 1000)
    assert world.grant(ask, 0.001, 80, used=80) == ["a ok"]
    assert world.told("b", 0.002) == "ok"
    assert world.told("c", 0.003) == "queued"


def test_who_waits_longer_than_the_store_may_take_gets_a_share_of_what_was_left() -> None:
    world = Replica(acme(tpm=100), replicas=2)
    world.ask("a")
    assert world.core.next_wakeup() == PARK_S
    (decision,) = world.happen(Tick(), PARK_S)
    assert isinstance(decision, Dispatch)
    assert world.refused("b", PARK_S).reason is Reason.QUOTA_TOKENS  # 50 are a half of it, 40 are used
    (ask,) = world.asks(0.1)
    assert ask.owed == 40 * MICRO


def test_what_the_store_says_is_empty_refuses_at_once_until_the_next_round() -> None:
    world = Replica(acme(tpm=100))
    world.ask("a")
    (ask,) = world.asks(0.0)
    assert world.grant(ask, 0.001, 0, used=100, wait_s=24.0) == ["a quota_tokens"]
    refused = world.refused("b", 0.1)
    assert refused.retry_after_s == pytest.approx(23.9, abs=0.1)
    assert world.told("c", 0.3) == "queued"  # the next round has begun: it may be otherwise now


def test_what_is_too_small_goes_back_so_that_fragments_come_together() -> None:
    world = Replica(acme(tpm=1000))
    world.filled(30)
    world.ask("a", 0.1)
    (ask,) = world.asks(0.1)
    assert (ask.back, ask.need) == (30 * MICRO, 40 * MICRO)
    world.happen(QuotaReturned(scope="tenant", tenant="acme", part="", metric="tpm", amount=ask.back), 0.1)
    assert world.told("small", 0.1, tokens=1, max_output=1) == "queued"  # it is on its way: nobody spends it twice


def test_a_block_is_asked_for_ahead_of_need_and_goes_back_when_nobody_does() -> None:
    world = Replica(acme(tpm=6000))
    world.filled(500)
    for number in range(8):
        assert world.told(f"r{number}", 0.1) == "ok"
    (ask,) = world.asks(0.25)
    assert (ask.need, ask.have, ask.wanted) == (0, 180 * MICRO, 4 * 321 * MICRO)
    world.grant(ask, 0.25, 1000, used=1500)
    assert world.asks(1.0) == []
    (ask,) = world.asks(1.3)
    assert (ask.back, ask.wanted) == (1180 * MICRO, 0)


def test_an_answer_longer_than_was_reserved_for_is_owed_and_told() -> None:
    world = Replica(acme(tpm=1000))
    world.ask("a")
    (ask,) = world.asks(0.0)
    world.grant(ask, 0.0, 40, used=40)
    world.end("a", 0.1, prompt_tokens=10, output_tokens=90)
    (ask,) = world.asks(0.1)
    assert (ask.owed, ask.need) == (60 * MICRO, 0)
    world.grant(ask, 0.1, 0, used=100)
    assert [ask.owed for ask in world.asks(0.1)] == [0]


@pytest.mark.parametrize(
    ("policy", "said"),
    [("open", ["ok"] * 6), ("closed", ["quota_store"] * 6), ("local_share", ["ok"] * 3 + ["quota_requests"] * 3)],
)
def test_without_the_store_each_policy_does_what_it_says(policy: str, said: list[str]) -> None:
    world = Replica(acme(rpm=6), policy=policy)
    world.happen(StoreChanged(up=False, replicas=2), 0.0)
    assert [world.told(f"r{number}") for number in range(6)] == said


def test_a_tenants_own_policy_goes_before_that_of_the_fleet() -> None:
    world = Replica(acme(rpm=6, on_store_down="closed"), policy="open")
    world.happen(StoreChanged(up=False, replicas=2), 0.0)
    refused = world.refused("r")
    assert (refused.reason, refused.retry_after_s) == (Reason.QUOTA_STORE, 1.0)


def test_a_local_share_refills_at_a_share_of_the_limit() -> None:
    world = Replica(acme(rpm=300), replicas=3)
    world.happen(StoreChanged(up=False, replicas=3), 0.0)
    said = [world.told(f"r{step}", step * 0.05) for step in range(1200)]  # 20 a second for a minute
    assert 199 <= said.count("ok") <= 201  # 100 that were there and 100 that came


def test_a_limit_of_less_than_a_request_for_each_replica_lets_one_in_now_and_then() -> None:
    world = Replica(acme(rpm=60, burst_s=1), replicas=8)
    world.happen(StoreChanged(up=False, replicas=8), 0.0)
    assert world.told("first") == "ok"
    refused = world.refused("second", 0.5)
    assert (refused.reason, refused.retry_after_s) == (Reason.QUOTA_REQUESTS, 7.5)
    assert world.told("third", 8.1) == "ok"
    said = [world.told(f"r{step}", 10.0 + step * 0.1) for step in range(6000)]  # ten minutes
    assert 73 <= said.count("ok") <= 75  # an eighth of sixty a minute


def test_a_budgets_parts_of_other_replicas_are_not_shown_as_used() -> None:
    world = Replica(acme(budgets=(Budget(id="month", amount=1000, period="month"),)), replicas=8)
    world.happen(StoreChanged(up=False, replicas=8), 0.0)
    assert world.told("r") == "ok"
    (view,) = [each for each in world.core.metering.meters(1.0) if each.period == "month"]
    assert (view.used, view.soft) == (8 * 40, False)  # what this one does the others are thought to do
    assert view.left == 1000 - 8 * 40
    assert [world.told(f"r{number}", 2.0) for number in range(3)] == ["ok", "ok", "budget"]


def test_when_the_store_is_back_what_was_spent_is_told_first() -> None:
    world = Replica(acme(rpm=60), replicas=2)
    world.happen(StoreChanged(up=False, replicas=2), 0.0)
    assert [world.told(f"r{number}") for number in range(10)] == ["ok"] * 10
    world.happen(StoreChanged(up=True, replicas=2), 1.0)
    (ask,) = world.asks(1.0)
    assert ask.owed == 10 * MICRO
    world.grant(ask, 1.0, 0, used=55)
    assert world.told("next", 1.1) == "queued"
    (ask,) = world.asks(1.1)
    assert world.grant(ask, 1.1, 5, used=60) == ["next ok"]


def test_a_store_that_fails_frees_who_waits_for_it() -> None:
    world = Replica(acme(rpm=60))
    world.ask("a")
    decisions = world.happen(StoreChanged(up=False, replicas=1), 0.01)
    assert [type(each) for each in decisions] == [Dispatch]


def test_a_request_that_is_told_of_again_while_it_waits_for_the_store_is_one() -> None:
    world = Replica(acme(tpm=1000))
    assert [world.told("a"), world.told("a", 0.001)] == ["queued", "queued"]
    assert world.core.totals().received == 1
    (ask,) = world.asks(0.002)
    assert world.grant(ask, 0.002, 80, used=80) == ["a ok"]


@pytest.mark.parametrize("patience_s", [PARK_S + 0.005, 30.0])
def test_who_waited_for_the_store_takes_one_place_in_a_full_queue_whatever_comes_after_it(patience_s: float) -> None:
    """Whether the one that leaves for it is out of time at the same moment, or the next that waited is refused."""
    critical = Band(name="critical", rank=0, queue_timeout_s=30.0, max_queued=9)
    hasty = Tenant(id="hasty", queue_timeout_s=patience_s, limits=Limits(max_concurrency=9))
    world = Replica(acme(tpm=1000), bands=(critical, *given.BANDS), max_queued=1)
    world.change(replace(world.settings, tenants={"acme": acme(tpm=1000), "hasty": hasty}), 0.0)
    world.up(given.endpoint("x", seqs=1))
    world.ask("runs", tenant="other")
    world.ask("waits", tenant="hasty")
    world.ask("first", band="critical")
    world.ask("second")
    assert world.core.parked() == 2
    told = given.told(world.happen(Tick(), PARK_S + 0.01))
    assert sorted(told) == ["second!overloaded", "waits!evicted"]
    assert world.core.totals().queued == 1


def test_who_leaves_while_it_waits_holds_nothing() -> None:
    world = Replica(acme(rpm=60))
    world.ask("a")
    world.leave("a", 0.01)
    assert world.core.totals().cancelled == 1
    assert world.asks(0.01) == []
    assert world.core.next_wakeup() is None


def test_new_settings_find_those_that_wait() -> None:
    world = Replica(acme(rpm=60))
    world.ask("a")
    decisions = world.happen(SettingsChanged(settings=replace(world.settings, tenants={"acme": acme()})), 0.01)
    assert [type(each) for each in decisions] == [Dispatch]


def test_a_drained_replica_hands_everything_back() -> None:
    world = Replica(acme(tpm=1000))
    world.filled(300)
    (ask,) = world.asks(0.1, leaving=True)
    assert ask.back == 300 * MICRO


def test_a_budget_is_lent_out_too_and_nothing_of_it_outlives_its_period() -> None:
    world = Replica(acme(budgets=(Budget(id="day", amount=1000),)))
    world.ask("a", 10.0)
    (ask,) = world.asks(10.0)
    assert (ask.per_minute, ask.period, ask.capacity) == (0, 0, 1000)
    world.grant(ask, 10.0, 500, used=500)
    assert world.told("b", 86_399.0) == "ok"
    assert world.told("c", 86_401.0) == "queued"
    (ask,) = world.asks(86_401.0)
    assert (ask.period, ask.back) == (86_400, 0)


def test_a_shadowed_tenant_waits_for_the_truth_and_passes() -> None:
    world = Replica(acme(rpm=60, mode="shadow"))
    world.ask("a")
    (ask,) = world.asks(0.0)
    assert world.grant(ask, 0.0, 0, used=60, wait_s=1.0) == ["a ok"]
    assert world.meter("rpm", 0.0).denied_shadow == 1


def test_what_can_never_fit_is_refused_without_asking() -> None:
    world = Replica(acme(tpm=100))
    assert world.refused("r", tokens=200).reason is Reason.EXCEEDS_LIMIT


def test_what_a_client_is_told_is_left_counts_the_fleet_and_its_block() -> None:
    world = Replica(acme(tpm=1000))
    world.ask("a")
    (ask,) = world.asks(0.0)
    world.grant(ask, 0.0, 80, used=300)  # 80 of them are here, 40 of those not spent
    standing = world.core.metering.standing(("acme", "", "llama"), 0.0, apart=True)
    assert standing is not None
    assert standing.levels["tpm"].left == 740
    assert isinstance(world.ask("never", tokens=5000), Reject)


# ---- slots


def lease(world: Replica, ask: SlotAsk, count: int, now: float = 0.0, *, contended: bool = False) -> list[str]:
    """What the store has leased until 25 s later."""
    event = SlotsLeased(
        scope=ask.scope,
        tenant=ask.tenant,
        part=ask.part,
        count=count,
        contended=contended,
        until_s=now + 25.0,
        wanted=ask.want,
    )
    return [each.request_id for each in world.happen(event, now) if isinstance(each, Dispatch)]


def slot_asks(world: Replica, now: float, *, leaving: bool = False) -> list[tuple[int, int]]:
    """How many are wanted of how many that run."""
    return [(ask.want, ask.used) for ask in world.core.metering.leasing.slots.asks(now, 2, leaving=leaving)]


def slot_ask(world: Replica, now: float) -> SlotAsk:
    (ask,) = world.core.metering.leasing.slots.asks(now, 2)
    return ask


def test_requests_wait_for_a_lease_in_their_queue_and_run_as_far_as_it_goes() -> None:
    world = Replica(acme(max_concurrency=8))
    assert [world.told(name) for name in "abc"] == ["queued"] * 3
    ask = slot_ask(world, 0.0)
    assert (ask.cap, ask.want, ask.used) == (8, 4, 0)  # three, and one to spare
    assert lease(world, ask, 2) == ["a", "b"]
    world.end("a", 0.1)
    assert world.told("d", 0.2) == "queued"  # c went first


def test_slots_that_a_model_gets_are_leased_before_anybody_takes_one() -> None:
    """Who waits already waits for them as well; what runs counts as soon as the store is told."""
    world = Replica(acme(max_concurrency=8))
    for name in "abc":
        world.ask(name)
    lease(world, slot_ask(world, 0.0), 2)
    models = {"llama": Model(name="llama", limits=Limits(max_concurrency=4))}
    world.happen(SettingsChanged(settings=replace(world.settings, models=models)), 1.0)
    asked = {ask.scope: ask for ask in world.core.metering.leasing.slots.asks(1.0, 2)}
    assert (asked["model"].cap, asked["model"].used) == (4, 2)
    assert lease(world, asked["tenant"], 8, 1.1) == []
    assert lease(world, asked["model"], 3, 1.2) == ["c"]
    assert world.told("d", 1.3) == "queued"
    world.happen(SettingsChanged(settings=world.settings), 1.4)
    assert world.core.totals().queued == 0


def test_what_holds_without_the_store_is_another_thing_after_a_reload_and_what_runs_settles_as_it_was_held() -> None:
    world = Replica(acme(tpm=1000))
    world.filled(300)
    world.ask("a", 0.1)
    world.happen(StoreChanged(up=False, replicas=2), 0.2)
    fleet = replace(world.fleet, on_store_down="closed")
    world.happen(SettingsChanged(settings=replace(world.settings, fleet=fleet)), 0.3)
    world.end("a", 0.4, prompt_tokens=10, output_tokens=5)
    view = world.meter("tpm", 0.4)
    assert (view.settled, view.held) == (15.0, 0.0)
    refused = [world.ask(f"n{number}", 0.5) for number in range(40)][-1]
    assert isinstance(refused, Reject) and refused.reason is Reason.QUOTA_STORE


def test_spare_slots_go_back_after_a_second_and_all_of_them_when_it_ends() -> None:
    world = Replica(acme(max_concurrency=8))
    world.ask("a")
    lease(world, slot_ask(world, 0.0), 2)
    assert slot_asks(world, 0.3) == []
    world.end("a", 0.4)
    assert slot_asks(world, 0.5) == []
    assert slot_asks(world, 1.6) == [(0, 0)]
    assert slot_asks(world, 1.6, leaving=True) == [(0, 0)]


def test_a_lease_is_renewed_in_time_and_not_used_when_it_could_not_be() -> None:
    world = Replica(acme(max_concurrency=8))
    world.ask("a")
    lease(world, slot_ask(world, 0.0), 2)
    assert slot_asks(world, 9.9) == []
    assert slot_asks(world, 10.0) == [(2, 1)]
    assert world.told("late", 26.0) == "queued"  # as after a stop of the process


def test_who_has_more_than_its_part_gives_way_as_its_requests_end() -> None:
    world = Replica(acme(max_concurrency=4))
    for name in "abcd":
        world.ask(name)
    lease(world, slot_ask(world, 0.0), 4)
    world.ask("e", 0.1)
    (ask,) = world.core.metering.leasing.slots.asks(10.0, 2)
    lease(world, ask, 2, 10.0, contended=True)
    world.end("a", 10.1)
    assert world.core.totals().queued == 1  # three run, and two may
    assert slot_asks(world, 10.2) == [(4, 3)]


def test_without_the_store_slots_are_divided() -> None:
    world = Replica(acme(max_concurrency=5))
    for name in "abc":
        world.ask(name)
    world.happen(StoreChanged(up=False, replicas=2), 0.1)
    assert (world.core.totals().inflight, world.core.totals().queued) == (2, 1)
    one = Replica(acme(max_concurrency=1))
    one.happen(StoreChanged(up=False, replicas=2), 0.0)
    assert one.told("a") == "ok"


def test_who_may_not_wait_in_a_queue_waits_for_the_store_to_say_whether_there_is_a_slot() -> None:
    world = Replica(acme(max_concurrency=4, max_queued=0))
    assert world.told("a") == "queued"
    assert world.core.parked() == 1
    assert lease(world, slot_ask(world, 0.0), 1) == ["a"]
    assert world.told("b", 0.1) == "concurrency"  # there was no more, a moment ago
    assert slot_asks(world, 0.25) == [(3, 1)]
    assert world.told("c", 0.25) == "queued"
    decisions = world.happen(Tick(), 0.25 + PARK_S)
    assert [each.reason for each in decisions if isinstance(each, Reject)] == [Reason.CONCURRENCY]


def test_where_the_store_does_not_say_in_time_whether_there_is_a_slot_a_replica_has_its_part_of_them() -> None:
    world = Replica(acme(max_concurrency=5, max_queued=0))
    assert [world.told(name) for name in "abc"] == ["queued"] * 3
    decisions = world.happen(Tick(), PARK_S)
    assert [each.request_id for each in decisions if isinstance(each, Dispatch)] == ["a", "b"]
    assert [each.reason for each in decisions if isinstance(each, Reject)] == [Reason.CONCURRENCY]
    lease(world, slot_ask(world, 0.1), 3, 0.1)
    assert (world.told("d", 0.1), world.told("e", 0.1)) == ("ok", "concurrency")  # it has said so, and that holds


def test_so_does_who_waits_in_the_queue_where_another_one_has_waited_for_the_store_in_vain() -> None:
    world = Replica(acme(max_concurrency=5, max_queued=2))
    assert [world.told(name) for name in "abc"] == ["queued"] * 3
    assert world.core.parked() == 1
    decisions = world.happen(Tick(), PARK_S)
    assert [each.request_id for each in decisions if isinstance(each, Dispatch)] == ["a", "b"]


def test_a_budget_of_other_periods_is_another_one_of_which_nothing_is_here_yet() -> None:
    world = Replica(acme(budgets=(Budget(id="b", amount=1000),)))
    world.happen(WallClock(offset_s=20 * 86_400.0), 0.5)
    world.ask("a", 1.0)
    (ask,) = world.asks(1.0)
    assert ask.every == "day"
    world.grant(ask, 1.0, 400, used=400)
    month = acme(budgets=(Budget(id="b", amount=1000, period="month"),))
    world.happen(SettingsChanged(settings=replace(limited(month), fleet=world.fleet)), 2.0)
    world.end("a", 2.5, prompt_tokens=90, output_tokens=90)  # more than was held, of the day
    assert world.told("b", 3.0) == "queued"
    (ask,) = world.asks(3.0)
    assert (ask.every, ask.back, ask.owed) == ("month", 0, 0)


def test_of_a_tenant_that_is_gone_nothing_is_asked_once_the_store_knows_what_it_has_used() -> None:
    day = Budget(id="b", amount=1000)
    world = Replica(acme(tpm=1000, budgets=(day,)))
    world.ask("a", 0.0)
    for ask in world.asks(0.0):
        world.grant(ask, 0.0, 400, used=400)
    world.happen(SettingsChanged(settings=replace(limited(), fleet=world.fleet)), 1.0)
    world.end("a", 1.5, prompt_tokens=10, output_tokens=500)  # more than was lent
    asked = world.asks(3.0)
    assert {ask.metric: (ask.back, ask.owed) for ask in asked} == dict.fromkeys(("tpm", "b"), (0, 110 * MICRO))
    for ask in asked:
        world.grant(ask, 3.0, 0, used=510)
    assert {view.metric for view in world.core.metering.meters(4.0)} == {"tpm", "b"}
    world.happen(SettingsChanged(settings=replace(limited(), fleet=world.fleet)), 5.0)
    assert list(world.core.metering.meters(6.0)) == []
    assert world.asks(60.0) == []


def test_what_others_use_of_a_budget_is_heard_now_and_then_also_by_who_uses_nothing() -> None:
    world = Replica(acme(budgets=(Budget(id="day", amount=1000),)))
    world.ask("a", 1.0)
    (ask,) = world.asks(1.0)
    world.grant(ask, 1.0, 40, used=40)
    assert world.asks(5.0) == []
    (ask,) = world.asks(11.0)
    assert (ask.back, ask.need, ask.wanted) == (0, 0, 0)
    world.grant(ask, 11.0, 0, used=900)
    world.happen(StoreChanged(up=False, replicas=2), 12.0)
    assert world.told("b", 12.0) == "ok"
    assert world.told("c", 12.0) == "budget"  # 50 are a half of what was left
