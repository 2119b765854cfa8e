"""Between tenants: who got how much of what was served, slot by slot, and who waited meanwhile (loadgen.md 6.2).

Service of a tenant is the prompt and output tokens delivered to it: a prompt when its first token comes, an output token
when it is read. Jain's index J = (sum x)^2 / (n sum x^2) is 1 when all x are equal and 1/n when one has everything.
`share` takes x = service / weight of those that had a request without a first token during the whole slot: what they
got is then the scheduler's doing alone. `cost` is the same in what tokens cost an engine. `need` takes x = min(1, service /
min(demand, fair share)) of all that wanted something; the fair share is water-filled: what somebody does not need is the
others'.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from loadgen.report.figures import SUFFICIENT, counts
from loadgen.report.parts import Fairness, Slot, Slowdown, TenantShare
from loadgen.report.record import Outcome, Sample, TokenCost
from loadgen.report.stats import percentile

SLOT_S = 10.0

Tokens = dict[str, float]  # by tenant


TOKENS = TokenCost(cached=1.0, output=1.0)
USUAL = TokenCost()


def fairness(
    samples: Sequence[Sample],
    weights: Mapping[str, float],
    window_s: tuple[float, float],
    attainments: Tokens,
    cost: TokenCost = USUAL,
) -> Fairness:
    """Of a run; `attainments` are those of the tenants that have enough requests, `cost` what a token costs."""
    if not samples:
        return Fairness()
    tenants = sorted({one.tenant for one in samples})
    weight = {tenant: weights.get(tenant, 1.0) for tenant in tenants}
    slots = _slots(samples, weight, window_s, cost)
    shares = [slot.j_share for slot in slots if slot.j_share is not None]
    needs = [slot.j_need for slot in slots if slot.j_need is not None]
    costs = [slot.j_cost for slot in slots if slot.j_cost is not None]
    return Fairness(
        j_share_mean=fmean(shares) if shares else None,
        j_share_worst=min(shares, default=None),
        j_cost_mean=fmean(costs) if costs else None,
        j_cost_worst=min(costs, default=None),
        j_need_mean=fmean(needs) if needs else None,
        j_need_worst=min(needs, default=None),
        attainment_gap=max(attainments.values()) - min(attainments.values()) if len(attainments) > 1 else None,
        service_gap_tokens=max((gap for slot in slots if (gap := _gap(slot, weight)) is not None), default=None),
        slowdowns=tuple(_slowdowns(samples, tenants)),
        tenants=_tenants(samples, weight, window_s, cost),
        slots=tuple(slots),
    )


def jain(values: Sequence[float]) -> float | None:
    """1: all are equal; None: there are fewer than two, or nobody has anything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if len(values) > 1 and squares else None


def fair_shares(demands: Tokens, weights: Mapping[str, float], capacity: float) -> Tokens:
    """What each would get of `capacity` by weight, nobody more than its demand, and all of it while somebody wants it."""
    shares: Tokens = {}
    left, open_ = capacity, dict(demands)
    while open_:
        per_weight = left / sum(weights[tenant] for tenant in open_)
        content = {tenant: need for tenant, need in open_.items() if need <= per_weight * weights[tenant]}
        if not content:
            return shares | {tenant: per_weight * weights[tenant] for tenant in open_}
        shares |= content
        left -= sum(content.values())
        open_ = {tenant: need for tenant, need in open_.items() if tenant not in content}
    return shares


def _slots(
    samples: Sequence[Sample], weight: Mapping[str, float], window_s: tuple[float, float], worth: TokenCost
) -> list[Slot]:
    start_s, end_s = window_s
    count = int((end_s - start_s) / SLOT_S + 1e-9)
    service: list[Tokens] = [defaultdict(float) for _ in range(count)]
    cost: list[Tokens] = [defaultdict(float) for _ in range(count)]
    demand: list[Tokens] = [defaultdict(float) for _ in range(count)]
    for one in samples:
        _serve(one, start_s, service, TOKENS)
        _serve(one, start_s, cost, worth)
        _demand(one, start_s, demand)
    waiting = {tenant: _Waiting(one for one in samples if one.tenant == tenant) for tenant in weight}
    return [
        _slot(start_s + number * SLOT_S, (service[number], cost[number], demand[number]), weight, waiting)
        for number in range(count)
    ]


def _slot(
    start_s: float, moved: tuple[Tokens, Tokens, Tokens], weight: Mapping[str, float], waiting: Mapping[str, "_Waiting"]
) -> Slot:
    service, cost, demand = moved
    backlogged = [tenant for tenant, one in waiting.items() if one.all_of(start_s, start_s + SLOT_S)]
    fair = fair_shares({tenant: need for tenant, need in demand.items() if need > 0}, weight, sum(service.values()))
    return Slot(
        start_s=start_s,
        service_tokens={tenant: round(service[tenant], 1) for tenant in weight if service[tenant]},
        backlogged=tuple(backlogged),
        j_share=jain([service[tenant] / weight[tenant] for tenant in backlogged]),
        j_cost=jain([cost[tenant] / weight[tenant] for tenant in backlogged]),
        j_need=jain([min(1.0, service[tenant] / share) for tenant, share in fair.items() if share > 0]),
    )


def _serve(sample: Sample, start_s: float, service: Sequence[Tokens], worth: TokenCost) -> None:
    """Add what came of a request to the slots in which it came."""
    first_s, last_s = (sample.reads[0], sample.reads[-1]) if sample.reads else (sample.end_s, sample.end_s)
    for place in range(max(0, int((first_s - start_s) // SLOT_S)), len(service)):
        begins_s = start_s + place * SLOT_S
        if begins_s > last_s:
            return
        service[place][sample.tenant] += _got(sample, begins_s + SLOT_S, worth) - _got(sample, begins_s, worth)


def _got(sample: Sample, until_s: float, worth: TokenCost = TOKENS) -> float:
    """What was delivered before that: the prompt with the first of the answer, an answer that came whole at its end."""
    prompt, cached = _prompt(sample), sample.cached_tokens or 0
    head = (prompt - cached) * worth.input + cached * worth.cached
    if sample.reads:
        answer = sample.tokens_between(-math.inf, until_s) * worth.output
        return answer + (head if sample.reads[0] < until_s else 0.0)
    whole = sample.outcome is Outcome.OK and sample.end_s < until_s
    return head + sample.tokens * worth.output if whole else 0.0


def _prompt(sample: Sample) -> int:
    return sample.prompt_tokens or sample.input_tokens


def _demand(sample: Sample, start_s: float, demand: Sequence[Tokens]) -> None:
    """A request wants its prompt and its answer in every slot in which it is open, less what it had before."""
    wanted = _prompt(sample) + max(sample.tokens, sample.planned_output)
    last_s = sample.end_s or math.inf
    for place in range(max(0, int((sample.sched_s - start_s) // SLOT_S)), len(demand)):
        begins_s = start_s + place * SLOT_S
        if begins_s >= last_s:
            return
        demand[place][sample.tenant] += max(0.0, wanted - _got(sample, begins_s))


class _Waiting:
    """Whether a tenant had a request without a first token: from the intended arrival to that, or to the end."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        spans = sorted((one.sched_s, one.reads[0] if one.reads else one.end_s or math.inf) for one in samples)
        self._begins: list[float] = []
        self._ends: list[float] = []
        for begin_s, end_s in spans:  # joined where they touch
            if self._ends and begin_s <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end_s)
            else:
                self._begins.append(begin_s)
                self._ends.append(end_s)

    def all_of(self, start_s: float, end_s: float) -> bool:
        place = bisect_right(self._begins, start_s) - 1
        return place >= 0 and self._ends[place] >= end_s


def _gap(slot: Slot, weight: Mapping[str, float]) -> float | None:
    """The largest difference in service by weight between two backlogged tenants."""
    got = [slot.service_tokens.get(tenant, 0.0) / weight[tenant] for tenant in slot.backlogged]
    return max(got) - min(got) if len(got) > 1 else None


def _tenants(
    samples: Sequence[Sample], weight: Mapping[str, float], window_s: tuple[float, float], worth: TokenCost
) -> tuple[TenantShare, ...]:
    start_s, end_s = window_s
    service, cost = dict.fromkeys(weight, 0.0), dict.fromkeys(weight, 0.0)
    for sample in samples:
        service[sample.tenant] += _got(sample, end_s) - _got(sample, start_s)
        cost[sample.tenant] += _got(sample, end_s, worth) - _got(sample, start_s, worth)
    total, all_cost, weights = sum(service.values()), sum(cost.values()), sum(weight.values())
    told = []
    for tenant in weight:
        ok = [one for one in samples if one.tenant == tenant and one.outcome is Outcome.OK and one.measured]
        prompt = sum(_prompt(one) for one in ok)
        cached = [one.cached_tokens for one in ok if one.cached_tokens is not None]
        ideal = sum(one.counted_ideal_tokens for one in ok)
        told.append(
            TenantShare(
                tenant=tenant,
                weight=weight[tenant],
                service_tokens=round(service[tenant], 1),
                service_share=service[tenant] / total if total else 0.0,
                cost_share=cost[tenant] / all_cost if all_cost else 0.0,
                entitled_share=weight[tenant] / weights,
                prompt_tokens=prompt,
                cached_share=sum(cached) / prompt if cached and prompt else None,
                ideal_share=ideal / prompt if prompt else None,
            )
        )
    return tuple(told)


def _slowdowns(samples: Sequence[Sample], tenants: Sequence[str]) -> list[Slowdown]:
    """Of a tenant that was alone at first: its requests before anybody else's first one, and those after it."""
    first = {tenant: min(one.sched_s for one in samples if one.tenant == tenant) for tenant in tenants}
    found = []
    for tenant in tenants:
        others_s = min((at_s for other, at_s in first.items() if other != tenant), default=math.inf)
        own = [one for one in samples if one.tenant == tenant and counts(one) and one.streamed]
        alone, shared = ([one for one in own if (one.sched_s < others_s) is early] for early in (True, False))
        if min(len(alone), len(shared)) >= SUFFICIENT:
            before, after = (_p99(group) for group in (alone, shared))
            found.append(Slowdown(tenant=tenant, alone_p99_ms=before, shared_p99_ms=after, ratio=after / before))
    return found


def _p99(samples: Sequence[Sample]) -> float:
    """Of first tokens, adjusted; inf where they never came."""
    waited = (one.ttft_ms if one.outcome is Outcome.OK else None for one in samples)
    return percentile(sorted(math.inf if ms is None else ms for ms in waited), 0.99) or 0.0
