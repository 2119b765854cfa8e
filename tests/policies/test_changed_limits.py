"""New limits for some tenants touch these tenants alone; a few tenants at a time come to the same as all at once."""

import sys
from dataclasses import replace

import pytest

from policies.events import SettingsChanged
from policies.state import limits
from policies.types import Budget, Limits, Model, Settings, Tenant
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


def crowded(before: Settings, times: int = 5) -> Quotas:
    """Of each tenant some run and some wait."""
    world = Quotas()
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
@pytest.mark.parametrize("also", [1, 2])
def test_new_limits_of_a_model_come_to_the_same_whether_or_not_all_who_wait_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, held: Limits, also: int
) -> None:
    """`also`: some tenants have other limits at the same time."""
    old = settings(dict.fromkeys(NAMES, 1))
    factors = {**dict.fromkeys(NAMES, 1), "t0": also, "t3": also}
    new = replace(settings(factors), models={"llama": Model(name="llama", context_tokens=4096, limits=held)})
    in_place, anew = crowded(old), crowded(old)
    in_place.change(new, 2.0)
    with monkeypatch.context() as patched:
        patched.setattr(limits, "stays_in_place", lambda *_: False)
        anew.change(new, 2.0)
    assert after(in_place) == after(anew)
    told = [[world.told(f"more-{name}", 9.0, tenant=name) for name in NAMES] for world in (in_place, anew)]
    assert told[0] == told[1]
    assert books(in_place, 9.5) == books(anew, 9.5)


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


def test_a_change_of_what_a_model_allows_looks_at_nobody_who_waits() -> None:
    many = {f"t{number}": 1 for number in range(40)}
    world = crowded(settings(many), times=2)
    models = {"llama": Model(name="llama", limits=Limits(rpm=900, max_concurrency=8))}
    few, everybody = (
        calls(world, replace(settings(many), models=models)),
        calls(world, settings(dict.fromkeys(many, 3))),
    )
    assert few < everybody / 4
