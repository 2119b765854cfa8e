"""The structures under the core: timers, lanes, drain. What is cancelled must neither act, hide others, nor pile up."""

from policies.state.drain import Drain
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.state.timers import Timers
from policies.types import Pool
from tests.policies.given import BANDS, request, settings


def tickets(count: int) -> list[Ticket]:
    pool = PoolQueue(Pool(name="main", model="llama"), 10.0)
    pool.change_classes(settings())
    made = [Ticket(request(f"r{number}"), pool, number, BANDS[1]) for number in range(count)]
    for ticket in made:
        ticket.share = pool.shares[ticket.band.name]
    return made


def heads(pool: PoolQueue) -> list[Ticket | None]:
    return [lane.ready.head() for lane in pool.lanes()]


def test_timers_come_soonest_first_and_equal_ones_in_the_order_they_were_set() -> None:
    timers, (a, b, c) = Timers(), tickets(3)
    timers.set(a, 2.0)
    timers.set(b, 1.0)
    timers.set(c, 2.0)
    seen = []
    while (due := timers.next_due()) is not None:
        seen.append((due, timers.pop().request.id))
    assert seen == [(1.0, "r1"), (2.0, "r0"), (2.0, "r2")]


def test_setting_a_timer_again_replaces_it() -> None:
    timers, (a,) = Timers(), tickets(1)
    timers.set(a, 1.0)
    timers.set(a, 3.0)
    assert timers.next_due() == 3.0
    assert timers.pop() is a
    assert timers.next_due() is None
    assert (len(timers), timers.dead) == (0, 0)


def test_a_cancelled_timer_does_not_ring_and_cancelling_twice_is_cancelling_once() -> None:
    timers, (a, b) = Timers(), tickets(2)
    timers.set(a, 1.0)
    timers.set(b, 2.0)
    timers.cancel(a)
    timers.cancel(a)
    assert timers.next_due() == 2.0
    assert (len(timers), timers.dead) == (1, 0)


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    for ticket in tickets(10_000):
        timers.set(ticket, 1000.0)
        timers.cancel(ticket)
        assert len(timers) <= 66
        assert timers.dead == timers.count_dead()


def test_requests_cancelled_behind_a_head_do_not_pile_up() -> None:
    everybody = tickets(10_000)
    pool, head = everybody[0].pool, everybody[0]
    pool.push(head)
    for ticket in everybody[1:]:
        assert pool.push(ticket) is False
        assert pool.remove(ticket) is False
        [lane] = pool.flows["default", "standard"].lanes.values()
        assert len(lane.ready.heap) <= 35
    assert heads(pool) == [head]
    assert pool.remove(head) is True
    assert pool.flows == {}


def test_a_head_that_goes_uncovers_the_next_living_one() -> None:
    a, b, c, d = tickets(4)
    pool = a.pool
    for ticket in (a, b, c, d):
        pool.push(ticket)
    pool.remove(b)
    pool.remove(c)
    pool.remove(a)
    assert heads(pool) == [d]
    assert pool.waiting() == [d]
    assert (pool.queued, pool.queued_bytes, pool.queued_tokens) == (1, 1000, 100)


def test_one_that_comes_back_stands_where_it_came_and_not_where_it_returned() -> None:
    a, b, c = tickets(3)
    pool = a.pool
    for ticket in (b, c, a):
        pool.push(ticket)
    assert heads(pool) == [a]
    assert pool.waiting() == [a, b, c]


def test_the_drain_forgets_what_left_before_its_window() -> None:
    drain = Drain(10.0)
    for second in range(100):
        drain.add(50, float(second))
    assert drain.wait_s(500, 99.0) == 10.0
    assert drain.wait_s(500, 104.0) == 20.0  # half of the window is empty by now
    assert drain.wait_s(500, 120.0) == 5.0  # nothing left lately: unknown
    drain.add(50, 1e9)
    assert drain.wait_s(500, 1e9) == 60.0


def test_a_drain_seen_for_two_seconds_counts_over_two_seconds() -> None:
    drain = Drain(10.0)
    drain.add(100, 50.5)
    drain.add(100, 51.5)
    assert drain.wait_s(1000, 51.9) == 10.0


def test_a_clock_that_steps_back_does_not_disturb_the_drain() -> None:
    drain = Drain(10.0)
    drain.add(100, 50.0)
    drain.add(100, 42.0)
    assert drain.wait_s(400, 50.0) == 2.0
