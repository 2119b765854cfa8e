"""Days, weeks and months by numbers alone, against the calendar of the standard library."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from policies.state.periods import bounds

MOMENTS = st.datetimes(datetime(1970, 1, 5), datetime(2200, 1, 1), timezones=st.just(UTC))


def at(moment: datetime) -> int:
    return int(moment.timestamp())


@given(MOMENTS)
def test_a_day_begins_at_midnight(moment: datetime) -> None:
    first = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    assert bounds("day", at(moment)) == (at(first), at(first + timedelta(days=1)))


@given(MOMENTS)
def test_a_week_begins_on_monday(moment: datetime) -> None:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    first = day - timedelta(days=day.weekday())
    assert bounds("week", at(moment)) == (at(first), at(first + timedelta(days=7)))


@given(MOMENTS)
def test_a_month_begins_on_its_first(moment: datetime) -> None:
    first = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (first + timedelta(days=32)).replace(day=1)
    assert bounds("month", at(moment)) == (at(first), at(after))
