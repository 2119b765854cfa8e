"""What the options of `forebay sim` name, read and put together: scenario, fleet, policy, schedule.

`--set a.b.c=value` changes one field: of the scenario, or with a first word `fleet` or `config` of those. Lists whose
elements have names are entered by name (`tenants.chat.arrivals.rate=5`). The value is YAML.
"""

import gzip
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadgen import scenario as scenarios
from loadgen.faults import FaultError
from loadgen.scenario import Scenario, ScenarioError
from loadgen.schedule import VERSION, Planned, Schedule
from loadgen.sim import fleet as fleets
from loadgen.sim import policy as policies
from loadgen.sim.fleet import Fleet, FleetError
from loadgen.sim.policy import Policy, PolicyError
from loadgen.sim.profile import ProfileError

UNUSABLE = (ScenarioError, FleetError, PolicyError, ProfileError, FaultError)
"""Errors that say what is wrong with an input."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation stands on. `without_effect`: keys of the configuration that mean nothing here."""

    scenario: Scenario
    fleet: Fleet
    policy: Policy
    without_effect: tuple[str, ...]


def read(scenario: str, fleet: str | None, config: Path | None, changes: Iterable[str]) -> Inputs:
    """Everything, changed as `--set` says. Raises one of UNUSABLE."""
    of_scenario, of_fleet, of_config = _sorted(changes)
    plan = _changed_scenario(_scenario(scenario), of_scenario)
    name = fleet or plan.fleet
    engines = fleets.load(name)
    if of_fleet:
        engines = fleets.checked(name, _changed(msgspec.to_builtins(engines), of_fleet, FleetError))
    raw = _changed(policies.read(config), of_config, PolicyError)
    model = fleets.members(engines)[0].profile.model
    return Inputs(
        scenario=plan,
        fleet=engines,
        policy=policies.policy(raw, fleets.pools(engines, model)),
        without_effect=tuple(_useless(raw, "")),
    )


def scenario(name: str, changes: Iterable[str]) -> Scenario:
    """A standard scenario or a file, changed as `--set` says; nothing else can be changed here. ScenarioError."""
    of_scenario, of_fleet, of_config = _sorted(changes)
    for path, _ in (*of_fleet, *of_config):
        raise ScenarioError(f"--set {path}: only the scenario can be changed here")
    return _changed_scenario(_scenario(name), of_scenario)


def declared(given: Inputs) -> Inputs:
    """With the predictor that takes `max_tokens` for the length."""
    settings = replace(given.policy.settings, length="declared")
    return msgspec.structs.replace(given, policy=msgspec.structs.replace(given.policy, settings=settings))


def schedule(path: Path) -> Schedule:
    """A saved schedule. Raises ScenarioError."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        head, *rows = data.splitlines()
        told = msgspec.json.decode(head)
        if told.get("version") != VERSION:
            raise ScenarioError(f"{path}: schedule version {told.get('version')}, expected {VERSION}")
        decode = msgspec.json.Decoder(Planned).decode
        return Schedule(
            name=told["scenario"],
            seed=told["seed"],
            window_start_s=told["window_s"][0],
            window_end_s=told["window_s"][1],
            requests=tuple(decode(row) for row in rows),
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ScenarioError(f"{path}: not a schedule: {error}") from error


def _scenario(name: str) -> Scenario:
    if not name.endswith((".yaml", ".yml")):
        return scenarios.standard(name)
    try:
        return scenarios.load(Path(name).read_text("utf-8"))
    except OSError as error:
        raise ScenarioError(f"{name}: {error.strerror}") from error


def _changed_scenario(plan: Scenario, changes: list[tuple[str, Any]]) -> Scenario:
    if not changes:
        return plan
    changed = _changed(msgspec.to_builtins(plan), changes, ScenarioError)
    return scenarios.load(yaml.safe_dump(changed, sort_keys=False))


Changes = list[tuple[str, Any]]


def _sorted(changes: Iterable[str]) -> tuple[Changes, Changes, Changes]:
    """By what they change: scenario, fleet, configuration."""
    found: dict[str, Changes] = {"scenario": [], "fleet": [], "config": []}
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path:
            raise ScenarioError(f"--set {change}: expected a.b.c=value")
        first, _, rest = path.partition(".")
        whole = first in found and rest
        found[first if whole else "scenario"].append((rest if whole else path, policies.parsed(text)))
    return found["scenario"], found["fleet"], found["config"]


def _changed(raw: Any, changes: Changes, error: type[Exception]) -> Any:
    for path, value in changes:
        *steps, last = path.split(".")
        place = raw
        for step in steps:
            place = _entered(place, step, path, error)
        if not isinstance(place, dict):
            raise error(f"--set {path}: there is no such field")
        place[last] = value
    return raw


def _entered(place: Any, step: str, path: str, error: type[Exception]) -> Any:
    if isinstance(place, list | tuple):
        named = [one for one in place if isinstance(one, dict) and one.get("name") == step]
        if named:
            return named[0]
    elif isinstance(place, dict):
        if place.get(step) is None:
            place[step] = {}
        return place[step]
    raise error(f"--set {path}: there is no {step}")


def _useless(raw: Any, path: str) -> Iterable[str]:
    if isinstance(raw, dict):
        for key, value in raw.items():
            here = f"{path}.{key}" if path else str(key)
            if key in policies.WITHOUT_EFFECT:
                yield here
            else:
                yield from _useless(value, here)
