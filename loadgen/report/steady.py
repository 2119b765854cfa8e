"""Whether the warm-up was long enough: first tokens at the beginning of the window beside the rest of it."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, variance

from loadgen.report.record import Outcome, Sample

FIRST = 0.2  # of the window
ERRORS = 3.0  # standard errors
_FEWEST = 10


def warmup_warning(samples: Sequence[Sample], window_s: tuple[float, float]) -> Iterator[str]:
    """One sentence if the mean TTFT of the first fifth differs from the rest's by more than three standard errors."""
    start_s, end_s = window_s
    border_s = start_s + FIRST * (end_s - start_s)
    early: list[float] = []
    rest: list[float] = []
    for one in samples:
        if one.measured and one.outcome is Outcome.OK and (ms := one.ttft_ms) is not None:
            (early if one.sched_s < border_s else rest).append(ms)
    if min(len(early), len(rest)) < _FEWEST:
        return
    error = math.sqrt(variance(early) / len(early) + variance(rest) / len(rest))
    if abs(fmean(early) - fmean(rest)) > ERRORS * error:
        yield (
            f"Warm-up may be too short: mean TTFT is {fmean(early):,.0f} ms in the first fifth of the window and "
            f"{fmean(rest):,.0f} ms after it."
        )
