"""What a request says about the length of its answer: `max_tokens`, as clients set it."""

import math
from typing import Annotated

import msgspec

from loadgen.workload.fields import Count, Fields


class FixedCap(Fields, frozen=True, tag_field="kind", tag="fixed"):
    """The same for every request: what most clients do."""

    value: Count = 2048

    def of(self, output_tokens: int) -> int | None:
        """What is sent with a request for an answer of that many tokens."""
        return self.value


class Ratio(Fields, frozen=True, tag_field="kind", tag="ratio"):
    """`value` times the planned answer. It tells the server something it could not know: results with it are marked."""

    value: Annotated[float, msgspec.Meta(ge=1)]

    def of(self, output_tokens: int) -> int | None:
        """What is sent with a request for an answer of that many tokens."""
        return math.ceil(self.value * output_tokens)


class Exact(Fields, frozen=True, tag_field="kind", tag="exact"):
    """The planned answer itself. It tells the server what it could not know: results with it are marked."""

    def of(self, output_tokens: int) -> int | None:
        """What is sent with a request for an answer of that many tokens."""
        return output_tokens


class Absent(Fields, frozen=True, tag_field="kind", tag="absent"):
    """Nothing: the context is the limit."""

    def of(self, output_tokens: int) -> int | None:
        """What is sent with a request for an answer of that many tokens."""
        return None


Cap = FixedCap | Ratio | Exact | Absent
TELLING = (Ratio, Exact)
"""Caps that leak the length of the answer."""
