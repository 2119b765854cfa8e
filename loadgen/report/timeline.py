"""A run second by second: what was offered, sent and ended, what was in flight, how the client kept up."""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate

from loadgen.report.folder import Health, Run, Scrape
from loadgen.report.parts import ClientHealth, HealthSecond, Load, Second
from loadgen.report.record import Outcome, Sample
from loadgen.report.stats import percentile
from loadgen.report.times import spread

CPU_S = 5.0  # a worker's load is looked at over so long (V4)


def timeline(samples: Sequence[Sample], end_s: float) -> tuple[Second, ...]:
    """Every second from 0 to the end of the last request, `end_s` at least."""
    last_s = max((one.end_s for one in samples), default=0.0)
    count = math.ceil(max(last_s, end_s))
    arrived = _by_second(samples, [one.sched_s for one in samples], count)
    sent = _by_second(samples, [one.sent_s or -1.0 for one in samples], count)
    ended = _by_second(samples, [one.end_s or -1.0 for one in samples], count)
    begun = sorted(one.sched_s for one in samples)
    over = sorted(one.end_s for one in samples if one.end_s)
    seen = sorted(one.reads[0] if one.reads else one.end_s for one in samples if one.reads or one.end_s)
    tokens = _tokens(samples, count)
    first = [sorted(ms for one in _ok(group) if (ms := one.ttft_ms) is not None) for group in arrived]
    return tuple(
        Second(
            t_s=second,
            offered=_by_tenant(arrived[second]),
            sent=len(sent[second]),
            ended=dict(sorted(Counter(one.outcome.value for one in ended[second]).items())),
            output_tokens=round(tokens[second], 2),
            in_flight=bisect_right(begun, second + 0.5) - bisect_right(over, second + 0.5),
            waiting=bisect_right(begun, second + 0.5) - bisect_right(seen, second + 0.5),
            ttft_p50_ms=percentile(first[second], 0.5),
            ttft_p90_ms=percentile(first[second], 0.9),
            ttft_max_ms=max(first[second], default=None),
            cached_tokens=sum(one.cached_tokens or 0 for one in _ok(arrived[second])),
            prompt_tokens=sum(one.prompt_tokens or one.input_tokens for one in _ok(arrived[second])),
            ideal_tokens=round(sum(one.counted_ideal_tokens for one in _ok(arrived[second]))),
            sent_of=_by_tenant(sent[second]),
            completed_of=_by_tenant(_ok(ended[second])),
        )
        for second in range(count)
    )


def _tokens(samples: Sequence[Sample], count: int) -> list[float]:
    tokens = [0.0] * count
    for one in samples:
        each = one.tokens / max(1, len(one.reads))
        for second, number in Counter(map(int, one.reads)).items():
            tokens[min(max(second, 0), count - 1)] += each * number
    return tokens


def _by_second(samples: Sequence[Sample], times_s: Sequence[float], count: int) -> list[list[Sample]]:
    """The samples whose time lies in each second."""
    made: list[list[Sample]] = [[] for _ in range(count)]
    for one, at_s in zip(samples, times_s, strict=True):
        if 0 <= at_s < count:
            made[int(at_s)].append(one)
    return made


def _by_tenant(samples: Sequence[Sample]) -> dict[str, int]:
    return dict(sorted(Counter(one.tenant for one in samples).items()))


def _ok(samples: Sequence[Sample]) -> list[Sample]:
    return [one for one in samples if one.outcome is Outcome.OK]


def client_health(run: Run) -> ClientHealth:
    """How the client kept up: lags over everything that was sent, rates over the window."""
    start_s, end_s = run.window_s
    inside = [one for one in run.samples if start_s <= one.sched_s < end_s]
    length_s = max(end_s - start_s, 1e-9)
    last = run.health[-1] if run.health else None
    sent = [one for one in run.samples if one.sent_s]
    completed = sum(one.outcome is Outcome.OK and start_s <= one.end_s < end_s for one in run.samples)
    return ClientHealth(
        lag=spread(one.lag_ms for one in sent),
        loop_lag_p99_ms=last.loop_lag_p99_ms if last else None,
        local_failures=last.local_failures if last else {},
        cpu_max=busiest(run.health),
        offered_per_s=len(inside) / length_s,
        sent_per_s=sum(start_s <= one.sent_s < end_s for one in sent) / length_s,
        completed_per_s=completed / length_s,
        in_flight_max=_most_in_flight(sent),
        think_s=_think_s(run),
        timeline=_health_by_second(sent, run.health),
    )


def _most_in_flight(sent: Sequence[Sample]) -> int:
    """At any moment, from the intended arrival on."""
    begun, over = ((one.sched_s, 1) for one in sent), ((one.end_s, -1) for one in sent if one.end_s)
    return max(accumulate(change for _, change in sorted((*begun, *over))), default=0)


def busiest(health: Sequence[Health]) -> float | None:
    """The most CPU that a worker took over any 5 s, as a share of one core."""
    by_worker: dict[int, list[float]] = defaultdict(list)
    for one in sorted(health, key=lambda one: one.t_s):
        by_worker[one.worker].append(one.cpu)
    size = int(CPU_S)
    means = [
        sum(shares[first : first + size]) / min(size, len(shares))
        for shares in by_worker.values()
        for first in range(max(1, len(shares) - size + 1))
    ]
    return max(means, default=None)


def _health_by_second(sent: Sequence[Sample], health: Sequence[Health]) -> tuple[HealthSecond, ...]:
    lags: dict[int, float] = {}
    for one in sent:
        second = int(one.sent_s)
        lags[second] = max(lags.get(second, 0.0), one.lag_ms)
    loops: dict[int, float] = {}
    cpus: dict[int, float] = {}
    for told in health:
        second = int(told.t_s)
        loops[second] = max(loops.get(second, 0.0), *told.loop_lag_ms, 0.0)
        cpus[second] = max(cpus.get(second, 0.0), told.cpu)
    return tuple(
        HealthSecond(t_s=second, lag_ms=lags.get(second), loop_lag_ms=loops.get(second), cpu=cpus.get(second))
        for second in sorted(lags.keys() | loops.keys())
    )


def _think_s(run: Run) -> float | None:
    """The mean time from the end of an answer to the intended time of what its user asked next."""
    ended = {one.id: one.end_s for one in run.samples if one.end_s}
    turns = {(one.session, one.turn): one.id for one in run.samples if one.session}
    before = ((one, turns.get((one.session, one.turn - 1), run.after.get(one.id))) for one in run.samples)
    waits = [one.sched_s - ended[last] for one, last in before if last in ended]
    return sum(waits) / len(waits) if waits else None


def loads(scrapes: Sequence[Scrape]) -> tuple[Load, ...]:
    """What servers said of themselves, one row for each of them."""
    by_name: dict[str, dict[int, Scrape]] = defaultdict(dict)
    for one in scrapes:
        by_name[one.name][int(one.t_s)] = one
    return tuple(
        Load(
            name=name,
            t_s=tuple(sorted(seen)),
            running=tuple(seen[second].running for second in sorted(seen)),
            waiting=tuple(seen[second].waiting for second in sorted(seen)),
        )
        for name, seen in sorted(by_name.items())
    )
