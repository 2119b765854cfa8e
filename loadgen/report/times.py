"""Percentiles of times: nearest rank, never interpolated, and None where too few values lie beyond one.

A percentile p of n values is told only if n (1 - p) >= 5 (loadgen.md 6.3): with fewer it is hardly more than a maximum.
Pauses between tokens are far too many to be sorted: they are counted by microsecond, exactly up to 2 million of them,
beyond that in buckets of 8 significant bits, whose middle is at most 0.4 % off.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import repeat

from loadgen.report.stats import percentile

EXACT = 2_000_000  # pauses
POINTS = (0.5, 0.9, 0.95, 0.99, 0.999)
_PRINTABLE_ABOVE = 5  # a percentile with fewer values beyond it is hardly more than a maximum
_BITS = 8  # of a bucket's number
_COMPACTED = 65_536  # different values before buckets pay


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What `count` times in ms come to; a percentile is None where too few lie beyond it, inf where that many never came."""

    count: float = 0
    mean_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    max_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """One metric of a group. `completed`: of good ends alone, from the intended arrival; `adjusted`: every other request
    offered counts as infinitely late; `service`: completed, from the moment it was sent. None: no such family.
    """

    completed: Spread
    adjusted: Spread | None = None
    service: Spread | None = None


def spread(values: Iterable[float], never: int = 0) -> Spread:
    """Of times in ms, and of `never` more that did not end."""
    ordered = [*sorted(values), *repeat(math.inf, never)]
    if not ordered:
        return Spread()
    mean = math.inf if never else math.fsum(ordered) / len(ordered)
    return Spread(
        count=len(ordered),
        mean_ms=mean,
        max_ms=ordered[-1],
        **{_name(p): percentile(ordered, p) for p in POINTS if firm(len(ordered), p)},
    )


def firm(count: float, p: float) -> bool:
    """Whether enough of `count` values lie beyond the percentile."""
    return count * (1 - p) >= _PRINTABLE_ABOVE - 1e-9


class Gaps:
    """Pauses in microseconds, counted. Sums of them are as good as the whole: `a.add(b)`."""

    def __init__(self, pauses_us: Iterable[int] = ()) -> None:
        self._most = _COMPACTED
        self._counts: Counter[int] = Counter()
        self.take(pauses_us)

    def take(self, pauses_us: Iterable[int]) -> None:
        """More pauses."""
        self._counts.update(pauses_us)
        self._compact()

    def add(self, other: "Gaps") -> None:
        """All of another's."""
        self._counts.update(other._counts)
        self._compact()

    def spread(self) -> Spread:
        """What they come to, in ms."""
        count = self._counts.total()
        if not count:
            return Spread()
        ordered = sorted(self._counts.items())
        return Spread(
            count=count,
            mean_ms=sum(value * number for value, number in ordered) / count / 1000,
            max_ms=ordered[-1][0] / 1000,
            **_ranked(ordered, count),
        )

    def curve(self, points: int) -> list[tuple[float, float]]:
        """Up to so many points of the distribution: ms, share of pauses up to it."""
        ordered = sorted(self._counts.items())
        total, seen = self._counts.total(), 0
        drawn: list[tuple[float, float]] = []
        for value, number in ordered:
            seen += number
            if not drawn or seen / total - drawn[-1][1] >= 1 / points or seen == total:
                drawn.append((value / 1000, seen / total))
        return drawn

    def _compact(self) -> None:
        if len(self._counts) > self._most and self._counts.total() <= EXACT:
            self._most *= 2  # exact still: look again when there are twice as many
        if len(self._counts) > self._most:
            before, self._counts = self._counts, Counter()
            for value, number in before.items():
                self._counts[bucket(value)] += number


def bucket(value: int) -> int:
    """The middle of the bucket of a whole number: itself up to 255."""
    shift = value.bit_length() - _BITS
    return value if shift <= 0 else (value >> shift << shift) + (1 << shift >> 1)


def mean_times(several: Sequence[Times]) -> Times:
    """The mean of each figure over the runs that have it."""
    families = {
        field.name: [one for times in several if (one := getattr(times, field.name)) is not None]
        for field in fields(Times)
    }
    return Times(**{name: _mean_spread(found) for name, found in families.items() if found})


def _mean_spread(several: Sequence[Spread]) -> Spread:
    found = {
        field.name: [value for one in several if (value := getattr(one, field.name)) is not None]
        for field in fields(Spread)
    }
    return Spread(**{name: sum(values) / len(values) for name, values in found.items() if values})


def _ranked(ordered: Sequence[tuple[int, int]], count: int) -> dict[str, float]:
    """Percentiles of counted values, those that enough lie beyond."""
    found: dict[str, float] = {}
    due = [(max(1, math.ceil(p * count - 1e-9)), _name(p)) for p in reversed(POINTS) if firm(count, p)]
    seen = 0
    for value, number in ordered:
        seen += number
        while due and seen >= due[-1][0]:
            found[due.pop()[1]] = value / 1000
    return found


def _name(p: float) -> str:
    return f"p{f'{p:g}'.removeprefix('0.'):0<2}_ms"
