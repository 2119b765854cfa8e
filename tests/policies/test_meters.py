"""A limit on its own: what leaks, what fits, what is owed, and that the sums always meet."""

from hypothesis import given
from hypothesis import strategies as st

from policies.state.meters import MICRO, Bucket, Purse, Rule, Wall
from policies.types import Budget

RULE = Rule("tenant", "acme", "", "tpm")
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.000_001, 0.01, 0.15, 1.0, 7.3, 61.0]),  # time that passes
        st.sampled_from(["reserve", "reserve", "settle", "settle", "refund"]),
        st.integers(0, 40),
        st.integers(0, 300),
    ),
    max_size=60,
)


def bucket(per_minute: int, burst_s: float) -> Bucket:
    made = Bucket(RULE)
    made.bound(per_minute, burst_s)
    return made


def test_what_fits_in_a_minute_may_come_at_once_and_drains_in_one() -> None:
    meter = bucket(60, 60)
    meter.reserve(60 * MICRO)
    assert meter.wait_s(1 * MICRO) == 1.0
    assert meter.empty_s() == 60.0
    meter.look(59.5)
    assert meter.used == MICRO // 2


def test_a_capacity_is_rounded_up() -> None:
    assert bucket(1, 1).capacity == MICRO
    assert bucket(100, 7).capacity == 12 * MICRO


def test_looking_often_loses_no_fraction() -> None:
    """C046: flooring at each of 400 looks lost a third of the refill of 10 a second."""
    often, seldom = bucket(7, 60), bucket(7, 60)
    for meter in (often, seldom):
        meter.reserve(7 * MICRO)
    for step in range(1, 1001):
        often.look(step * 0.001_003)
    seldom.look(1.003)
    assert often.used == seldom.used


def test_what_is_owed_is_added_to_what_is_left_after_draining() -> None:
    owing, giving = bucket(60, 600), bucket(60, 600)
    for meter in (owing, giving):
        meter.reserve(30 * MICRO)
    owing.settle(30 * MICRO, 80 * MICRO, 0, 60.0)  # by then the 30 have leaked: the 50 more begin to leak now
    giving.settle(30 * MICRO, 10 * MICRO, 0, 60.0)
    for meter in (owing, giving):
        meter.look(70.0)
    assert (owing.used, giving.used) == (40 * MICRO, 0)
    assert (owing.extra, giving.refunded) == (50 * MICRO, 20 * MICRO)


def test_c055_a_clock_that_goes_back_drains_nothing() -> None:
    meter = bucket(60, 60)
    meter.look(100.0)
    meter.reserve(10 * MICRO)
    meter.look(50.0)
    assert meter.used == 10 * MICRO
    meter.look(101.0)
    assert meter.used == 9 * MICRO


def test_debt_ends_at_twice_the_capacity_and_the_rest_is_written_off() -> None:
    meter = bucket(100, 60)
    meter.reserve(40 * MICRO)
    meter.settle(40 * MICRO, 500 * MICRO, 0, 0.0)
    assert meter.used == 200 * MICRO
    assert meter.written_off == 300 * MICRO
    assert meter.wait_s(40 * MICRO) == 84.0


def test_a_new_limit_keeps_what_is_used() -> None:
    meter = bucket(60, 10)
    meter.reserve(10 * MICRO)
    meter.bound(60, 20)
    assert meter.wait_s(10 * MICRO) == 0.0
    meter.bound(60, 5)
    assert meter.wait_s(1 * MICRO) == 6.0


def test_a_budget_is_new_when_its_period_is_and_old_reservations_stay_in_the_old_one() -> None:
    wall = Wall()
    purse = Purse(Rule("tenant", "acme", "", "day"), wall)
    purse.bound(Budget(id="day", amount=100))
    period = purse.look(86_390.0)
    purse.reserve(80 * MICRO)
    assert purse.wait_s(30 * MICRO) == float("inf")
    assert purse.empty_s() == 10.0
    purse.look(86_400.0)
    assert purse.wait_s(100 * MICRO) == 0.0
    purse.settle(80 * MICRO, 90 * MICRO, period, 86_401.0)
    assert purse.used == 0
    assert purse.settled == 90 * MICRO
    assert purse.held == 0


@given(steps=STEPS, per_minute=st.sampled_from([1, 7, 60, 100, 100_000]), burst_s=st.sampled_from([1.0, 10.0, 60.0]))
def test_no_interval_admits_more_than_its_capacity_and_refill(
    steps: list[tuple[float, str, int, int]], per_minute: int, burst_s: float
) -> None:
    """I1, I2, I3 of tenancy.md 3.6, whatever comes."""
    meter = bucket(per_minute, burst_s)
    now, held, admitted = 0.0, list[int](), [(0.0, 0)]
    for passed, what, pick, units in steps:
        now += passed
        meter.look(now)
        amount = units * MICRO
        if what == "reserve" and meter.wait_s(amount) == 0.0:
            meter.reserve(amount)
            held.append(amount)
            admitted.append((now, amount))
        elif what != "reserve" and held:
            reserved = held.pop(pick % len(held))
            meter.settle(reserved, amount if what == "settle" else 0, 0, now)
            admitted.append((now, -max(0, reserved - (amount if what == "settle" else 0))))
        assert meter.reserved + meter.extra - meter.refunded - meter.settled == meter.held == sum(held)
        assert 0 <= meter.used <= 2 * meter.capacity
    for first, (began, _) in enumerate(admitted):
        total = 0
        for at, amount in admitted[first:]:
            total += amount
            assert total <= meter.capacity + per_minute * MICRO * (at - began) / 60 + 1
