"""Calendar periods in UTC, by numbers alone: the core has no clock and no calendar.

All times are whole seconds since 1970-01-01, as `policies.events.WallClock` lets them be known.
"""

DAY_S = 86_400
MONDAY = 3  # 1970-01-01 was a Thursday: three days after a Monday


def bounds(period: str, at_s: int) -> tuple[int, int]:
    """When the day, ISO week or month of a moment began, and when the next one begins."""
    day = at_s // DAY_S
    if period == "day":
        return day * DAY_S, (day + 1) * DAY_S
    if period == "week":
        first = day - (day + MONDAY) % 7
        return first * DAY_S, (first + 7) * DAY_S
    year, month = _month_of(day)
    after = (year + month // 12, month % 12 + 1)
    return _days_before(year, month) * DAY_S, _days_before(*after) * DAY_S


def _days_before(year: int, month: int) -> int:
    """Days from 1970-01-01 to the first of a month; years begin in March here, so that leap days come last."""
    shifted = year - (month <= 2)
    days = (153 * ((month + 9) % 12) + 2) // 5
    return 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400 + days - 719_468


def _month_of(day: int) -> tuple[int, int]:
    """Year and month of a day."""
    era, of_era = divmod(day + 719_468, 146_097)
    of_year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    rest = of_era - (365 * of_year + of_year // 4 - of_year // 100)
    month = (5 * rest + 2) // 153
    return era * 400 + of_year + (month >= 10), (month + 2) % 12 + 1
