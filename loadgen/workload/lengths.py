"""How long are prompts and answers, and how patient is a client? Distributions, always clipped to their bounds.

Input and output of a tenant come from two random streams: in every single-service trace they are uncorrelated
(|rho| <= 0.07, loadgen.md 4.2).
"""

import math
from random import Random
from typing import Annotated

import msgspec

NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Fixed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="fixed"):
    """Always the same."""

    value: NonNegative

    def draw(self, stream: Random) -> float:
        """One value."""
        return self.value


class Uniform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="uniform"):
    """Anything from `min` to `max`."""

    min: NonNegative
    max: NonNegative

    def draw(self, stream: Random) -> float:
        """One value."""
        return stream.uniform(self.min, self.max)


class Lognormal(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="lognormal"
):
    """A long tail around `median`; `sigma` is the deviation of the logarithm."""

    median: Positive
    sigma: NonNegative
    min: NonNegative = 0.0
    max: NonNegative = math.inf

    def draw(self, stream: Random) -> float:
        """One value."""
        return min(max(stream.lognormvariate(math.log(self.median), self.sigma), self.min), self.max)


Length = Fixed | Uniform | Lognormal


def tokens(length: Length, stream: Random) -> int:
    """One draw as a whole number of tokens, at least 1."""
    return max(1, round(length.draw(stream)))
