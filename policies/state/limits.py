"""The limits of the settings: which there are, for whom, and what a request counts against each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from policies.state.claims import Charge
from policies.state.meters import MICRO, Bucket, Meter, Purse, Rule
from policies.state.views import MeterView
from policies.types import RATES, Budget, Cost, Limits, Model, Settings, Tenant

SHARED_BURST_S = 60.0  # of limits that all tenants share

Limit = tuple[int, float] | Budget  # units a minute and seconds' worth at once


class Scope(NamedTuple):
    """For whom limits hold; `tenant` empty: for all together. `part`: the key or the model."""

    name: str
    tenant: str
    part: str
    limits: Limits


def scopes(owner: Tenant, key: str, served: Model) -> Iterator[Scope]:
    yield Scope("tenant", owner.id, "", owner.limits)
    if key in owner.keys:
        yield Scope("key", owner.id, key, owner.keys[key])
    if served.name in owner.models:
        yield Scope("tenant_model", owner.id, served.name, owner.models[served.name])
    yield Scope("model", "", served.name, served.limits)


def scopes_of(owner: Tenant) -> Iterator[Scope]:
    """Every scope of a tenant alone."""
    yield Scope("tenant", owner.id, "", owner.limits)
    for key, held in owner.keys.items():
        yield Scope("key", owner.id, key, held)
    for model, held in owner.models.items():
        yield Scope("tenant_model", owner.id, model, held)


def limits_of(settings: Settings) -> Iterator[tuple[Rule, Limit]]:
    """Every rate and budget of the settings."""
    for owner in settings.tenants.values():
        yield from _rates("tenant", owner.id, {"": owner.limits}, owner.burst_s)
        yield from _rates("key", owner.id, owner.keys, owner.burst_s)
        yield from _rates("tenant_model", owner.id, owner.models, owner.burst_s)
        for budget in owner.budgets:
            yield Rule("tenant", owner.id, "", budget.id), budget
    yield from _rates("model", "", {name: each.limits for name, each in settings.models.items()}, SHARED_BURST_S)


def _rates(scope: str, tenant: str, parts: Mapping[str, Limits], burst_s: float) -> Iterator[tuple[Rule, Limit]]:
    for part, limits in parts.items():
        for metric in RATES:
            limit = getattr(limits, metric)
            if limit is not None:
                yield Rule(scope, tenant, part, metric), (limit, burst_s)


def bound(meter: Meter, limit: Limit) -> None:
    if isinstance(limit, Budget):
        if isinstance(meter, Purse):
            meter.bound(limit)
    elif isinstance(meter, Bucket):
        meter.bound(*limit)


def charge(meter: Meter, metric: str, cost: Cost) -> Charge:
    own = meter.rule.scope != "model"
    if metric == "rpm":
        return Charge(meter=meter, own=own, flat=MICRO)
    per_input = per_cached = per_output = 0
    if metric != "otpm":
        per_input, per_cached = round(cost.input * MICRO), round(cost.cached * MICRO)
    if metric != "itpm":
        per_output = round(cost.output * MICRO)
    return Charge(meter=meter, own=own, per_input=per_input, per_cached=per_cached, per_output=per_output)


def bounds_queues(owner: Tenant) -> bool:
    bounds = (owner.max_queued, owner.max_queued_bytes, owner.queue_timeout_s)
    return any(bound is not None for bound in bounds)


def is_limited(owner: Tenant) -> bool:
    parts = (owner.limits, *owner.keys.values(), *owner.models.values())
    return bool(owner.budgets) or bounds_queues(owner) or any(limits != Limits() for limits in parts)


def view(meter: Meter, limit: Limit | None, now: float) -> MeterView:
    meter.look(now)
    budget = limit if isinstance(limit, Budget) else None
    return MeterView(
        tenant=meter.rule.tenant,
        scope=meter.rule.scope,
        part=meter.rule.part,
        metric=meter.rule.metric,
        period=budget.period if budget is not None else "minute",
        limit=budget.amount if budget is not None else limit[0] if isinstance(limit, tuple) else 0,
        capacity=meter.capacity // MICRO,
        left=max(0, meter.capacity - meter.used + meter.apart) / MICRO,
        reset_s=meter.empty_s(),
        used=max(0, meter.used - meter.apart) / MICRO,
        held=meter.held / MICRO,
        reserved=meter.reserved / MICRO,
        extra=meter.extra / MICRO,
        refunded=meter.refunded / MICRO,
        settled=meter.settled / MICRO,
        written_off=meter.written_off / MICRO,
        denied=meter.denied,
        denied_shadow=meter.denied_shadow,
    )
