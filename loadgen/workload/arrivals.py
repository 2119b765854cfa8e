"""When do requests come? Arrival processes as pure functions of a random stream.

Every process offers its exact rate: N = round(rate x time) requests, whatever the draw, so two runs differ in when
requests come and never in how many (loadgen.md 4.2; vllm bench serve rescales its gaps with the same aim).
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"):
    """Equal gaps. `rate` in requests/s."""

    rate: Positive

    def times(self, stream: Random, seconds: float) -> list[float]:
        """Arrival times in [0, seconds), sorted."""
        count = round(self.rate * seconds)
        return [seconds * (i + 0.5) / count for i in range(count)]


class Poisson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="poisson"):
    """Independent users: sorted uniforms, which is a Poisson process given its count. `rate` in requests/s."""

    rate: Positive

    def times(self, stream: Random, seconds: float) -> list[float]:
        """Arrival times in [0, seconds), sorted."""
        return sorted(stream.random() * seconds for _ in range(round(self.rate * seconds)))


class Gamma(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="gamma"):
    """Renewal gaps with coefficient of variation `cv` (real clients: median 1.3-1.5). `rate` in requests/s."""

    rate: Positive
    cv: Positive

    def times(self, stream: Random, seconds: float) -> list[float]:
        """Arrival times in [0, seconds), sorted."""
        shape = 1 / self.cv**2
        count = round(self.rate * seconds)
        return _rescaled([stream.gammavariate(shape, 1.0) for _ in range(count + 1)], seconds)


Arrivals = Constant | Poisson | Gamma


def _rescaled(gaps: Sequence[float], seconds: float) -> list[float]:
    """The points between consecutive `gaps`, stretched so that all gaps together are `seconds` long."""
    scale = seconds / (sum(gaps) or 1.0)
    last = math.nextafter(seconds, 0.0)  # rounding must not put anything at the very end
    return [min(point * scale, last) for point in accumulate(gaps[:-1])]
