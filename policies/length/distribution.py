"""The length of an answer as a distribution: a CDF over logarithmic buckets, and what is read off it.

A CDF is a sequence of the probabilities that an answer is shorter than each of `EDGES`, from 0.0 at the first to 1.0
at the last, straight in between. The same prompt asked often has answers of very different length, so nothing here is
a single number before somebody asks for a quantile.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from typing import Final

from policies.types import Prediction

BUCKETS: Final = 48  # scheduling.md 3: 1 to 35k tokens, each bucket a quarter longer than the one before
RATIO: Final = 1.25
EDGES: Final = tuple(RATIO**index for index in range(BUCKETS + 1))
OUTLIVED: Final = 1e-6  # a tail this thin is rounding of the 32 bits that a CDF is kept in

_PER_LOG: Final = 1 / math.log(RATIO)
_WIDTHS: Final = tuple(after - before for before, after in pairwise(EDGES))
# what one edge's probability weighs in the area under the CDF: half of each bucket beside it
_WEIGHTS: Final = (_WIDTHS[0] / 2, *((left + right) / 2 for left, right in pairwise(_WIDTHS)))


def exactly(tokens: float) -> Prediction:
    """An answer of which the length is settled."""
    return Prediction(p25=tokens, p50=tokens, p90=tokens, p99=tokens, mean=tokens, held=tokens)


def bucket(tokens: float) -> int:
    """Index of the bucket that holds `tokens`; shorter and longer answers count in the first and the last one."""
    if tokens < RATIO:
        return 0
    return min(BUCKETS - 1, int(math.log(tokens) * _PER_LOG))


def lognormal(median_tokens: float, sigma: float) -> list[float]:
    """The CDF with that median; `sigma` is the deviation of the logarithm."""
    scale = sigma * math.sqrt(2)
    inner = [0.5 + 0.5 * math.erf(math.log(edge / median_tokens) / scale) for edge in EDGES[1:-1]]
    return [0.0, *inner, 1.0]


def summary(cdf: Sequence[float]) -> Prediction:
    """The quantiles and the mean, without any cap."""
    return Prediction(
        p25=quantile(cdf, 0.25),
        p50=quantile(cdf, 0.5),
        p90=quantile(cdf, 0.9),
        p99=quantile(cdf, 0.99),
        mean=mean_below(cdf, EDGES[-1]),
        held=_held(cdf, EDGES[-1]),
    )


def capped(cdf: Sequence[float], whole: Prediction, limit_tokens: float) -> Prediction:
    """The same, of answers that are cut at `limit_tokens`; `whole` is the summary of `cdf`."""
    return Prediction(
        p25=min(whole.p25, limit_tokens),
        p50=min(whole.p50, limit_tokens),
        p90=min(whole.p90, limit_tokens),
        p99=min(whole.p99, limit_tokens),
        mean=mean_below(cdf, limit_tokens),
        held=_held(cdf, limit_tokens),
    )


def given(cdf: Sequence[float], generated: float, limit_tokens: float) -> Prediction:
    """The whole length of an answer that has `generated` tokens and goes on; cut at `limit_tokens`.

    An answer that has outlived all that is known goes on for one more bucket.
    """
    passed = below(cdf, generated)
    left = 1.0 - passed
    if left < OUTLIVED or generated >= limit_tokens:
        return exactly(min(limit_tokens, generated * RATIO))
    p25, p50, p90, p99 = (
        min(limit_tokens, max(generated, quantile(cdf, passed + share * left))) for share in (0.25, 0.5, 0.9, 0.99)
    )
    mean = generated + (mean_below(cdf, limit_tokens) - mean_below(cdf, generated)) / left
    held = max(generated, _held(cdf, limit_tokens, bisect_right(EDGES, generated)) / left)
    return Prediction(p25=p25, p50=p50, p90=p90, p99=p99, mean=min(limit_tokens, mean), held=min(limit_tokens, held))


def _held(cdf: Sequence[float], limit_tokens: float, since: int = 0) -> float:
    """The most, over all lengths up to the limit from `EDGES[since]` on, of that length times the share that gets there."""
    until = bisect_right(EDGES, limit_tokens)
    there = [edge * (1.0 - share) for edge, share in zip(EDGES[since:until], cdf[since:until], strict=True)]
    return max(*there, limit_tokens * (1.0 - below(cdf, limit_tokens)), 0.0)


def quantile(cdf: Sequence[float], share: float) -> float:
    """The length in tokens that `share` of the answers stay below; 0 <= share < 1."""
    after = bisect_right(cdf, share)
    low, high = cdf[after - 1], cdf[after]
    return EDGES[after - 1] + (share - low) / (high - low) * _WIDTHS[after - 1]


def below(cdf: Sequence[float], tokens: float) -> float:
    """The share of answers shorter than `tokens`."""
    if tokens <= EDGES[0]:
        return 0.0
    if tokens >= EDGES[-1]:
        return 1.0
    index = bisect_right(EDGES, tokens) - 1
    low = cdf[index]
    return low + (cdf[index + 1] - low) * (tokens - EDGES[index]) / _WIDTHS[index]


def mean_below(cdf: Sequence[float], limit_tokens: float) -> float:
    """The mean length of answers that are cut at `limit_tokens`: that limit less the area under the CDF up to it."""
    if limit_tokens <= EDGES[0]:
        return limit_tokens
    limit = min(limit_tokens, EDGES[-1])
    index = min(bisect_right(EDGES, limit), BUCKETS) - 1
    area = sum(map(mul, cdf[:index], _WEIGHTS)) + cdf[index] * _WIDTHS[index - 1] / 2 if index else 0.0
    into = limit - EDGES[index]
    rise = (cdf[index + 1] - cdf[index]) * into / _WIDTHS[index]
    return limit - area - into * (cdf[index] + rise / 2)
