"""What each tenant was served in the last minute, as operators see it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from policies.decisions import Dispatch
from policies.events import Bounced, Cancelled, Cause, Event, Finished, Outcome
from policies.state.served import Served
from policies.state.views import ShareView
from policies.types import SHARED, Band, Fairness, Tenant
from tests.policies.given import World, endpoint, settings
from tests.policies.test_fairness import Shop, given

BAND = Band(name="standard", rank=2, queue_timeout_s=1e6, max_queued=1000)


@pytest.mark.parametrize(
    ("costs", "now", "served"),
    [
        ([], 5.0, {}),
        ([(100.0, "a", 5.0)], 100.0, {"a": 5.0}),
        ([(100.0, "a", 5.0), (159.9, "a", 3.0), (159.9, "b", 1.0)], 159.95, {"a": 8.0, "b": 1.0}),
        ([(100.0, "a", 6.0)], 160.0, {"a": 6.0}),  # the next window begins
        ([(100.0, "a", 6.0)], 190.0, {"a": 3.0}),  # half of the window before is a minute ago
        ([(100.0, "a", 6.0)], 220.0, {}),
        ([(100.0, "a", 6.0)], 1000.0, {}),
        ([(100.0, "a", 6.0), (175.0, "a", 1.0)], 175.0, {"a": 5.5}),
        ([(100.0, "a", 6.0), (175.0, "b", 1.0)], 205.0, {"a": 1.5, "b": 1.0}),
        ([(100.0, "a", 6.0), (175.0, "b", 1.0)], 220.0, {"b": 1.0}),
        ([(100.0, "a", 6.0), (175.0, "b", 1.0)], 250.0, {"b": 0.5}),
        ([(100.0, "a", 6.0), (220.0, "b", 1.0)], 220.0, {"b": 1.0}),  # nothing for a window
        ([(100.0, "a", 6.0), (500.0, "a", 1.0)], 510.0, {"a": 1.0}),
    ],
)
def test_the_last_minute_is_two_windows(
    costs: Sequence[tuple[float, str, float]], now: float, served: dict[str, float]
) -> None:
    counts = Served()
    for at, tenant, cost in costs:
        counts.add(tenant, (cost, 0.0, 0.0), at)
    found = {tenant: cost for tenant, cost in counts.last_minute(Fairness(), now) if cost}
    assert found == pytest.approx(served)


def test_of_an_even_load_it_shows_what_is_served_in_a_minute_at_every_moment() -> None:
    counts = Served()
    for at in range(3000):
        counts.add("a", (10.0, 0.0, 0.0), at / 10)
        if at > 600:
            assert dict(counts.last_minute(Fairness(), at / 10))["a"] == pytest.approx(6000, rel=0.003)


def test_who_is_served_no_more_is_forgotten() -> None:
    counts = Served()
    for at in range(1000):
        counts.add(f"t{at}", (1.0, 0.0, 0.0), at / 100)
    for at in (70.0, 130.0):
        counts.add("last", (1.0, 0.0, 0.0), at)
    assert dict(counts.last_minute(Fairness(), 130.0)) == {"last": pytest.approx(1.0 + 1.0 * 50 / 60)}
    assert counts._running.keys() | counts._before.keys() == {"last"}


def seen(world: World, now: float) -> ShareView:
    (view,) = [view for view in world.core.shares(now) if view.band == "standard"]
    return view


ENGINE = {"outcome": Outcome.COMPLETED, "prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 10}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("end", "cost"),
    [
        (Finished(request_id="r", attempt=1, **ENGINE), 60 + 0.1 * 40 + 2 * 10),
        (Finished(request_id="r", attempt=1, outcome=Outcome.COMPLETED), 100 + 2 * 16),  # as was thought
        (Finished(request_id="r", attempt=1, outcome=Outcome.FAILED), 100 + 2 * 16),
        (Cancelled(request_id="r"), 100 + 2 * 16),
        (Bounced(request_id="r", attempt=1, cause=Cause.CONNECT), None),
    ],
)
def test_it_counts_what_fairness_counts_whether_somebody_waits_or_not(
    end: Event, cost: float | None, waits: bool
) -> None:
    tenants = {name: Tenant(id=name) for name in ("acme", "other")}
    made = replace(settings(bands=(BAND,), max_attempts=1), tenants=tenants, length="declared")
    world = World(endpoint("x", seqs=1), settings=made)
    world.arrive("r", 1.0, tenant="acme", tokens=100, max_output=16)
    if waits:
        world.arrive("w", 1.0, tenant="other", tokens=10, max_output=1)
    assert seen(world, 1.0).served == {} if waits else world.core.shares(1.0) == []
    world.happen(end, 2.0)
    shares = world.core.shares(2.0)
    served = shares[0].served if shares else {}
    assert served == ({} if cost is None else {"acme": pytest.approx(cost)})


def test_a_request_that_came_back_is_served_once() -> None:
    world = World(endpoint("x"), endpoint("y"), settings=replace(settings(bands=(BAND,)), length="declared"))
    (first,) = world.arrive("r", 1.0, tokens=100, max_output=16)
    again = world.happen(Bounced(request_id="r", attempt=1, cause=Cause.CONNECT), 2.0)
    assert first and isinstance(again[0], Dispatch)
    world.finish("r", 3.0, attempt=2)
    assert seen(world, 3.0).served == {"default": pytest.approx(132.0)}


@pytest.mark.parametrize(("weights", "part"), [((4.0, 1.0), 0.8), ((3.0, 1.0), 0.75), ((1.0, 1.0), 0.5)])
def test_two_that_always_wait_are_served_what_their_weights_give_them(
    weights: tuple[float, float], part: float
) -> None:
    shop = Shop(given(a=weights[0], b=weights[1]))
    for _ in range(400):
        shop.send("a", 8192)
        shop.send("b", 8192)
    while shop.now < 29.0:
        shop.step()
    view = seen(shop.world, shop.now)
    assert (view.pool, view.partition, view.weights) == ("main", SHARED, {"a": weights[0], "b": weights[1]})
    assert view.served["a"] / sum(view.served.values()) == pytest.approx(part, abs=0.01)


def test_who_waits_and_was_served_nothing_has_a_part_too() -> None:
    shop = Shop(given(a=1.0, b=3.0))
    shop.send("a", 1000)
    shop.send("b", 1000)
    view = seen(shop.world, 0.0)
    assert (view.served, view.weights) == ({}, {"b": 3.0})
    shop.step()
    shop.step()
    assert seen(shop.world, shop.now).weights == {"a": 1.0, "b": 3.0}
    assert seen(shop.world, shop.now).served == {"a": 1000.0, "b": 1000.0}
    assert shop.world.core.shares(shop.now + 130.0) == []


def test_where_requests_are_counted_each_is_one_quantum() -> None:
    shop = Shop(given(fairness=Fairness(kind="round_robin", quantum=500), a=1.0))
    shop.send("a", 3000)
    shop.end()
    assert seen(shop.world, shop.now).served == {"a": 500.0}
