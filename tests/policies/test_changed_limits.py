"""New limits for some tenants touch these tenants alone; a few tenants at a time come to the same as all at once."""

import sys
from dataclasses import replace

import pytest

from policies.events import SettingsChanged
from policies.state import limits
from policies.types import Budget, Limits, Model, Settings, Tenant
from tests.policies import given
from tests.policies.tenants import Quotas, limited

NAMES = [f"t{number}" for number in range(6)]
SHARED = Model(name="llama", limits=Limits(rpm=1000, max_concurrency=9))


def owner(name: str, factor: int, *, keyed: bool = False) -> Tenant:
    return Tenant(
        id=name,
        limits=Limits(rpm=60 * factor, tpm=4000 * factor, max_concurrency=2 * factor),
        keys={"k": Limits(rpm=50 * factor, max_concurrency=1 if keyed else None)},
        budgets=(Budget(id="day", amount=10_000 * factor),),
        max_queued=9 * factor,
    )


def settings(factors: dict[str, int], *, keyed: bool = False) -> Settings:
    return limited(*(owner(name, factor, keyed=keyed) for name, factor in factors.items()), models=(SHARED,))


def plain(name: str, bounded: bool) -> Tenant:
    """It has no limit but, where it is `bounded`, of what may wait."""
    return Tenant(id=name, max_queued=5 if bounded else None)


def test_a_budget_of_other_periods_is_another_one_and_new() -> None:
    """Also where both begin at the same moment, as a day and a month do at 0 s."""

    def budget(period: str, amount: int = 1000) -> Settings:
        return limited(Tenant(id="acme", budgets=(Budget(id="b", amount=amount, period=period),)))

    world = Quotas()
    world.change(budget("day"), 0.0)
    world.ask("a", 1.0)
    world.change(budget("day", 2000), 2.0)
    assert world.used("b", 2.0) == 40
    world.change(budget("month"), 3.0)
    assert world.used("b", 3.0) == 0
    world.end("a", 4.0, prompt_tokens=10, output_tokens=10)
    world.ask("b", 5.0)
    assert world.used("b", 5.0) == 40
    assert world.meter("b", 5.0).reset_s > 86_400


@pytest.mark.parametrize("away_s", [0.0, 2.0])
@pytest.mark.parametrize(
    ("before", "after", "leaves_s"), [(5.0, 20.0, 20.0), (20.0, 5.0, 5.0), (5.0, None, 60.0), (None, 5.0, 5.0)]
)
def test_who_waits_does_so_for_as_long_as_its_tenant_may_now(
    before: float | None, after: float | None, leaves_s: float, away_s: float
) -> None:
    """Its time on an engine that gave it back is none of it."""
    world = Quotas(seqs=1)
    world.change(limited(Tenant(id="acme", queue_timeout_s=before)), 0.0)
    world.ask("runs")
    if away_s:
        world.up(given.endpoint("y", seqs=1))
    world.ask("waits")
    if away_s:
        world.come_back("waits", away_s)
    world.change(limited(Tenant(id="acme", queue_timeout_s=after)), 3.0)
    world.tick(away_s + leaves_s - 0.1)
    assert world.core.totals().queued == 1
    world.tick(away_s + leaves_s)
    assert (world.core.totals().queued, world.core.totals().expired) == (0, 1)


def crowded(before: Settings, times: int = 5, **more: int) -> Quotas:
    """Of each tenant some run and some wait."""
    world = Quotas(**more)
    world.change(before, 0.0)
    for number in range(times):
        for name in before.tenants:
            world.ask(f"{name}-{number}", 0.1 * number, tenant=name, key="k" if number % 2 else "")
    return world


def books(world: Quotas, now: float) -> object:
    """Everything that there is to know of limits."""
    metering = world.core.metering
    meters = sorted(metering.meters(now), key=lambda one: (one.tenant, one.scope, one.part, one.metric))
    slots = {name: metering.slots_of(name) for name in NAMES}
    return meters, slots, [metering.account_of(name) for name in NAMES], world.core.totals()


def after(world: Quotas) -> list[str]:
    """Who goes when one after the other of those that run has ended, from the first on."""
    gone = []
    for number in range(5):
        for name in NAMES:
            gone += world.finish(f"{name}-{number}", 3.0 + number)
    return gone


@pytest.mark.parametrize("keyed", [False, True])
def test_a_few_tenants_at_a_time_come_to_the_same_as_all_at_once(keyed: bool) -> None:
    """`keyed`: keys have slots of their own now, so that who waits stands in other lines."""
    old, new = settings(dict.fromkeys(NAMES, 1)), settings(dict.fromkeys(NAMES, 2), keyed=keyed)
    at_once, by_parts = crowded(old), crowded(old)
    for count in range(0, len(NAMES), 2):
        tenants = {name: (new if name in NAMES[: count + 2] else old).tenants[name] for name in NAMES}
        by_parts.change(replace(old, tenants=tenants), 2.0)
    at_once.change(new, 2.0)
    assert books(by_parts, 2.5) == books(at_once, 2.5)
    if not keyed:  # else they have stood in line anew, tenant by tenant
        assert after(by_parts) == after(at_once)


@pytest.mark.parametrize("kind", ["limited", "unlimited", "bounded"])
@pytest.mark.parametrize(
    "held",
    [
        Limits(rpm=700, max_concurrency=9),
        Limits(rpm=20, max_concurrency=9),
        Limits(tpm=50_000, max_concurrency=9),
        Limits(rpm=1000, tpm=900, max_concurrency=9),
        Limits(rpm=1000, max_concurrency=12),
        Limits(rpm=1000, max_concurrency=3),
        Limits(rpm=1000),
        Limits(),
    ],
)
@pytest.mark.parametrize("before", [SHARED.limits, Limits(), Limits(rpm=1000)])
@pytest.mark.parametrize("also", [1, 2])
def test_new_limits_of_a_model_come_to_the_same_whether_or_not_all_who_wait_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, held: Limits, before: Limits, also: int, kind: str
) -> None:
    """`also`: some tenants have other limits at the same time. `kind`: of all tenants, what they have of their own."""
    old, new = (
        replace(
            settings({**dict.fromkeys(NAMES, 1), "t0": factor, "t3": factor}),
            models={"llama": Model(name="llama", context_tokens=4096 if factor else 0, limits=limit)},
        )
        for factor, limit in ((1, before), (also, held))
    )
    if kind != "limited":
        old, new = (
            replace(each, tenants={name: plain(name, kind == "bounded") for name in NAMES}) for each in (old, new)
        )
    in_place, anew = (crowded(old, seqs=9) for _ in range(2))
    in_place.change(new, 2.0)
    with monkeypatch.context() as patched:
        patched.setattr(limits, "changed", lambda *_: limits.EVERYBODY)
        anew.change(new, 2.0)
    assert after(in_place) == after(anew)
    told = [[world.told(f"more-{name}", 9.0, tenant=name) for name in NAMES] for world in (in_place, anew)]
    assert told[0] == told[1]
    assert books(in_place, 9.5) == books(anew, 9.5)


def of_model(**held: int) -> dict[str, Model]:
    return {"llama": Model(name="llama", limits=Limits(**held))}


@pytest.mark.parametrize("kind", ["limited", "unlimited", "bounded"])
def test_who_waits_since_two_changes_ago_goes_by_the_slots_that_a_model_has_now(kind: str) -> None:
    """It waits under terms that were replaced since, and takes its slot like one that comes now; what runs holds one, too."""
    before = settings(dict.fromkeys(NAMES, 1))
    if kind != "limited":
        before = replace(before, tenants={name: plain(name, kind == "bounded") for name in NAMES})
    before = replace(before, models=of_model(rpm=1000))
    world = crowded(before, seqs=6)
    running = world.core.totals().inflight
    for at, held in enumerate([{"rpm": 900}, {}, {"tpm": 90_000}, {"rpm": 5, "max_concurrency": 3}]):
        world.change(replace(before, models=of_model(**held)), 2.0 + at)
        world.ask(f"new-{at}", 2.0 + at, tenant="t1")
    assert (running, world.core.totals().inflight) == (6, 6)  # nothing is cut
    for number, name in enumerate(NAMES):
        world.finish(f"{name}-0", 10.0 + number)
        assert world.core.totals().inflight == max(3, 5 - number)
    world.change(replace(before, models={}), 20.0)
    assert world.core.totals().inflight == 6
    world.change(replace(before, models=of_model(max_concurrency=2)), 21.0)
    assert world.told("late", 21.0, tenant="t5") == "queued"


@pytest.mark.parametrize("first", [Limits(tpm=3000), Limits(tpm=3000, max_concurrency=4), Limits(max_concurrency=4)])
def test_a_reservation_is_settled_once_whatever_its_model_allows_meanwhile(first: Limits) -> None:
    """What runs and what waits settles what it holds with its tenant and with a limit of its model that is gone; a limit that came
    since has nothing of it."""
    before = replace(settings(dict.fromkeys(NAMES, 5)), models={"llama": Model(name="llama", limits=first)})
    world = crowded(before, times=1, seqs=3)
    for at, held in enumerate([{}, {"tpm": 5000}, {"tpm": 6000, "max_concurrency": 9}]):
        world.change(replace(before, models=of_model(**held)), 1.0 + at)
    for number, name in enumerate(NAMES):
        world.end(f"{name}-0", 5.0 + number, prompt_tokens=10, output_tokens=5)
    meters = world.core.metering.meters(60.0)
    assert all(view.held == 0.0 for view in meters)
    assert [view.settled for view in meters if view.metric == "tpm" and view.tenant] == [15.0] * 6
    assert [view.settled for view in meters if not view.tenant] == []
    world.ask("new", 61.0, tenant="t0")
    world.end("new", 62.0, prompt_tokens=10, output_tokens=5)
    assert world.meter("tpm", 63.0, "model").settled == 15.0


def test_slots_that_all_tenants_share_stay_taken_when_one_has_other_limits() -> None:
    world = crowded(settings(dict.fromkeys(NAMES, 1)))
    assert world.core.totals().inflight == 9
    world.change(settings({**dict.fromkeys(NAMES, 1), "t0": 5}), 2.0)
    assert world.told("more", 2.0, tenant="t0") == "queued"


def test_who_has_the_same_limits_keeps_how_fast_its_queue_goes() -> None:
    """What a full queue tells of the time to wait is known as before where somebody else's limits change."""
    before, changed = settings(dict.fromkeys(NAMES, 1)), settings({**dict.fromkeys(NAMES, 1), "t0": 5})
    world = crowded(replace(before, models={}), times=11)
    assert world.finish("t1-0", 2.0) == ["t1-2>x"]
    world.ask("t1-11", 2.1, tenant="t1")
    told = world.refused("t1-x", 2.5, tenant="t1")
    world.change(replace(changed, models={}), 2.5)
    assert world.refused("t1-y", 2.5, tenant="t1").retry_after_s == told.retry_after_s != 5.0


def calls(world: Quotas, changed: Settings) -> int:
    """Functions of Python that a change of the settings calls."""
    count = 0

    def called(*told: object) -> None:
        nonlocal count
        count += told[1] == "call"

    sys.setprofile(called)
    try:
        world.core.handle(SettingsChanged(settings=changed), 2.0)
    finally:
        sys.setprofile(None)
    return count


def test_a_change_of_one_tenant_looks_at_no_other() -> None:
    """Of a thousand with nine thousand requests waiting all at once took 80 ms of CPU in one step of the loop."""
    many = {f"t{number}": 1 for number in range(40)}
    world = crowded(settings(many), times=2)
    one, everybody = calls(world, settings({**many, "t7": 2})), calls(world, settings(dict.fromkeys(many, 3)))
    assert one < everybody / 4


@pytest.mark.parametrize("before", [{"rpm": 1000, "max_concurrency": 9}, {}, {"rpm": 9}, {"max_concurrency": 9}])
@pytest.mark.parametrize("held", [{"rpm": 900, "max_concurrency": 8}, {}, {"rpm": 9}, {"max_concurrency": 9}])
def test_a_change_of_what_a_model_allows_looks_at_nobody_who_waits(
    before: dict[str, int], held: dict[str, int]
) -> None:
    """First limits and none any more among them: of a thousand tenants with nine thousand requests waiting it took 90 ms of CPU."""
    many = {f"t{number}": 1 for number in range(40)}
    world = crowded(replace(settings(many), models=of_model(**before)), times=2, seqs=9)
    few, everybody = (
        calls(world, replace(settings(many), models=of_model(**held))),
        calls(world, replace(settings(dict.fromkeys(many, 3)), models=of_model(**held))),
    )
    assert few < everybody / 4
