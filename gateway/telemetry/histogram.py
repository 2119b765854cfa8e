"""A histogram with fixed, roughly logarithmic bounds: one bisection and three additions per observation.

Bounds are 1, 1.5, 2, 3, 4, 5, 7 of every decade: neighbours are at most a factor 1.5 apart, and the numbers people set
as objectives (50 ms, 100 ms, 400 ms, 2 s) are bounds themselves, so "share below the objective" is exact.
"""

from bisect import bisect_left
from typing import Final

_find: Final = bisect_left
_STEPS: Final = ("1", "1.5", "2", "3", "4", "5", "7")


def log_bounds(first_exponent: int, last_exponent: int) -> tuple[float, ...]:
    """Bounds from 10^first to 10^last, both included."""
    decades = range(first_exponent, last_exponent)
    return (*(float(f"{step}e{exponent}") for exponent in decades for step in _STEPS), float(f"1e{last_exponent}"))


REQUEST_BOUNDS: Final = (*log_bounds(-3, 3), 1500.0, 2000.0)  # 1 ms to past the default total timeout of 1800 s
LAG_BOUNDS: Final = log_bounds(-4, 1)  # 0.1 ms to 10 s
STORE_BOUNDS: Final = log_bounds(-4, 0)  # 0.1 ms to 1 s, the longest timeout of a call


class Histogram:
    """Counts of observations in (previous bound, bound], the last one without a bound; `total` is their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[_find(self.bounds, value)] += 1
        self.total += value

    def state(self) -> tuple[list[int], float]:
        """A copy of counts and sum that later observations do not change."""
        return self.counts.copy(), self.total
