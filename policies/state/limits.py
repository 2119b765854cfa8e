"""The limits of the settings: which there are, for whom, and what a request counts against each."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from policies.state.claims import Charge
from policies.state.meters import MICRO, Bucket, Meter, Purse, Rule
from policies.state.views import MeterView
from policies.types import RATES, Budget, Cost, Limits, Model, Settings, Tenant

SHARED_BURST_S = 60.0  # of limits that all tenants share

Limit = tuple[int, float] | Budget  # units a minute and seconds' worth at once


class Everybody:
    """All tenants and what they share, or all models."""

    def __contains__(self, name: object) -> bool:
        return True


EVERYBODY: Final = Everybody()


def changed(before: Settings | None, settings: Settings) -> Container[str]:
    """The tenants for which other limits hold than before, beside those of models, which are changed where they are."""
    if before is None or (before.fleet is None) is not (settings.fleet is None):
        return EVERYBODY
    old, new = before.tenants, settings.tenants
    return {name for name in {**old, **new} if old.get(name) is not new.get(name) and old.get(name) != new.get(name)}


def changed_models(before: Settings | None, settings: Settings) -> Container[str]:
    """The models of which something else holds for all tenants together. Where replicas share a store otherwise than before: all."""
    if before is None or before.fleet != settings.fleet:
        return EVERYBODY
    old, new = before.models, settings.models
    return {name for name in {**old, **new} if old.get(name) != new.get(name)}


def cap_of(settings: Settings, model: str) -> int | None:
    """How many requests of a model may run at a time; None: nothing is said of that."""
    served = settings.models.get(model)
    return served.limits.max_concurrency if served is not None else None


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


def rules_of(owner: Tenant) -> Iterator[Rule]:
    """Every rate and budget of a tenant."""
    for scope in scopes_of(owner):
        for metric in RATES:
            if getattr(scope.limits, metric) is not None:
                yield Rule(scope.name, owner.id, scope.part, metric)
    for budget in owner.budgets:
        yield Rule("tenant", owner.id, "", budget.id)


def limit_of(settings: Settings, rule: Rule) -> Limit | None:
    """What the settings say of a limit; None: there is no such limit."""
    owner = settings.tenants.get(rule.tenant)
    if owner is not None and rule.metric not in RATES:
        return next((budget for budget in owner.budgets if budget.id == rule.metric), None)
    held = _held(settings, owner, rule)
    limit = getattr(held, rule.metric) if held is not None else None
    return (limit, owner.burst_s if owner is not None else SHARED_BURST_S) if limit is not None else None


def _held(settings: Settings, owner: Tenant | None, rule: Rule) -> Limits | None:
    if owner is None:
        model = settings.models.get(rule.part) if rule.scope == "model" else None
        return model.limits if model is not None else None
    if rule.scope == "tenant":
        return owner.limits
    return (owner.keys if rule.scope == "key" else owner.models).get(rule.part)


def counts_tokens(settings: Settings) -> bool:
    """Whether anybody's tokens are limited."""
    return any(map(_of_tokens, settings.tenants.values())) or any(
        each.limits.tpm is not None for each in settings.models.values()
    )


def _of_tokens(owner: Tenant) -> bool:
    parts = (owner.limits, *owner.keys.values(), *owner.models.values())
    return bool(owner.budgets) or any(
        limits.tpm is not None or limits.itpm is not None or limits.otpm is not None for limits in parts
    )


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
        soft=meter.is_budget and meter.used - meter.apart >= meter.soft,
        held=meter.held / MICRO,
        reserved=meter.reserved / MICRO,
        extra=meter.extra / MICRO,
        refunded=meter.refunded / MICRO,
        settled=meter.settled / MICRO,
        written_off=meter.written_off / MICRO,
        denied=meter.denied,
        denied_shadow=meter.denied_shadow,
    )
