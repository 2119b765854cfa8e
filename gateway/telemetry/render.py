"""Numbers to Prometheus text, version 0.0.4, in chunks small enough that a loop can breathe between them.

Labels are formatted once per series, also for the many lines of a histogram. Source of the format:
prometheus.io/docs/instrumenting/exposition_formats.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from gateway.telemetry.families import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CHUNK_LINES = 256  # about 0.2 ms of work

HistogramState = tuple[list[int], float]
Sample = tuple[tuple[str, ...], float | HistogramState]
Samples = Iterable[Sample]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def chunks(snapshot: Sequence[tuple[Family, Samples]]) -> Iterator[bytes]:
    """The whole exposition, `CHUNK_LINES` lines at a time."""
    lines: list[str] = []
    for line in _all_lines(snapshot):
        lines.append(line)
        if len(lines) >= CHUNK_LINES:
            yield _encode(lines)
            lines.clear()
    yield _encode(lines)


def _encode(lines: list[str]) -> bytes:
    return "".join(lines).encode("utf-8", "replace")


def _all_lines(snapshot: Sequence[tuple[Family, Samples]]) -> Iterator[str]:
    for family, samples in snapshot:
        yield f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
        for labels, value in samples:
            pairs = _pairs(family.labels, labels)
            if isinstance(value, tuple):
                yield from _histogram_lines(family, pairs, value)
            else:
                yield f"{family.name}{{{pairs}}} {_number(value)}\n" if pairs else f"{family.name} {_number(value)}\n"


def _histogram_lines(family: Family, pairs: str, state: HistogramState) -> Iterator[str]:
    counts, total = state
    head = f"{family.name}_bucket{{{pairs},le=" if pairs else f"{family.name}_bucket{{le="
    below = 0
    for bound, count in zip(family.bounds, counts, strict=False):
        below += count
        yield f'{head}"{bound!r}"}} {below}\n'
    below += counts[-1]
    tail = f"{{{pairs}}}" if pairs else ""
    yield f'{head}"+Inf"}} {below}\n{family.name}_sum{tail} {total!r}\n{family.name}_count{tail} {below}\n'


@lru_cache(maxsize=32_768)  # the labels of a series are the same at every scrape; beyond this many only speed is lost
def _pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)])


def _number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))
