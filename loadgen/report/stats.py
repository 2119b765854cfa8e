"""From samples to the figures of a report. Every request offered is in the denominator.

offered = measured requests, less those whose client left as planned; good = ok and inside every limit of the SLO;
attainment = good / offered. So nobody gets better by refusing, failing or being late (loadgen.md 6.2). Latency
percentiles are of completed requests, by nearest rank; attainment stands beside them for the rest.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.report.record import REJECTED, Outcome, Sample, Slo

PRINTABLE_ABOVE = 5  # a percentile with fewer samples above it is hardly more than a maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A percentile of `count` values; `value` None when there are none."""

    value: float | None
    count: int
    p: float

    @property
    def firm(self) -> bool:
        """Whether enough samples lie above it."""
        return self.count * (1 - self.p) >= PRINTABLE_ABOVE - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Figures of one group of requests; times in ms, `output_tokens_per_s` over the measured window."""

    offered: int
    ok: int
    rejected: int
    failed: int
    cancelled: int
    good: int
    output_tokens_per_s: float
    ttft_p50: Quantile
    ttft_p99: Quantile
    itl_p99: Quantile

    @property
    def attainment(self) -> float | None:
        """good / offered; None when nothing was offered."""
        return self.good / self.offered if self.offered else None

    def as_json(self) -> dict[str, object]:
        """The figures as plain values."""
        return {
            "offered": self.offered,
            "ok": self.ok,
            "rejected": self.rejected,
            "failed": self.failed,
            "cancelled": self.cancelled,
            "attainment": _rounded(self.attainment, 4),
            "output_tokens_per_s": round(self.output_tokens_per_s, 1),
            "ttft_ms": {"p50": _rounded(self.ttft_p50.value, 1), "p99": _rounded(self.ttft_p99.value, 1)},
            "itl_ms": {"p99": _rounded(self.itl_p99.value, 1)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One arm: all measured requests together, and by priority class."""

    totals: Totals
    classes: Mapping[str, Totals]
    lag_ms_p99: Quantile


def percentile(values: Sequence[float], p: float) -> float | None:
    """Nearest rank (inverted CDF) of sorted `values`; None of none."""
    if not values:
        return None
    return values[max(0, math.ceil(p * len(values) - 1e-9) - 1)]


def quantile(values: Iterable[float], p: float) -> Quantile:
    """Percentile `p` of unsorted values."""
    ordered = sorted(values)
    return Quantile(value=percentile(ordered, p), count=len(ordered), p=p)


def report(samples: Sequence[Sample], classes: Iterable[str], slo: Slo, window_s: tuple[float, float]) -> Report:
    """The figures of one arm, `classes` in that order. Throughput counts every token of the window, warm-up's too."""
    return Report(
        totals=totals(samples, slo, window_s),
        classes={name: totals([one for one in samples if one.priority == name], slo, window_s) for name in classes},
        lag_ms_p99=quantile((one.lag_ms for one in samples), 0.99),
    )


def totals(samples: Sequence[Sample], slo: Slo, window_s: tuple[float, float]) -> Totals:
    """The figures of one group of samples."""
    start_s, end_s = window_s
    measured = [one for one in samples if one.measured]
    offered = [one for one in measured if not _left_as_planned(one)]
    done = [one for one in offered if one.outcome is Outcome.OK]
    rejected = sum(one.outcome in REJECTED for one in offered)
    ttft = [ms for one in done if (ms := one.ttft_ms) is not None]
    received = sum(one.tokens_between(start_s, end_s) for one in samples)
    return Totals(
        offered=len(offered),
        ok=len(done),
        rejected=rejected,
        failed=len(offered) - len(done) - rejected,
        cancelled=len(measured) - len(offered),
        good=sum(not slo.missed(one) for one in done),
        output_tokens_per_s=received / (end_s - start_s),
        ttft_p50=quantile(ttft, 0.5),
        ttft_p99=quantile(ttft, 0.99),
        itl_p99=quantile((gap for one in done for gap in one.gaps_ms()), 0.99),
    )


def _left_as_planned(sample: Sample) -> bool:
    """Also when the answer was quicker than the client's patience: both arms then have the same denominator."""
    return sample.leaves and sample.outcome in (Outcome.CANCELLED, Outcome.OK)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
