"""Numbers of several processes as those of one: a snapshot on its way to the supervisor, and what several make together.

Counts are added up, gauges as their family says. What a process had counted when it died stays in the sums, or every
rate over them would jump; and what it had in hand then has ended, badly, so that what was received is still what ended
and what is left.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec

from gateway.telemetry import families, render
from gateway.telemetry.families import Family, MetricKind

Value = float | int | bool | tuple[list[int], float]
Labels = tuple[str, ...]
Table = dict[str, dict[Labels, Value]]
"""Values by family and labels."""

LOST = ("failed", "worker_lost")  # outcome and reason
# reserved + extra - settled - refunded = held: with nothing held any more, what was refunded follows from the others.
_REFUNDED = {families.QUOTA_RESERVED: 1, families.QUOTA_EXTRA: 1, families.QUOTA_SETTLED: -1}
_FAMILIES = {family.name: family for family in families.FAMILIES}
_Rows = list[tuple[str, list[tuple[Labels, Value]]]]


def encode(snapshot: Sequence[tuple[Family, render.Samples]]) -> bytes:
    """A snapshot for `decode` in another process of the same version."""
    return msgspec.msgpack.encode([(family.name, list(samples)) for family, samples in snapshot])


def decode(data: bytes) -> Table:
    """What `encode` was given; msgspec.ValidationError or DecodeError for anything else."""
    rows = msgspec.msgpack.decode(data, type=_Rows)
    return {name: dict(samples) for name, samples in rows if name in _FAMILIES}


def chunks(table: Table) -> Iterator[bytes]:
    """The exposition, in pieces."""
    ordered = [(family, list(table[name].items())) for name, family in _FAMILIES.items() if name in table]
    return render.chunks(ordered)


def joined(tables: Iterable[Table]) -> Table:
    """What several processes have together."""
    made: Table = {}
    for table in tables:
        for name, samples in table.items():
            _add(_FAMILIES[name], made.setdefault(name, {}), samples)
    return made


def after_death(table: Table) -> Table:
    """What stays of a process that has ended: its counts, with all that it had in hand among them."""
    left = {name: dict(samples) for name, samples in table.items() if _FAMILIES[name].kind is not MetricKind.GAUGE}
    ended = left.setdefault(families.ENDED.name, {})
    in_hand = {labels: _count(value) for labels, value in left.get(families.RECEIVED.name, {}).items()}
    for labels, value in ended.items():
        in_hand[labels[2:]] = in_hand.get(labels[2:], 0) - _count(value)
    for labels, count in in_hand.items():
        if count:
            ended[(*LOST, *labels)] = count
    _break_attempts(left)
    _give_back(left)
    return left


def _break_attempts(left: Table) -> None:
    results = left.setdefault(families.ATTEMPTS.name, {})
    started = sum(map(_count, left.get(families.ATTEMPTS_STARTED.name, {}).values()))
    open_ = started - sum(map(_count, results.values()))
    results[("broken",)] = _count(results.get(("broken",), 0)) + open_


def _give_back(left: Table) -> None:
    """What its limits held for requests that will not end is held no more."""
    refunded: dict[Labels, Value] = {}
    for family, sign in _REFUNDED.items():
        for labels, value in left.get(family.name, {}).items():
            refunded[labels] = cast(float, refunded.get(labels, 0)) + sign * cast(float, value)
    left[families.QUOTA_REFUNDED.name] = refunded


def _count(value: Value) -> int:
    return int(cast(float, value))


def _add(family: Family, into: dict[Labels, Value], samples: dict[Labels, Value]) -> None:
    for labels, value in samples.items():
        into[labels] = _together(family, into[labels], value) if labels in into else value


def _together(family: Family, one: Value, other: Value) -> Value:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return [a + b for a, b in zip(one[0], other[0], strict=True)], one[1] + other[1]
    first, second = cast(float, one), cast(float, other)
    return {"sum": first + second, "max": max(first, second), "min": min(first, second)}[family.across]
