"""Figures of results, by name, and what a few of them say: mean, and 95 % over the seeds."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import msgspec

Plain = Mapping[str, Any]
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_T95_MORE = 2.228


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over seeds with its 95 % interval (t); None with one seed."""

    mean: float
    low: float | None = None
    high: float | None = None


def estimate(values: Sequence[float]) -> Estimate:
    """Of at least one value."""
    mean = fmean(values)
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return Estimate(mean=mean)
    free = len(values) - 1
    half = (_T95[free - 1] if free <= len(_T95) else _T95_MORE) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def figure(result: Plain, name: str) -> float | None:
    """`group.figure` of a run, or a plain one of a result; None where there is none."""
    group, dot, field = name.partition(".")
    found = group_of(result, group) if dot else result
    if found is None:
        return None
    value = _share(found) if field == "cached_share" else found.get(field or name)
    if value is None:
        return None
    return math.inf if value == "inf" else float(value)


def group_of(result: Plain, name: str) -> Plain | None:
    """All requests, a class, a tenant or a priority of a run."""
    if name == "all":
        found: Plain = result["totals"]
        return found
    if name in result["classes"]:
        of_class: Plain = result["classes"][name]
        return of_class
    return next((cell for cell in result["cells"] if name in (cell["tenant"], cell["priority"])), None)


def _share(group: Plain) -> float | None:
    """Cached prompt tokens of those that an unlimited cache would have held."""
    return group["cached_tokens"] / group["ideal_tokens"] if group["ideal_tokens"] else None
