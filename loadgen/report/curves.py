"""What pictures are drawn from: distributions as some of their points, requests as some of them. Percentiles are never
taken from these.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from loadgen.report.figures import SloOf, counts, judge
from loadgen.report.parts import Curve, Dot
from loadgen.report.pauses import Pauses
from loadgen.report.record import Outcome, Sample

POINTS = 200
ANSWERS = 3000  # whose pauses are drawn
DOTS = 1500
MANY_CLASSES = 6


def curves(samples: Sequence[Sample]) -> tuple[Curve, ...]:
    """First tokens of each class, offered and from the send; stall, TPOT and pauses of all together."""
    offered = [one for one in samples if counts(one) and one.streamed]
    classes = sorted({one.cls for one in offered})
    groups = {name: [one for one in offered if one.cls == name] for name in classes} if _few(classes) else {"": offered}
    made = [curve for name, group in groups.items() for curve in _first_tokens(name, group)]
    made += _of("stall", "", offered, lambda one: one.stall_ms)
    made += _of("tpot", "", offered, lambda one: one.tpot_ms)
    pauses = Pauses.of(offered[:: max(1, math.ceil(len(offered) / ANSWERS))]).reads.curve(POINTS)
    return (*made, *([Curve(of="itl", cls="", points=tuple(pauses))] if pauses else []))


def dots(samples: Sequence[Sample], slo_of: SloOf) -> tuple[Dot, ...]:
    """Prompt length and first token of every so many-th request that got one."""
    seen = [one for one in samples if counts(one) and one.outcome is Outcome.OK and one.ttft_ms is not None]
    every = max(1, math.ceil(len(seen) / DOTS))
    return tuple(
        Dot(
            input_tokens=one.input_tokens,
            ttft_ms=round(one.ttft_ms or 0.0, 1),
            limit_ms=round(slo_of(one).ttft_limit_ms(one.input_tokens), 1),
            good=judge(one, slo_of(one)).good,
        )
        for one in seen[::every]
    )


def _few(classes: Sequence[str]) -> bool:
    return len(classes) <= MANY_CLASSES


def _first_tokens(cls: str, group: Sequence[Sample]) -> Iterator[Curve]:
    yield from _of("ttft", cls, group, lambda one: one.ttft_ms, len(group))
    yield from _of(
        "ttft_service", cls, group, lambda one: None if one.ttft_ms is None else one.ttft_ms - one.lag_ms, len(group)
    )


def _of(
    of: str, cls: str, group: Sequence[Sample], value: Callable[[Sample], float | None], among: int | None = None
) -> list[Curve]:
    """The distribution of a value of complete requests, among so many (None: those that have it)."""
    found = sorted(ms for one in group if one.outcome is Outcome.OK and (ms := value(one)) is not None)
    if not found:
        return []
    count = len(found)
    places = sorted({round(step * (count - 1) / (POINTS - 1)) for step in range(POINTS)})
    points = tuple((round(found[place], 3), (place + 1) / (among or count)) for place in places)
    return [Curve(of=of, cls=cls, points=points)]
