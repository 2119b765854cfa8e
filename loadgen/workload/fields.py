"""What the fields of a scenario have in common: durations, bounded numbers, and the error of a scenario that is wrong."""

from typing import Annotated

import msgspec

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
Duration = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?(ms|s|m)$")]
_MOST = 1e12  # of any number: more is a mistake, and infinity is not a number
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
Bound = Annotated[float, msgspec.Meta(ge=0)]
"""An upper bound; infinity: there is none."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class ScenarioError(Exception):
    """A scenario that cannot be used; the message says where and why."""


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a scenario: a value, and an error where it holds a field nobody reads."""


def seconds(text: str) -> float:
    """`500ms`, `30s`, `10m` as seconds."""
    unit = "ms" if text.endswith("ms") else text[-1]
    return float(text[: -len(unit)]) * _UNITS[unit]


def duration(value_s: float) -> str:
    """Seconds as a duration."""
    return f"{value_s:.9f}".rstrip("0").rstrip(".") + "s"
