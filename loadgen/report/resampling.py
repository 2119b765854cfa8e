"""Intervals by resampling blocks of 10 s: requests that arrive together are not independent, blocks nearly are.

Draws come from a fixed seed, so equal reports have equal intervals. Infinite values are allowed: an interval then may
end at infinity.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from random import Random
from typing import TypeVar

from loadgen.report.times import bucket

RESAMPLES = 2000
_FINE = 1000  # of a ms: percentiles of resamples are found among values in whole microseconds, then in buckets

T = TypeVar("T")
Weights = Sequence[int]
"""How often each block was drawn."""


def resampled(blocks: Sequence[T], value: Callable[[Sequence[T]], float]) -> tuple[float, float] | None:
    """The middle 95 % of a value over as many blocks, drawn again and again; None of fewer than two."""
    if len(blocks) < 2:
        return None
    random = Random(0)
    return middle([value(random.choices(blocks, k=len(blocks))) for _ in range(RESAMPLES)])


def draws(count: int, seed: int) -> list[list[int]]:
    """For each resample of `count` blocks, how often each of them was drawn."""
    random = Random(seed)
    places = range(count)
    return [_weights(Counter(random.choices(places, k=count)), count) for _ in range(RESAMPLES)]


def middle(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of values, by rank."""
    ordered = sorted(values)
    count = len(ordered)
    return ordered[int(0.025 * count)], ordered[int(0.975 * count) - 1]


class Ranked:
    """Percentiles of the values of drawn blocks, without sorting them each time.

    Of each value that occurs (to 0.4 %) it is known how many of each block are not above it.
    """

    def __init__(self, blocks: Sequence[Sequence[float]]) -> None:
        self.count = sum(map(len, blocks))
        counted = [Counter(map(_coarse, block)) for block in blocks]
        self._values = sorted({value for block in counted for value in block})
        below = [list(accumulate(block[value] for value in self._values)) for block in counted]
        self._columns = list(zip(*below, strict=True))

    def percentile(self, weights: Weights, p: float) -> float | None:
        """Nearest rank of the values, each as often as its block was drawn; None of none."""
        if not self._columns:
            return None
        total = sum(map(mul, weights, self._columns[-1]))
        if not total:
            return None
        rank, low, high = max(1, math.ceil(p * total - 1e-9)), 0, len(self._columns) - 1
        while low < high:
            half = (low + high) // 2
            if sum(map(mul, weights, self._columns[half])) >= rank:
                high = half
            else:
                low = half + 1
        return self._values[low]


def _weights(drawn: Counter[int], count: int) -> list[int]:
    return [drawn[place] for place in range(count)]


def _coarse(ms: float) -> float:
    return ms if ms == math.inf else bucket(round(ms * _FINE)) / _FINE
