"""Slots and queue bounds of tenants, and who makes room for whom (tenancy.md 4)."""

import pytest

from policies.decisions import Dispatch, Evict, Reason
from policies.events import Arrived
from policies.types import Band, Limits, Model, Pool, Tenant
from tests.policies import given
from tests.policies.given import request
from tests.policies.tenants import Quotas, acme, limited

CRITICAL = Band(name="critical", rank=0, queue_timeout_s=30.0, max_queued=512)
BATCH = Band(name="batch", rank=3, queue_timeout_s=300.0, max_queued=5000)


@pytest.mark.parametrize(
    ("max_queued", "passes", "reason"), [(100, 50, ""), (10, 15, "queue_full"), (0, 5, "concurrency_exceeded")]
)
def test_row_19_a_tenant_above_its_cap_waits_and_above_its_queue_is_refused(
    max_queued: int, passes: int, reason: str
) -> None:
    world = Quotas(acme(max_concurrency=5, max_queued=max_queued))
    told = [world.told(f"r{number}") for number in range(50)]
    assert told.count("ok") == 5
    assert told.count("queued") == passes - 5
    refused = {said for said in told if said not in ("ok", "queued")}
    assert refused == ({reason.removesuffix("_exceeded")} if reason else set())
    running, served = [f"r{number}" for number in range(5)], 5
    while running:
        assert len(running) <= 5
        ended = running.pop(0)
        for decision in world.end(ended, 1.0):
            assert isinstance(decision, Dispatch)
            running.append(decision.request_id)
            served += 1
    assert served == passes


def test_row_21_a_slot_is_freed_by_every_kind_of_end() -> None:
    world = Quotas(acme(max_concurrency=1))
    for number in range(50):
        name = f"r{number}"
        assert world.told(name, number) == "ok"
        match number % 4:
            case 0:
                world.leave(name, number)
                world.leave(name, number)
            case 1:
                world.come_back(name, number)
            case 2:
                world.end(name, number)
                world.end(name, number)
            case _:
                world.token(name, number)
                world.leave(name, number, seen=3)
    assert world.told("last", 50) == "ok"


def test_row_22_the_newest_of_the_least_urgent_class_makes_room_for_a_more_urgent_one() -> None:
    bands = (CRITICAL, *given.BANDS, BATCH)
    world = Quotas(acme(rpm=600, tpm=10_000), seqs=1, max_queued=3, bands=bands)
    world.ask("runs")
    for name in ("b1", "b2", "s1"):
        world.ask(name, band="standard" if name == "s1" else "batch")
    before = world.used("tpm", 0.0)
    [evicted] = world.happen(Arrived(request=request("c1", band="critical", tenant="acme", tokens=10)), 0.0)
    assert isinstance(evicted, Evict)
    assert (evicted.request_id, evicted.reason) == ("b2", Reason.EVICTED)
    assert world.used("tpm", 0.0) == before - 40 + 266
    before = (world.used("rpm", 0.0), world.used("tpm", 0.0))
    assert world.told("b3", band="batch") == "overloaded"
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == before  # whoever is refused has used nothing
    assert world.told("s2", band="standard") == "queued"  # b1 has left for it
    assert world.told("s3", band="standard") == "overloaded"
    assert world.core.totals().queued == 3


def test_enough_bytes_leave_for_a_more_urgent_one_or_nobody_does() -> None:
    bands = (CRITICAL, *given.BANDS, BATCH)
    world = Quotas(seqs=1, max_queued_bytes=3000, bands=bands)
    world.ask("runs")
    for name in ("b1", "b2", "b3"):
        world.ask(name, band="batch")
    assert world.told("huge", band="critical", body_bytes=3001) == "overloaded"
    assert world.core.totals().queued == 3
    assert world.told("large", band="critical", body_bytes=1500) == "queued"
    assert world.core.totals().queued == 2


def test_a_band_that_is_full_evicts_nobody() -> None:
    bands = (Band(name="critical", rank=0, queue_timeout_s=30.0, max_queued=1), *given.BANDS)
    world = Quotas(seqs=1, bands=bands)
    for name in ("runs", "s1"):
        world.ask(name)
    assert world.told("c1", band="critical") == "queued"
    assert world.told("c2", band="critical") == "overloaded"
    assert world.core.totals().queued == 2


def test_a_tenant_at_its_cap_is_in_nobodys_way() -> None:
    world = Quotas(acme(max_concurrency=1), seqs=2)
    assert [world.told("a1"), world.told("a2"), world.told("a3")] == ["ok", "queued", "queued"]
    assert world.told("b1", tenant="b") == "ok"
    assert world.told("b2", tenant="b") == "queued"
    [next_one] = world.end("b1", 1.0)
    assert isinstance(next_one, Dispatch)
    assert next_one.request_id == "b2"  # a2 came first and has no slot
    [next_one] = world.end("a1", 1.0)
    assert isinstance(next_one, Dispatch)
    assert next_one.request_id == "a2"


def test_somebody_elses_urgent_request_is_not_judged_by_a_queue_that_waits_for_slots() -> None:
    bands = (Band(name="critical", rank=0, queue_timeout_s=30.0, max_queued=9, slo_ttft_s=0.4, on_late="reject"),)
    world = Quotas(acme(max_concurrency=1), bands=bands)
    for number in range(9):
        world.ask(f"a{number}", band="critical", tokens=100_000)
    assert world.told("b", tenant="b", band="critical") == "ok"


def test_a_key_at_its_cap_does_not_hide_the_tenants_other_keys() -> None:
    world = Quotas(acme(keys={"k1": Limits(max_concurrency=1)}))
    assert [world.told("a", key="k1"), world.told("b", key="k1")] == ["ok", "queued"]
    assert world.told("c", key="k2") == "ok"


def test_slots_of_a_model_are_shared_and_those_of_a_tenants_model_are_its_own() -> None:
    world = Quotas(
        acme(models={"llama": Limits(max_concurrency=1)}),
        models=[Model(name="llama", limits=Limits(max_concurrency=2))],
    )
    assert [world.told("a1"), world.told("a2")] == ["ok", "queued"]
    assert [world.told("b1", tenant="b"), world.told("b2", tenant="b")] == ["ok", "queued"]
    [freed] = world.end("b1", 1.0)
    assert isinstance(freed, Dispatch)
    assert freed.request_id == "b2"


def test_a_slot_that_comes_free_in_one_pool_serves_who_waits_in_another() -> None:
    pools = (Pool(name="main", model="llama", lanes="off"), Pool(name="second", model="qwen", lanes="off"))
    world = Quotas(acme(max_concurrency=1), pools=pools)
    world.up(given.endpoint("y", pools=("second",)))
    assert [world.told("a"), world.told("b", model="qwen")] == ["ok", "queued"]
    [freed] = world.end("a", 1.0)
    assert isinstance(freed, Dispatch)
    assert (freed.request_id, freed.endpoint) == ("b", "y")


def test_a_tenants_bytes_and_timeout_bound_its_queue() -> None:
    world = Quotas(acme(max_concurrency=1, max_queued_bytes=1500, queue_timeout_s=5.0))
    assert [world.told("a"), world.told("b"), world.told("c")] == ["ok", "queued", "queue_full"]
    assert world.core.next_wakeup() == 5.0
    [expired] = world.tick(5.0)
    assert expired == "b!queue_timeout"


def test_who_finds_its_tenants_queue_full_hears_how_long_that_takes_to_empty_whatever_others_wait_for() -> None:
    other = Tenant(id="other", limits=Limits(max_concurrency=1))
    world = Quotas(acme(max_concurrency=1, max_queued=4), other)
    assert [world.told(f"r{at}") for at in range(5)] == ["ok", *["queued"] * 4]
    for at in range(50):
        world.ask(f"o{at}", tenant="other", tokens=5000)
    assert world.refused("full").retry_after_s == 5.0, "nothing has gone yet"
    for at in range(4):
        world.end(f"r{at}", 2.0 * (at + 1))  # every two seconds one goes
        world.ask(f"s{at}", 2.0 * (at + 1))
    told = world.refused("again", 8.0)
    assert (told.reason, told.retry_after_s) == (Reason.QUEUE_FULL, 9.0)


def test_a_cap_lowered_below_what_runs_cuts_nothing_and_lets_nobody_in() -> None:
    world = Quotas(acme(max_concurrency=3))
    for number in range(4):
        world.ask(f"r{number}")
    world.change(limited(acme(max_concurrency=1)), 0.0)
    assert world.end("r0", 1.0) == []
    assert world.end("r1", 1.0) == []
    [freed] = world.end("r2", 1.0)
    assert isinstance(freed, Dispatch)
    assert freed.request_id == "r3"


def test_who_has_lost_its_slot_to_another_of_its_tenant_keeps_no_engine_from_those_behind_it() -> None:
    pools = (Pool(name="main", model="llama", lanes="off"), Pool(name="second", model="qwen", lanes="off"))
    world = Quotas(acme(max_concurrency=1), pools=pools, seqs=2)
    world.up(given.endpoint("y", pools=("second",)))
    assert world.told("runs", tenant="b") == "ok"
    assert world.told("a1", sequences=2) == "queued"  # it has a slot, and waits for both places
    assert world.told("b1", tenant="b") == "queued"
    first, second = world.happen(Arrived(request=request("a2", tenant="acme", model="qwen")), 1.0)
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert [(first.request_id, first.endpoint), (second.request_id, second.endpoint)] == [("a2", "y"), ("b1", "x")]
