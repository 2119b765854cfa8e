"""Plain values -> validated Settings: for the configuration, and for a journal that carries them whole.

The one file of `policies` that knows pydantic. It opens no file; ranges of single fields are the loader's concern,
here it is what the core relies on.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from policies.types import (
    RATES,
    Affinity,
    Band,
    Budget,
    Cost,
    Fairness,
    Fleet,
    Limits,
    Model,
    Pool,
    Reserve,
    Settings,
    Tenant,
)

# Without this a misspelt key would pass in silence and its default would rule.
for _noun in (Pool, Band, Limits, Budget, Cost, Reserve, Tenant, Model, Affinity, Fairness, Fleet, Settings):
    with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))(_noun)
CHOICES = {
    "ordering": ("by_length", "edf", "fcfs"),
    "shed": ("auto", "llmd", "off"),
    "length": ("learned", "declared"),
}
ON_LATE = ("queue", "downgrade", "reject")
LANES = ("auto", "off", "fixed")
MODES = ("enforce", "shadow")
WITHOUT_STORE = ("local_share", "open", "closed")
OVERSIZE = ("reject", "clamp")
PERIODS = ("day", "week", "month")
_SETTINGS = TypeAdapter(Settings)
_TENANTS = TypeAdapter(dict[str, dict[str, Tenant]])
PORTION = 100  # tenants that are validated at once: no other thread runs meanwhile


class SettingsError(ValueError):
    """The values are no Settings; the text says which and why."""


def settings_from(plain: Mapping[str, object]) -> Settings:
    """Settings of plain values as the journal has them; raises SettingsError, with everything that is wrong."""
    held, tenants = dict(plain), plain.get("tenants")
    portions: list[dict[str, object]] = []
    if isinstance(tenants, dict) and len(tenants) > PORTION:
        names = list(tenants)
        portions = [{name: tenants[name] for name in names[at : at + PORTION]} for at in range(0, len(names), PORTION)]
        held["tenants"] = {}
    try:
        # as JSON: strict validation takes dataclasses from mappings only there
        settings = _SETTINGS.validate_json(json.dumps(held))
        made: dict[str, Tenant] = {}
        for portion in portions:
            made |= _TENANTS.validate_json(json.dumps({"tenants": portion}))["tenants"]
    except ValidationError as error:
        raise SettingsError("; ".join(_said(error))) from None
    except TypeError as error:
        raise SettingsError(f"not plain values: {error}") from None
    settings = replace(settings, tenants=made) if portions else settings
    wrong = list(_contradictions(settings))
    if wrong:
        raise SettingsError("; ".join(wrong))
    return settings


def _said(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_input=False):
        path = ".".join(str(step) for step in detail["loc"])
        yield f"{path or 'settings'}: {detail['msg']}"


def _unknown(path: str, value: str, known: tuple[str, ...]) -> Iterator[str]:
    if value not in known:
        yield f"{path}: {value!r} is none of {', '.join(known)}"


def _no_lenders(settings: Settings, pool: Pool) -> Iterator[str]:
    for lender in pool.borrow:
        if lender not in settings.pools or lender == pool.name:
            yield f"pools.{pool.name}.borrow: {lender!r} is no other pool"
        elif settings.pools[lender].model != pool.model:
            yield f"pools.{pool.name}.borrow: {lender!r} serves another model"


def _wrong_tenant(name: str, tenant: Tenant) -> Iterator[str]:
    if tenant.id != name:
        yield f"tenants.{name}.id: is {tenant.id!r}"
    if tenant.weight <= 0:
        yield f"tenants.{name}.weight: must be positive"
    if not tenant.partition:
        yield f"tenants.{name}.partition: must not be empty"
    yield from _wrong_quotas(f"tenants.{name}", tenant)


def _wrong_quotas(path: str, tenant: Tenant) -> Iterator[str]:
    if tenant.burst_s <= 0:
        yield f"{path}.burst_s: must be positive"
    yield from _unknown(f"{path}.mode", tenant.mode, MODES)
    if tenant.on_store_down:
        yield from _unknown(f"{path}.on_store_down", tenant.on_store_down, WITHOUT_STORE)
    yield from _unknown(f"{path}.reserve.oversize", tenant.reserve.oversize, OVERSIZE)
    yield from _wrong_limits(f"{path}.limits", tenant.limits)
    for part, limits in (*tenant.keys.items(), *tenant.models.items()):
        yield from _wrong_limits(f"{path}.{part}", limits)
    for budget in tenant.budgets:
        yield from _unknown(f"{path}.budgets.{budget.id}.period", budget.period, PERIODS)
        if budget.amount < 1:
            yield f"{path}.budgets.{budget.id}.amount: must be positive"
    if len({*RATES, *(budget.id for budget in tenant.budgets)}) < len(RATES) + len(tenant.budgets):
        yield f"{path}.budgets: two with the same id, or one with the name of a rate"


def _wrong_limits(path: str, limits: Limits) -> Iterator[str]:
    for field in (*RATES, "max_concurrency"):
        limit = getattr(limits, field)
        if limit is not None and limit < 1:
            yield f"{path}.{field}: must be positive"


def _wrong_shares(settings: Settings) -> Iterator[str]:
    for field, most in (("reserved", 1.0), ("min_share", 0.5)):
        total = sum(getattr(band, field) for band in settings.bands.values())
        if total > most + 1e-9:
            yield f"bands: {field} of all is {total:g}, more than {most:g}"
    fairness = settings.fairness
    yield from _unknown("fairness.kind", fairness.kind, ("deficit", "round_robin"))
    if fairness.quantum < 1 or min(fairness.input, fairness.cached, fairness.output) < 0.0:
        yield "fairness: quantum must be positive, no cost negative"


def _wrong_band(name: str, band: Band) -> Iterator[str]:
    if band.name != name:
        yield f"bands.{name}.name: is {band.name!r}"
    if band.queue_timeout_s <= 0 or band.max_queued < 1:
        yield f"bands.{name}: queue_timeout_s and max_queued must be positive"
    if band.age_after_s <= 0:
        yield f"bands.{name}.age_after_s: must be positive"
    if not 0.0 < band.ceiling <= 1.0:
        yield f"bands.{name}.ceiling: must be above 0 and at most 1"
    if band.reserved < 0.0 or band.min_share < 0.0:
        yield f"bands.{name}: reserved and min_share must not be negative"
    yield from _unknown(f"bands.{name}.on_late", band.on_late, ON_LATE)


def _wrong_fleet(fleet: Fleet | None) -> Iterator[str]:
    if fleet is None:
        return
    yield from _unknown("fleet.on_store_down", fleet.on_store_down, WITHOUT_STORE)
    if fleet.sync_s <= 0 or fleet.lease_s <= 0 or fleet.replicas < 1:
        yield "fleet: sync_s, lease_s and replicas must be positive"


def _contradictions(settings: Settings) -> Iterator[str]:
    for name, pool in settings.pools.items():
        if pool.name != name:
            yield f"pools.{name}.name: is {pool.name!r}"
        yield from _unknown(f"pools.{name}.lanes", pool.lanes, LANES)
        yield from _no_lenders(settings, pool)
    for name, band in settings.bands.items():
        yield from _wrong_band(name, band)
    for name, tenant in settings.tenants.items():
        yield from _wrong_tenant(name, tenant)
    for name, model in settings.models.items():
        if model.name != name:
            yield f"models.{name}.name: is {model.name!r}"
        yield from _wrong_limits(f"models.{name}.limits", model.limits)
    yield from _wrong_shares(settings)
    if len({band.rank for band in settings.bands.values()}) < len(settings.bands):
        yield "bands: two with the same rank"
    yield from _wrong_fleet(settings.fleet)
    for field in ("max_queued", "max_queued_bytes", "max_attempts", "timer_scale"):
        if getattr(settings, field) <= 0:
            yield f"{field}: must be positive"
    for field, known in CHOICES.items():
        yield from _unknown(field, getattr(settings, field), known)
