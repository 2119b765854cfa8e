"""Waiting: bounds, timeouts, deadlines, drain, and what a refused client is told."""

import pytest

from policies.decisions import Evict, Reject
from policies.events import Arrived, Tick
from policies.types import Band
from tests.policies.given import World, endpoint, request, settings


def full_world(**limits: int) -> World:
    """One endpoint with one place, taken by request `a`."""
    world = World(endpoint("x", seqs=1), settings=settings(**limits))  # type: ignore[arg-type]
    assert world.arrive("a") == ["a>x"]
    return world


def test_a_queued_request_is_dropped_at_its_timeout_and_not_before() -> None:
    world = full_world()
    world.arrive("b", 1.0)
    world.first_token("a", 2.0)
    assert world.core.next_wakeup() == 61.0
    assert world.tick(60.999) == []
    assert world.tick(61.0) == ["b!queue_timeout"]
    assert world.core.next_wakeup() is None


def test_the_timeout_counts_from_the_first_byte_and_not_from_the_arrival_in_the_core() -> None:
    world = full_world()
    world.first_token("a", 1.0)
    world.happen(Arrived(request=request("slow body", at=1.0)), 50.0)
    assert world.core.next_wakeup() == 61.0


def test_a_request_too_old_to_queue_is_refused_but_served_where_there_is_room() -> None:
    world = full_world()
    late = world.happen(Arrived(request=request("b", at=0.0)), 60.0)
    assert [decision.reason for decision in late if isinstance(decision, Reject)] == ["queue_timeout"]
    world.finish("a", 61.0)
    assert len(world.happen(Arrived(request=request("c", at=0.0)), 62.0)) == 1


def test_each_band_has_its_own_timeout() -> None:
    world = full_world()
    world.arrive("b", 1.0, band="interactive")
    world.arrive("c", 1.0, band="standard")
    assert world.tick(31.0) == ["b!queue_timeout"]
    assert world.tick(61.0) == ["c!queue_timeout"]


def test_nothing_is_dispatched_past_its_deadline() -> None:
    world = full_world()
    world.arrive("b", 1.0, deadline_s=5.0)
    assert world.finish("a", 6.0) == ["b!deadline_exceeded"]
    assert world.load("x") == (0, 0)
    [decision] = world.happen(Arrived(request=request("c", at=1.0, deadline_s=5.0)), 6.0)
    assert isinstance(decision, Reject)
    assert (decision.reason, decision.retry_after_s) == ("deadline_exceeded", None)


def test_whoever_comes_next_is_served_when_the_head_expires_in_the_same_event() -> None:
    world = World(endpoint("x"))
    world.arrive("a", tokens=1000, sequences=7)
    world.arrive("large", 1.0, sequences=2, deadline_s=5.0)
    world.arrive("small", 1.0)
    assert world.tick(4.9) == []
    assert world.cancel("nobody", 6.0)[:2] == ["large!deadline_exceeded", "small>x"]


@pytest.mark.parametrize(
    "limits",
    [{"max_queued": 2}, {"max_queued_bytes": 2500}],
    ids=["count", "bytes"],
)
def test_a_full_queue_refuses_an_arrival(limits: dict[str, int]) -> None:
    world = full_world(**limits)
    assert world.arrive("b") == []
    assert world.arrive("c") == []
    assert world.arrive("d") == ["d!overloaded"]
    world.cancel("b", 1.0)
    assert world.arrive("e", 2.0) == []


def test_a_full_band_refuses_its_own_and_no_others() -> None:
    bands = (
        Band(name="interactive", rank=1, queue_timeout_s=30.0, max_queued=1),
        Band(name="standard", rank=2, queue_timeout_s=60.0, max_queued=10),
    )
    world = World(endpoint("x", seqs=1), settings=settings(bands=bands))
    world.arrive("a")
    assert world.arrive("b", band="interactive") == []
    assert world.arrive("c", band="interactive") == ["c!overloaded"]
    assert world.arrive("d", band="standard") == []


def test_a_bound_of_zero_still_serves_where_there_is_room() -> None:
    world = World(endpoint("x", seqs=1), settings=settings(max_queued=0))
    assert world.arrive("a") == ["a>x"]
    assert world.arrive("b") == ["b!overloaded"]


def test_a_refused_client_is_told_how_long_the_queue_takes_to_empty() -> None:
    world = World(endpoint("x", seqs=1), settings=settings(max_queued=4))
    # One request of 100 tokens a second leaves; four of them wait.
    for second in range(10):
        world.arrive(f"r{second}", float(second))
        world.finish(f"r{second}", second + 0.5)
    world.arrive("running", 10.0)
    for number in range(4):
        world.arrive(f"q{number}", 10.0)
    [decision] = world.happen(Arrived(request=request("late", at=10.0)), 10.0)
    assert isinstance(decision, Reject)
    assert (decision.reason, decision.retry_after_s) == ("overloaded", 4.0)


def test_without_any_drain_a_refused_client_is_told_five_seconds() -> None:
    world = full_world(max_queued=1)
    world.arrive("b", 1.0)
    [evicted] = world.happen(Tick(), 61.0)
    assert isinstance(evicted, Evict)
    assert evicted.retry_after_s == 5.0  # what left a minute ago is no drain


@pytest.mark.parametrize(("ahead", "wait_s"), [(1, 1.0), (100_000, 60.0)])
def test_the_told_wait_stays_between_one_and_sixty_seconds(ahead: int, wait_s: float) -> None:
    world = World(endpoint("x", seqs=1), settings=settings(max_queued=1))
    world.arrive("a", tokens=100)
    world.arrive("b", tokens=ahead)
    [decision] = world.happen(Arrived(request=request("c")), 0.0)
    assert isinstance(decision, Reject)
    assert decision.retry_after_s == wait_s


def test_an_arrival_is_refused_when_no_endpoint_is_up() -> None:
    world = World()
    [decision] = world.happen(Arrived(request=request("a")), 0.0)
    assert isinstance(decision, Reject)
    assert (decision.reason, decision.retry_after_s) == ("no_endpoint", 1.0)


def test_who_waits_when_the_last_endpoint_goes_keeps_waiting_and_then_hears_why() -> None:
    world = full_world()
    world.arrive("b", 1.0)
    world.arrive("c", 2.0, band="interactive")
    assert world.down("x", 3.0) == []
    assert world.arrive("d", 4.0) == ["d!no_endpoint"]
    assert world.tick(32.0) == ["c!no_endpoint"]
    assert world.up(endpoint("y"), 40.0) == ["b>y"]


def test_a_drain_refuses_arrivals_and_still_serves_the_queue() -> None:
    world = full_world()
    world.arrive("b", 1.0)
    assert world.change(settings(admitting=False), 2.0) == []
    assert world.arrive("c", 3.0) == ["c!draining"]
    assert world.finish("a", 4.0) == ["b>x"]


def test_the_end_of_a_drain_drops_the_queue_at_once() -> None:
    world = full_world()
    world.arrive("b", 1.0)
    world.arrive("c", 1.0, band="interactive")
    assert world.change(settings(admitting=False, queueing=False), 2.0) == ["b!draining", "c!draining"]
    assert world.finish("a", 4.0) == []
    assert world.core.totals().inflight == 0


def test_after_the_end_of_a_drain_a_retry_goes_where_room_is_and_does_not_wait() -> None:
    world = World(endpoint("x", seqs=1), endpoint("y", seqs=1))
    first = world.arrive("a")[0][2:]
    world.arrive("b")
    other = "y" if first == "x" else "x"
    world.change(settings(admitting=False, queueing=False), 1.0)
    assert world.bounce("a", 2.0) == ["a!draining"]
    world.up(endpoint(first, seqs=2), 3.0)
    assert world.bounce("b", 4.0) == [f"b>{first}#2"]
    assert other != first


def test_without_queueing_an_arrival_is_served_or_refused() -> None:
    world = World(endpoint("x", seqs=1), settings=settings(queueing=False))
    assert world.arrive("a") == ["a>x"]
    assert world.arrive("b") == ["b!draining"]


def test_new_bounds_hold_for_arrivals_from_then_on() -> None:
    world = full_world()
    world.arrive("b", 1.0)
    short = (Band(name="standard", rank=2, queue_timeout_s=5.0, max_queued=2),)
    world.change(settings(bands=short), 2.0)
    world.arrive("c", 2.0)
    assert world.arrive("d", 2.0) == ["d!overloaded"]
    assert world.tick(7.0) == ["c!queue_timeout"]
    assert world.tick(61.0) == ["b!queue_timeout"]


def test_a_request_of_a_band_that_is_gone_counts_as_least_urgent() -> None:
    world = full_world()
    world.arrive("b", 1.0, band="critical")
    world.first_token("a", 2.0)
    assert world.core.next_wakeup() == 61.0


def test_a_model_without_pools_leaves_its_queue_to_the_timeouts_and_can_come_back() -> None:
    world = full_world()
    world.arrive("b", 1.0)
    assert world.change(settings(pools=()), 2.0) == []
    assert world.finish("a", 3.0) == []
    assert world.change(settings(), 4.0) == ["b>x"]


def test_an_arrival_that_comes_twice_is_one_request() -> None:
    world = full_world()
    assert world.arrive("a", 1.0) == []
    world.arrive("b", 2.0)
    assert world.arrive("b", 3.0) == []
    assert world.core.totals().received == 2
