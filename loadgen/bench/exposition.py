"""Reads the few series that matter out of a Prometheus text page, whose other thousands are skipped unparsed."""

import re
from collections.abc import Iterable, Iterator

_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')

Series = dict[str, list[tuple[dict[str, str], float]]]
"""By name: labels and value of each."""


def read(text: str, names: Iterable[str]) -> Series:
    """The series of these names, histograms under `_bucket`. Lines that are none are skipped, and so is NaN."""
    wanted = frozenset(names)
    found: Series = {}
    for line in _lines(text, tuple(wanted)):
        name, brace, rest = line.partition("{")
        if brace:
            labels, _, value = rest.rpartition("}")
        else:
            name, _, value = line.partition(" ")
            labels = ""
        number = _number(value)
        if name in wanted and number is not None:
            found.setdefault(name, []).append((dict(_LABEL.findall(labels)), number))
    return found


def total(series: Series, name: str, **labels: str) -> float | None:
    """Sum over the series of that name with these labels; None without any."""
    wanted = labels.items()
    values = [value for have, value in series.get(name, ()) if wanted <= have.items()]
    return sum(values) if values else None


def above(series: Series, name: str, share: float) -> float | None:
    """The bound of the histogram's bucket that the percentile lies in: it is no larger. None without observations."""
    counts: dict[float, float] = {}
    for labels, value in series.get(f"{name}_bucket", ()):
        bound = _number(labels.get("le", "")) or 0.0
        counts[bound] = counts.get(bound, 0.0) + value
    whole = counts.get(float("inf"), 0.0)
    return next((bound for bound in sorted(counts) if counts[bound] >= share * whole), None) if whole else None


def grown(now: Series, before: Series) -> Series:
    """Counters as they have grown since `before`; a series that began anew counts from 0."""
    made: Series = {}
    for name, rows in now.items():
        old = {frozenset(labels.items()): value for labels, value in before.get(name, ())}
        made[name] = [(labels, _since(value, old.get(frozenset(labels.items()), 0.0))) for labels, value in rows]
    return made


def _since(value: float, before: float) -> float:
    return value - before if value >= before else value


def _lines(text: str, starts: tuple[str, ...]) -> Iterator[str]:
    return (line for line in text.splitlines() if line.startswith(starts))


def _number(text: str) -> float | None:
    """The value, without a timestamp behind it."""
    try:
        value = float(text.split()[0])
    except (ValueError, IndexError):
        return None
    return None if value != value else value
