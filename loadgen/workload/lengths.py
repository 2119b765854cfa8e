"""How long are prompts and answers, and how patient is a client? Distributions, always clipped to their bounds.

Input and output of a tenant come from two random streams: in every single-service trace they are uncorrelated
(|rho| <= 0.07, loadgen.md 4.2). One draw takes one step of its stream where it can, so the i-th request of a tenant
has the same lengths whatever the rate.
"""

import math
from bisect import bisect_left
from random import Random
from statistics import fmean
from typing import Annotated, Literal

import msgspec

from loadgen.workload import formats
from loadgen.workload.fields import Bound, Fields, NonNegative, Positive, ScenarioError, Share

_MEAN_DRAWS = 4000


class Fixed(Fields, frozen=True, tag_field="kind", tag="fixed"):
    """Always the same."""

    value: NonNegative

    def draw(self, stream: Random) -> float:
        """One value."""
        return self.value


class _Bounded(Fields, frozen=True):
    """Clipped to `min` and `max`."""

    min: NonNegative = 0.0
    max: Bound = math.inf

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError("`min` is above `max`")


class Uniform(Fields, frozen=True, tag_field="kind", tag="uniform"):
    """Anything from `min` to `max`."""

    min: NonNegative
    max: NonNegative

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError("`min` is above `max`")

    def draw(self, stream: Random) -> float:
        """One value."""
        return stream.uniform(self.min, self.max)


class Normal(_Bounded, frozen=True, kw_only=True, tag_field="kind", tag="normal"):
    """Around `mean` with deviation `sd`."""

    mean: NonNegative
    sd: NonNegative

    def draw(self, stream: Random) -> float:
        """One value."""
        return min(max(stream.normalvariate(self.mean, self.sd), self.min), self.max)


class Lognormal(_Bounded, frozen=True, kw_only=True, tag_field="kind", tag="lognormal"):
    """A long tail around `median`; `sigma` is the deviation of the logarithm."""

    median: Positive
    sigma: Annotated[float, msgspec.Meta(ge=0, le=20)]

    def draw(self, stream: Random) -> float:
        """One value."""
        return min(max(stream.lognormvariate(math.log(self.median), self.sigma), self.min), self.max)


class Quantiles(Fields, frozen=True, tag_field="kind", tag="quantiles"):
    """A table of [share, value] points, both rising, the shares from 0 to 1; straight lines between them."""

    points: Annotated[tuple[tuple[Share, NonNegative], ...], msgspec.Meta(min_length=2)]

    def __post_init__(self) -> None:
        shares, values = zip(*self.points, strict=True)
        if (shares[0], shares[-1]) != (0, 1) or len(set(shares)) != len(shares):
            raise ValueError("the shares of quantiles go from 0 to 1, each once")
        if list(shares) != sorted(shares) or list(values) != sorted(values):
            raise ValueError("quantiles rise")

    def draw(self, stream: Random) -> float:
        """One value."""
        share = stream.random()
        index = max(1, bisect_left(self.points, (share, 0.0)))
        (low, least), (high, most) = self.points[index - 1], self.points[index]
        return least + (most - least) * (share - low) / (high - low)


class Empirical(_Bounded, frozen=True, kw_only=True, tag_field="kind", tag="empirical"):
    """Any value of a column of the trace in `file`, all alike."""

    file: str
    column: Literal["input", "output"]

    def draw(self, stream: Random) -> float:
        """One value; ScenarioError if the trace cannot be read."""
        rows = formats.read(self.file, None)
        if not rows:
            raise ScenarioError(f"{self.file} holds no request")
        row = rows[int(stream.random() * len(rows))]
        value = row.input_tokens if self.column == "input" else row.output_tokens
        return min(max(value, self.min), self.max)


Length = Fixed | Uniform | Normal | Lognormal | Quantiles | Empirical


def tokens(length: Length, stream: Random) -> int:
    """One draw as a whole number of tokens, at least 1."""
    return max(1, round(length.draw(stream)))


def mean(length: Length) -> float:
    """About the mean of whole draws, always the same."""
    stream = Random("mean")
    return fmean(tokens(length, stream) for _ in range(_MEAN_DRAWS))
