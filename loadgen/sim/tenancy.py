"""Tenants as `tenants.d` beside the configuration has them, put into a simulation's policy.

A tenant of the scenario is the one of that name: its weight, limits, budgets and queue bounds hold. Models are renamed: a
fleet serves one, whatever the configuration calls it. Partitions belong to endpoints, of which a fleet has its own, and
limits of keys to keys, of which a scenario says nothing. Budgets begin with the run, at a midnight.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from loadgen.scenario import Scenario
from loadgen.sim.policy import Policy, PolicyError
from policies.types import SHARED, Settings, Tenant


def with_tenants(policy: Policy, served: Settings, named: str, model: str) -> Policy:
    """`policy` with the tenants of `served`, the whole configuration as the gateway reads it; it calls `named` what the
    fleet calls `model`."""
    settings = replace(
        policy.settings,
        tenants={name: _renamed(tenant, named, model) for name, tenant in served.tenants.items()},
        models={model: replace(served.models[named], name=model)} if named in served.models else {},
        bands={
            name: replace(band, reserved=0.0) if name in served.bands and not served.bands[name].reserved else band
            for name, band in policy.settings.bands.items()
        },
    )
    return msgspec.structs.replace(policy, settings=settings)


def model_of(raw: Mapping[str, Any], pools: Iterable[str]) -> str:
    """What the configuration calls the model of these pools. Raises PolicyError when they have several."""
    told = raw.get("pools") or {}
    names = sorted({str((told.get(pool) or {}).get("model", "")) for pool in pools})
    if len(names) != 1:
        raise PolicyError(f"pools: the engines serve one model, and here their pools have {', '.join(names)}")
    return names[0]


def useless(served: Settings) -> list[str]:
    """Keys of tenants' files that mean nothing here."""
    found = []
    for name, tenant in served.tenants.items():
        found += [f"tenants.d/{name}: partition"] if tenant.partition != SHARED else []
        found += [f"tenants.d/{name}: limits of keys"] if tenant.keys else []
    return found


def unknown(served: Settings, scenario: Scenario) -> list[str]:
    """Tenants of the scenario that have no file."""
    return sorted({tenant.name for tenant in scenario.tenants} - set(served.tenants))


def _renamed(tenant: Tenant, named: str, model: str) -> Tenant:
    models = {model: tenant.models[named]} if named in tenant.models else {}
    return replace(tenant, partition=SHARED, keys={}, models=models)
