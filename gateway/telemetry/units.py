"""Seconds as records have them."""


def ms(seconds: float) -> float:
    """Seconds as the milliseconds of a record, to the microsecond."""
    return int(seconds * 1e6 + 0.5) / 1e3
