"""What the options of `forebay sim` name, read and put together: scenario, fleet, policy, schedule.

`--set a.b.c=value` changes one field: of the scenario, or with a first word `fleet` or `config` of those (offer.py).
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from loadgen import offer
from loadgen.faults import FaultError
from loadgen.offer import Changes, set_in
from loadgen.report.place import PlaceError
from loadgen.scenario import Scenario, ScenarioError
from loadgen.schedule import Schedule, saved
from loadgen.sim import fleet as fleets
from loadgen.sim import policy as policies
from loadgen.sim import tenancy
from loadgen.sim.fleet import Fleet, FleetError
from loadgen.sim.policy import Policy, PolicyError
from loadgen.sim.profile import ProfileError
from policies.types import Settings

UNUSABLE = (ScenarioError, FleetError, PolicyError, ProfileError, FaultError, PlaceError)
"""Errors that say what is wrong with an input."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation stands on. `without_effect`: keys of the configuration that mean nothing here; `unlimited`: tenants
    that have no file where others have one.
    """

    scenario: Scenario
    fleet: Fleet
    policy: Policy
    without_effect: tuple[str, ...]
    unlimited: tuple[str, ...] = ()


def read(
    scenario: str, fleet: str | None, config: Path | None, changes: Iterable[str], served: Settings | None = None
) -> Inputs:
    """Everything, changed as `--set` says; `served` is the configuration as the gateway reads it, where that has files of
    tenants. Raises one of UNUSABLE."""
    of_scenario, of_fleet, of_config = _sorted(changes)
    plan = offer.changed(offer.named(scenario), of_scenario)
    name = fleet or plan.fleet
    engines = fleets.load(name)
    if of_fleet:
        engines = fleets.checked(name, set_in(msgspec.to_builtins(engines), of_fleet, FleetError))
    raw = set_in(policies.read(config), of_config, PolicyError)
    model = fleets.members(engines)[0].profile.model
    policy = policies.policy(raw, fleets.pools(engines, model))
    made = Inputs(scenario=plan, fleet=engines, policy=policy, without_effect=tuple(_useless(raw, "")))
    if served is None:
        return made
    return msgspec.structs.replace(
        made,
        policy=tenancy.with_tenants(policy, served, tenancy.model_of(raw, engines.pools), model),
        without_effect=(*made.without_effect, *tenancy.useless(served)),
        unlimited=tuple(tenancy.unknown(served, plan)),
    )


def scenario(name: str, changes: Iterable[str]) -> Scenario:
    """A standard scenario or a file, changed as `--set` says; nothing else can be changed here. ScenarioError."""
    of_scenario, of_fleet, of_config = _sorted(changes)
    for path, _ in (*of_fleet, *of_config):
        raise ScenarioError(f"--set {path}: only the scenario can be changed here")
    return offer.changed(offer.named(name), of_scenario)


def declared(given: Inputs) -> Inputs:
    """With the predictor that takes `max_tokens` for the length."""
    settings = replace(given.policy.settings, length="declared")
    return msgspec.structs.replace(given, policy=msgspec.structs.replace(given.policy, settings=settings))


def schedule(path: Path) -> Schedule:
    """A saved schedule, in memory. Raises ScenarioError."""
    found = saved(path)
    return msgspec.structs.replace(found, requests=tuple(found.requests))


def _sorted(changes: Iterable[str]) -> tuple[Changes, Changes, Changes]:
    """By what they change: scenario, fleet, configuration."""
    found: dict[str, Changes] = {"scenario": [], "fleet": [], "config": []}
    for path, value in map(offer.parsed, changes):
        first, _, rest = path.partition(".")
        whole = first in found and rest
        found[first if whole else "scenario"].append((rest if whole else path, value))
    return found["scenario"], found["fleet"], found["config"]


def _useless(raw: Any, path: str) -> Iterable[str]:
    if isinstance(raw, dict):
        for key, value in raw.items():
            here = f"{path}.{key}" if path else str(key)
            if key in policies.WITHOUT_EFFECT:
                yield here
            else:
                yield from _useless(value, here)
