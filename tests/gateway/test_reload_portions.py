"""The way from old limits of many tenants to new ones."""

from dataclasses import replace

from gateway.reload import PORTION, _on_the_way
from policies.types import Limits, Settings, Tenant
from tests.policies.given import settings


def of(rpm: int, count: int, **partitions: str) -> Settings:
    names = [f"t{number}" for number in range(count)]
    tenants = {
        name: Tenant(id=name, limits=Limits(rpm=rpm), partition=partitions.get(name, "shared")) for name in names
    }
    return replace(settings(max_queued=rpm), tenants=tenants)


def test_many_changed_tenants_have_their_limits_a_portion_at_a_time_and_all_before_the_end() -> None:
    old, new = of(1, 3 * PORTION + 1), of(2, 3 * PORTION + 1)
    seen = [sum(tenant.limits.rpm == 2 for tenant in step.tenants.values()) for step in _on_the_way(old, new)]
    assert seen == [PORTION, 2 * PORTION, 3 * PORTION, 3 * PORTION + 1]
    assert all(replace(step, tenants=old.tenants) == old for step in _on_the_way(old, new))


def test_few_changes_need_no_way() -> None:
    assert list(_on_the_way(of(1, PORTION), of(2, PORTION))) == []
    assert list(_on_the_way(of(1, 3 * PORTION), of(1, 3 * PORTION))) == []


def test_who_is_gone_or_goes_to_another_partition_does_so_at_the_end() -> None:
    old, new = of(1, 3 * PORTION), of(2, 2 * PORTION, t0="finance")
    *_, last = _on_the_way(old, new)
    assert set(last.tenants) == set(old.tenants)
    assert last.tenants["t0"] == old.tenants["t0"] and last.tenants["t1"] == new.tenants["t1"]


def test_who_is_new_has_limits_before_its_keys_open_anything() -> None:
    *_, last = _on_the_way(of(1, PORTION), of(2, 3 * PORTION))
    assert last.tenants == of(2, 3 * PORTION).tenants
