"""Prometheus text from an engine, read in the pieces it comes in: only lines of wanted metrics are looked at.

A page of a megabyte has thousands of histogram lines that nobody wants, so lines are found by the bytes they begin
with, not split: a piece of 64 KiB costs 50 µs. What an engine sends is bounded here: the length of a line, the series of a
metric. Format: prometheus.io/docs/instrumenting/exposition_formats; names: the tables in gateway/engines.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.engines.row import Gauges, Source

LINE_BYTES = 64 * 1024
MOST_SERIES = 256  # of one metric: one per data-parallel rank, with room
MOST_COUNT = 2**53

_TEXT = rb'"(?:[^"\\\n]|\\.)*+"'
_SERIES = re.compile(rb"(?:\{((?:[^\"}]|%b)*+)\})?[ \t]+(\S+)" % _TEXT)
_LABEL = re.compile(rb"([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*(%b)" % _TEXT)

Series = tuple[Mapping[str, str], float]


class NotMetrics(Exception):
    """A page that is no exposition, or one without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine says of itself. `kv_usage` None, `kv_tokens` and `block_tokens` 0: it does not say."""

    running: int
    waiting: int
    kv_usage: float | None
    kv_tokens: int
    block_tokens: int


class Exposition:
    """One page, as it arrives."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [(name, b"\n" + name.encode()) for name in names]
        self._rest = b"\n"  # a line without its end, and the break before it
        self.series: dict[str, list[Series]] = {name: [] for name, _ in self._names}

    def feed(self, piece: bytes) -> None:
        """The next bytes. Raises NotMetrics."""
        data = self._rest + piece
        end = data.rfind(b"\n")
        for name, start in self._names:
            self._collect(name, start, data, end)
        self._rest = data[end:]
        if len(self._rest) > LINE_BYTES:
            raise NotMetrics

    def close(self) -> None:
        """There is no more: the last line may lack its break."""
        self.feed(b"\n")

    def _collect(self, name: str, start: bytes, data: bytes, end: int) -> None:
        found = self.series[name]
        at = data.find(start, 0, end)
        while at >= 0:
            after = at + len(start)
            line_end = data.index(b"\n", after)
            series = _SERIES.match(data, after, line_end)
            if series is not None:
                found.append(_series(series[1] or b"", series[2]))
            if len(found) > MOST_SERIES:
                raise NotMetrics
            at = data.find(start, line_end, end)


def wanted(gauges: Gauges) -> frozenset[str]:
    """The metrics that `load` reads."""
    sources = [*gauges.block_tokens, *(source for product in gauges.kv_tokens for source in product)]
    return frozenset((*gauges.running, *gauges.waiting, gauges.kv_usage, *(name for name, _ in sources)))


def load(page: Exposition, gauges: Gauges) -> Load | None:
    """The load a page tells; None where it does not tell, or what it tells is no number."""
    running, waiting = _total(page, gauges.running), _total(page, gauges.waiting)
    if running is None or waiting is None:
        return None
    sizes = (_size(page, product) for product in gauges.kv_tokens)
    blocks = (number for source in gauges.block_tokens for number in _numbers(page, source))
    return Load(
        running=running,
        waiting=waiting,
        kv_usage=_mean(page, gauges.kv_usage),
        kv_tokens=next((size for size in sizes if size), 0),
        block_tokens=next((int(number) for number in blocks if _counts(number)), 0),
    )


def _total(page: Exposition, names: Sequence[str]) -> int | None:
    """The sum of all series; None without the first metric, or with anything that is no count."""
    numbers = [number for name in names for _, number in page.series[name]]
    if not page.series[names[0]] or not all(map(_counts, numbers)):
        return None
    return int(sum(numbers))


def _mean(page: Exposition, name: str) -> float | None:
    shares = [number for _, number in page.series[name]]
    if not shares or not all(map(_counts, shares)):
        return None
    return min(1.0, sum(shares) / len(shares))


def _size(page: Exposition, product: Sequence[Source]) -> int:
    """A product of numbers for each rank, added up over the ranks; 0 where one is missing."""
    factors = [list(_numbers(page, source)) for source in product]
    sizes = [math.prod(each) for each in zip(*factors, strict=False)]
    return int(sum(sizes)) if all(map(_counts, sizes)) else 0


def _numbers(page: Exposition, source: Source) -> Iterator[float]:
    name, label = source
    for labels, number in page.series[name]:
        yield _number(labels.get(label, "")) if label else number


def _counts(number: float) -> bool:
    return 0 <= number <= MOST_COUNT  # false for NaN


def _series(labels: bytes, number: bytes) -> Series:
    pairs = {name.decode(): text[1:-1].decode(errors="replace") for name, text in _LABEL.findall(labels)}
    return pairs, _number(number)


def _number(text: str | bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
