"""Pages of metrics that are not what they should be: numbers that are none, counters that began anew, half a page."""

import re
from collections.abc import Iterator

from loadgen.engine_server.faults import Faults

_SAMPLE = re.compile(rb"^([^#\s][^\n]*?) (\S+)$", re.MULTILINE)
_COUNTER = re.compile(rb"[^{ ]*_(?:total|count|sum|bucket)(?:\{|$)")


class Spoiled:
    """What the faults make of a page. Counters begin anew at the first page since their fault was set."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._began: dict[bytes, float] | None = None

    def page(self, page: bytes) -> bytes:
        """The page as it is told."""
        if self._faults.find("counter_reset") is None:
            self._began = None
        else:
            page = self._since(page)
        if self._faults.find("nan") is not None:
            page = _SAMPLE.sub(rb"\1 NaN", page)
        return page

    def half(self, page: bytes) -> bytes | None:
        """What of a page is sent before the connection ends; None: all, and it stays."""
        return page[: len(page) // 2] if self._faults.find("half_body") is not None else None

    def _since(self, page: bytes) -> bytes:
        if self._began is None:
            self._began = dict(_counters(page))
        began = self._began

        def fresh(sample: re.Match[bytes]) -> bytes:
            name = sample[1]
            return sample[0] if name not in began else b"%b %r" % (name, float(sample[2]) - began[name])

        return _SAMPLE.sub(fresh, page)


def _counters(page: bytes) -> Iterator[tuple[bytes, float]]:
    for sample in _SAMPLE.finditer(page):
        if _COUNTER.match(sample[1]):
            yield sample[1], float(sample[2])
