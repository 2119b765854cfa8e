"""How good predictions of answer lengths were: figures for what each prediction is used for.

- Order: Kendall's tau_a, and three buckets (up to 64 tokens, up to 512, more) beside the rate of the commonest one.
- Reserved KV: the share of answers within their p90, and the pinball loss of p50 and p90 in tokens.
- Choice of a pool: who lands on which side of the boundary, beside the rate of always choosing the commoner side.

An accuracy without the majority rate beside it says nothing: at a bad boundary the majority is right nine times in ten
without any skill. No mean absolute error: a few long answers would be all of it.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from policies.length import Prediction

BUCKET_TOKENS = (64, 512)

Pair = tuple[Prediction, int]  # what was predicted, and the tokens that came


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Answers by where the p50 sent them and where they belonged; `short` is up to `boundary_tokens`."""

    boundary_tokens: float
    short_as_short: int
    short_as_long: int
    long_as_short: int
    long_as_long: int

    @property
    def accuracy(self) -> float:
        """Share of answers on their side."""
        return (self.short_as_short + self.long_as_long) / self._count

    @property
    def majority(self) -> float:
        """What always choosing the commoner side would reach."""
        return max(self.short_as_short + self.short_as_long, self.long_as_short + self.long_as_long) / self._count

    @property
    def _count(self) -> int:
        return self.short_as_short + self.short_as_long + self.long_as_short + self.long_as_long


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The report over `count` answers; rates from 0 to 1, pinball losses in tokens."""

    count: int
    tau_a: float
    bucket_accuracy: float
    bucket_majority: float
    pinball_p50_tokens: float
    pinball_p90_tokens: float
    p90_coverage: float
    pools: Confusion

    def as_json(self) -> dict[str, object]:
        """The figures as plain values."""
        pools = self.pools
        return {
            "count": self.count,
            "tau_a": round(self.tau_a, 3),
            "buckets": {"accuracy": round(self.bucket_accuracy, 4), "majority": round(self.bucket_majority, 4)},
            "pinball_tokens": {"p50": round(self.pinball_p50_tokens, 1), "p90": round(self.pinball_p90_tokens, 1)},
            "p90_coverage": round(self.p90_coverage, 4),
            "pools": {
                "boundary_tokens": pools.boundary_tokens,
                "accuracy": round(pools.accuracy, 4),
                "majority": round(pools.majority, 4),
                "short_as_short": pools.short_as_short,
                "short_as_long": pools.short_as_long,
                "long_as_short": pools.long_as_short,
                "long_as_long": pools.long_as_long,
            },
        }


def accuracy(pairs: Sequence[Pair], boundary_tokens: float) -> Accuracy | None:
    """The report over `pairs`, with pools split at answers of `boundary_tokens`; None of no pairs."""
    if not pairs:
        return None
    count = len(pairs)
    buckets = Counter(_bucket(came) for _, came in pairs)
    return Accuracy(
        count=count,
        tau_a=tau_a([(guess.p50, came) for guess, came in pairs]),
        bucket_accuracy=sum(_bucket(guess.p50) == _bucket(came) for guess, came in pairs) / count,
        bucket_majority=max(buckets.values()) / count,
        pinball_p50_tokens=sum(_pinball(guess.p50, came, 0.5) for guess, came in pairs) / count,
        pinball_p90_tokens=sum(_pinball(guess.p90, came, 0.9) for guess, came in pairs) / count,
        p90_coverage=sum(came <= guess.p90 for guess, came in pairs) / count,
        pools=_confusion(pairs, boundary_tokens),
    )


def tau_a(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's tau_a: pairs in the same order less pairs in the opposite one, over all pairs; 0.0 of fewer than 2.

    A tie on either side counts for nothing, so a predictor that says the same of everybody has 0.
    """
    if len(pairs) < 2:
        return 0.0
    ranks = sorted({right for _, right in pairs})
    seen = _Counts(len(ranks))
    balance = 0
    for _, tied in groupby(sorted(pairs), key=lambda pair: pair[0]):
        group = [bisect_left(ranks, right) for _, right in tied]
        balance += sum(seen.below(rank) - seen.above(rank) for rank in group)
        for rank in group:
            seen.add(rank)
    return balance / (len(pairs) * (len(pairs) - 1) / 2)


class _Counts:
    """How many of each rank were added, with sums over ranks in logarithmic time (a Fenwick tree)."""

    def __init__(self, size: int) -> None:
        self._sums = [0] * (size + 1)
        self._count = 0

    def add(self, rank: int) -> None:
        self._count += 1
        index = rank + 1
        while index < len(self._sums):
            self._sums[index] += 1
            index += index & -index

    def below(self, rank: int) -> int:
        total = 0
        while rank > 0:
            total += self._sums[rank]
            rank -= rank & -rank
        return total

    def above(self, rank: int) -> int:
        return self._count - self.below(rank + 1)


def _bucket(tokens: float) -> int:
    return bisect_left(BUCKET_TOKENS, tokens)


def _pinball(guess: float, came: float, share: float) -> float:
    return max(share * (came - guess), (share - 1) * (came - guess))


def _confusion(pairs: Sequence[Pair], boundary_tokens: float) -> Confusion:
    sides = Counter((came > boundary_tokens, guess.p50 > boundary_tokens) for guess, came in pairs)
    return Confusion(
        boundary_tokens=boundary_tokens,
        short_as_short=sides[False, False],
        short_as_long=sides[False, True],
        long_as_short=sides[True, False],
        long_as_long=sides[True, True],
    )
