"""All figures of a group of requests: a cell (class x tenant x priority) of a run, or the whole of it.

Every request offered is in the denominator, whatever became of it. Latency comes in
two families (loadgen.md 6.3): `completed` over good ends alone, and `adjusted`, where every other request offered
counts as infinitely late; targets use the second. Units stand in the names; rates are over the measured window.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from loadgen.report.pauses import Pauses
from loadgen.report.record import Outcome, Sample, Slo
from loadgen.report.stats import percentile
from loadgen.report.times import Spread, Times, firm, mean_times, spread

SUFFICIENT = 100  # requests of a cell that say something (loadgen.md 8.2, V8)
LIMITS = ("ttft", "tpot", "stall", "e2e")
CURVE = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # all limits times that

SloOf = Callable[[Sample], Slo]


@dataclass(slots=True)
class Judged:
    """One measured request that was offered: its times in ms, and what it took of its tightest limit."""

    sample: Sample
    ttft_ms: float | None
    tpot_ms: float | None
    stall_ms: float | None
    used: float
    missed: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Complete, and inside every limit."""
        return self.used <= 1.0


@dataclass(slots=True, kw_only=True)
class Figures:
    """What is said of a group. A time is None where nothing of the kind happened, inf where it never ended.

    `attainment_by_limit`: the share of all offered that was complete and inside that one limit, whatever the others.
    """

    offered: float
    ok: float
    rejected_quota: float
    rejected_capacity: float
    failed: float
    good: float
    attainment: float | None
    attainment_admitted: float | None
    goodput_per_s: float
    good_tokens_per_s: float
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    ttft_p95_ms: float | None
    ttft_p99_ms: float | None
    ttft_completed_p50_ms: float | None
    ttft_completed_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    stall_p50_ms: float | None
    stall_p99_ms: float | None
    e2e_p50_ms: float | None
    queued_p50_ms: float | None
    queued_p99_ms: float | None
    missed_ttft: float
    missed_tpot: float
    missed_stall: float
    missed_e2e: float
    prompt_tokens: float
    cached_tokens: float
    ideal_tokens: float
    times: dict[str, Times]
    attainment_by_limit: dict[str, float | None] = field(default_factory=dict)

    @property
    def rejected(self) -> float:
        """For whatever reason."""
        return self.rejected_quota + self.rejected_capacity

    @property
    def sufficient(self) -> bool:
        """Enough requests for an SLO to be judged."""
        return self.offered >= SUFFICIENT

    @property
    def cached_share(self) -> float | None:
        """Of what an unlimited cache would have held."""
        return self.cached_tokens / self.ideal_tokens if self.ideal_tokens else None

    def firm(self, p: float) -> bool:
        """Whether enough requests lie beyond the percentile."""
        return firm(self.offered, p)

    def as_json(self) -> dict[str, object]:
        """Plain values; infinity is the word."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


def judge(sample: Sample, slo: Slo) -> Judged:
    """What a request comes to."""
    if sample.outcome is not Outcome.OK:
        return Judged(sample, None, None, None, math.inf, ())
    times = sample.ttft_ms, sample.tpot_ms, sample.stall_ms
    used = tuple(slo.used_of(sample, *times))
    return Judged(
        sample,
        *times,
        max((share for _, share in used), default=0.0),
        tuple(name for name, share in used if share > 1.0),
    )


def counts(sample: Sample) -> bool:
    """Measured and offered: all but those whose client left as planned, or would have had it come to that."""
    return sample.measured and not (sample.leaves and sample.outcome in (Outcome.CANCELLED, Outcome.OK))


def figures(
    judged: Sequence[Judged],
    output_tokens: float,
    window_s: float,
    pauses: Pauses | None = None,
    *,
    timed: bool = True,
) -> Figures:
    """The figures of a group; `output_tokens` of all its requests that came in the window, warm-up's too.

    `pauses` are those of `judged` where they are counted already. Without `timed` there are no `times`.
    """
    window_s = window_s or math.inf  # one that was cut off before its beginning has no rates
    outcomes = Counter(one.sample.outcome for one in judged)
    ok = [one for one in judged if one.sample.outcome is Outcome.OK]
    good = [one for one in judged if one.good]
    missed = Counter(name for one in ok for name in one.missed)
    offered, quota = len(judged), outcomes[Outcome.REJECTED_QUOTA]
    streamed = [one for one in judged if one.sample.streamed]
    ttft = sorted(math.inf if one.ttft_ms is None else one.ttft_ms for one in streamed)
    seen = [ms for ms in ttft if ms < math.inf]
    tpot = sorted(one.tpot_ms for one in ok if one.tpot_ms is not None)
    stall = sorted(one.stall_ms for one in ok if one.stall_ms is not None)
    queued = sorted(one.sample.queued_s * 1000 for one in ok)
    return Figures(
        offered=offered,
        ok=len(ok),
        rejected_quota=quota,
        rejected_capacity=outcomes[Outcome.REJECTED_CAPACITY],
        failed=offered - len(ok) - quota - outcomes[Outcome.REJECTED_CAPACITY],
        good=len(good),
        attainment=_ratio(len(good), offered),
        attainment_admitted=_ratio(len(good), offered - quota),
        goodput_per_s=len(good) / window_s,
        good_tokens_per_s=sum(one.sample.tokens for one in good) / window_s,
        output_tokens_per_s=output_tokens / window_s,
        ttft_p50_ms=percentile(ttft, 0.5),
        ttft_p90_ms=percentile(ttft, 0.9),
        ttft_p95_ms=percentile(ttft, 0.95),
        ttft_p99_ms=percentile(ttft, 0.99),
        ttft_completed_p50_ms=percentile(seen, 0.5),
        ttft_completed_p99_ms=percentile(seen, 0.99),
        tpot_p50_ms=percentile(tpot, 0.5),
        tpot_p99_ms=percentile(tpot, 0.99),
        stall_p50_ms=percentile(stall, 0.5),
        stall_p99_ms=percentile(stall, 0.99),
        e2e_p50_ms=percentile(sorted(one.sample.e2e_ms for one in ok), 0.5),
        queued_p50_ms=percentile(queued, 0.5),
        queued_p99_ms=percentile(queued, 0.99),
        missed_ttft=missed["ttft"],
        missed_tpot=missed["tpot"],
        missed_stall=missed["stall"],
        missed_e2e=missed["e2e"],
        prompt_tokens=sum(one.sample.prompt_tokens or 0 for one in ok),
        cached_tokens=sum(one.sample.cached_tokens or 0 for one in ok),
        ideal_tokens=sum(one.sample.ideal_tokens for one in ok),
        times=_times(judged, pauses or Pauses.of(one.sample for one in judged)) if timed else {},
        attainment_by_limit={name: _ratio(len(ok) - missed[name], offered) for name in LIMITS},
    )


def curve(judged: Sequence[Judged]) -> dict[str, float | None]:
    """Attainment if all limits were so many times as large."""
    return {f"{factor:g}": _ratio(sum(one.used <= factor for one in judged), len(judged)) for factor in CURVE}


def mean(several: Sequence[Figures]) -> Figures:
    """The mean of each figure over the runs that have it."""
    means: dict[str, Any] = {
        one.name: _mean(getattr(each, one.name) for each in several)
        for one in fields(Figures)
        if one.name not in ("times", "attainment_by_limit")
    }
    names = several[0].times if several else ()
    return Figures(
        **means,
        times={name: mean_times([one.times[name] for one in several]) for name in names},
        attainment_by_limit={name: _mean(one.attainment_by_limit.get(name) for one in several) for name in LIMITS},
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _times(judged: Sequence[Judged], pauses: Pauses) -> dict[str, Times]:
    """Every metric of loadgen.md 6.1 by name; one that no request has is empty."""
    streamed = [one for one in judged if one.sample.streamed]
    return {
        "ttfb": _family(judged, lambda one: one.sample.ttfb_ms),
        "ttft": _family(streamed, lambda one: one.ttft_ms, owed=True),
        "ttfo": _family(streamed, lambda one: one.sample.ttfo_ms),
        "e2e": _family(judged, lambda one: one.sample.e2e_ms),
        "tpot": _family(streamed, lambda one: one.tpot_ms, waits=False),
        "stall": _family(streamed, lambda one: one.stall_ms, waits=False),
        "itl": Times(completed=pauses.reads.spread()),
        "itl_per_token": Times(completed=pauses.tokens.spread()),
        "queued": _family(judged, lambda one: one.sample.queued_s * 1000, waits=False),
    }


def _family(
    judged: Sequence[Judged], value: Callable[[Judged], float | None], *, owed: bool = False, waits: bool = True
) -> Times:
    """A metric over all that were offered. `owed`: who is complete and has none waits for ever too, and is not left
    out; `waits`: it counts from the intended arrival, so it is shorter from the moment of sending.
    """
    ok = [one for one in judged if one.sample.outcome is Outcome.OK]
    found = [(ms, one.sample.lag_ms) for one in ok if (ms := value(one)) is not None]
    if ok and not found and not owed:
        return Times(completed=Spread())
    never = len(judged) - len(found if owed else ok)
    return Times(
        completed=spread(ms for ms, _ in found),
        adjusted=spread((ms for ms, _ in found), never),
        service=spread(ms - lag_ms for ms, lag_ms in found) if waits else None,
    )


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if not isinstance(value, int | float) or value == math.inf:
        return None if value is None else "inf"
    return int(value) if value == int(value) else round(value, 4)
