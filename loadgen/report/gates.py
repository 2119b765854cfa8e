"""What makes a comparison fail: expressions of `--fail-on`, and the gate that stands when there is none.

    ttft_p99{tenant=chat,class=short} > +5%      p99 of that cell grew by more than 5 %
    attainment < -1%                             attainment fell by more than a point: of everything, or of any cell
    throughput{all} < -50                        everything together has at least 50 tokens per s less

`%` are points for shares and parts of the first value for the rest; without it the number is in the metric's own unit.
An expression fails only if zero lies outside the interval of the change. Without braces it is about all cells and the
total, with some labels about the cells that have them.
"""

import re
from collections.abc import Sequence

import msgspec

from loadgen.report.compare import METRICS, Comparison, Row

DEFAULT = "attainment < -1%"

_EXPRESSION = re.compile(
    r"\s*(?P<metric>\w+)\s*(?:\{(?P<labels>[^}]*)\})?\s*(?P<sign>[<>])\s*(?P<number>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>%?)\s*"
)
_LABELS = ("class", "tenant", "priority")
_EVERYTHING = "all"


class GateError(Exception):
    """An expression that cannot be read, or is about nothing; says which and why."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """`limit` in parts of 1 where `relative`, else in the unit of the metric."""

    text: str
    metric: str
    labels: dict[str, str]
    above: bool
    limit: float
    relative: bool

    def about(self, row: Row) -> bool:
        """Whether the row is one of those meant."""
        own = {"class": row.cls, "tenant": row.tenant, "priority": row.priority}
        if self.labels == {_EVERYTHING: ""}:
            return row.metric == self.metric and not any(own.values())
        return row.metric == self.metric and all(own[name] == value for name, value in self.labels.items())

    def broken(self, row: Row) -> bool:
        """Whether the change is beyond the limit, and certain."""
        moved = row.change if self.relative else row.after - row.before
        return row.certain and (moved > self.limit if self.above else moved < self.limit)


def gate(text: str) -> Gate:
    """Read one; GateError with what is wrong about it."""
    found = _EXPRESSION.fullmatch(text)
    if found is None:
        raise GateError(f"--fail-on {text!r}: not of the form METRIC{{tenant=NAME}} > +5%")
    metric = found["metric"]
    if metric not in METRICS:
        raise GateError(f"--fail-on {text!r}: no metric is called {metric}; there are {', '.join(METRICS)}")
    relative = found["unit"] == "%"
    scale = 100 if relative or METRICS[metric].share else 1
    return Gate(
        text=text,
        metric=metric,
        labels=_labels(text, found["labels"] or ""),
        above=found["sign"] == ">",
        limit=float(found["number"]) / scale,
        relative=relative or METRICS[metric].share,
    )


def failures(gates: Sequence[Gate], comparison: Comparison) -> list[tuple[Gate, Row]]:
    """Every row that breaks a gate; GateError where one is about no row."""
    found = []
    for one in gates:
        rows = [row for row in comparison.rows if one.about(row)]
        if not rows:
            raise GateError(f"--fail-on {one.text!r}: there is nothing to compare, or too few requests")
        found += [(one, row) for row in rows if one.broken(row)]
    return found


def _labels(text: str, told: str) -> dict[str, str]:
    if told.strip() == _EVERYTHING:
        return {_EVERYTHING: ""}
    labels = {}
    for part in filter(None, (part.strip() for part in told.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _LABELS or not equals:
            raise GateError(f"--fail-on {text!r}: {part!r} is none of {', '.join(_LABELS)} with a value")
        labels[name] = value
    return labels
