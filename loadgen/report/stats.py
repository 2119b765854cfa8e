"""Percentiles by nearest rank (loadgen.md 6.3)."""

import math
from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], p: float) -> float | None:
    """Nearest rank (inverted CDF) of sorted `values`; None of none."""
    if not values:
        return None
    return values[max(0, math.ceil(p * len(values) - 1e-9) - 1)]


def quantile(values: Iterable[float], p: float) -> float | None:
    """The same of unsorted values."""
    return percentile(sorted(values), p)
