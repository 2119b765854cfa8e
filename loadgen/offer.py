"""What a command's options make of a scenario: found by name, changed field by field, faster or slower; and in words.

`--set a.b.c=value` changes one field. Lists whose elements have names are entered by name
(`tenants.chat.arrivals.rate=5`). The value is YAML.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadgen import scenario as scenarios
from loadgen.report.folder import Basis, Goal
from loadgen.scenario import Scenario, ScenarioError
from loadgen.schedule import Schedule
from loadgen.workload.summary import Summary, quantile
from loadgen.workload.yaml_source import plain

Changes = list[tuple[str, Any]]
_SHARES = (0.5, 0.9, 0.99)


def named(name: str) -> Scenario:
    """The standard scenario of that name, or the one in that file (.yaml, .yml). ScenarioError."""
    if not name.endswith((".yaml", ".yml")):
        return scenarios.standard(name)
    try:
        return scenarios.load(Path(name).read_text("utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{name}: {getattr(error, 'strerror', None) or error}") from error


def changed(scenario: Scenario, changes: Changes) -> Scenario:
    """With those fields set. ScenarioError for a field that is not there, or a value that cannot be."""
    if not changes:
        return scenario
    made = set_in(msgspec.to_builtins(scenario), changes, ScenarioError)
    return scenarios.checked(made, "--set")


def parsed(change: str) -> tuple[str, Any]:
    """`a.b.c=value` as path and value. ScenarioError."""
    path, equals, text = change.partition("=")
    if not equals or not path:
        raise ScenarioError(f"--set {change}: expected a.b.c=value")
    try:
        return path, plain(text)
    except yaml.YAMLError as error:
        raise ScenarioError(f"--set {change}: {error}") from error


def set_in(raw: Any, changes: Changes, error: type[Exception]) -> Any:
    """Plain values, changed in place. Raises `error`."""
    for path, value in changes:
        *steps, last = path.split(".")
        place = raw
        for step in steps:
            place = _entered(place, step, path, error)
        if not isinstance(place, dict):
            raise error(f"--set {path}: there is no such field")
        place[last] = value
    return raw


def scaled(
    scenario: Scenario, *, rate: float | None = None, scale: float | None = None, tenants: Iterable[str] = ()
) -> Scenario:
    """At `rate` requests/s in all, then `scale` times that; `tenants` are `NAME=FACTOR` of single ones. ScenarioError."""
    if rate is not None:
        scenario = scenario.at_rate(rate)
    if scale is not None:
        scenario = scenario.scaled(scale)
    for one in tenants:
        name, equals, text = one.partition("=")
        try:
            factor = float(text)
        except ValueError:
            factor = 0.0
        if not equals or not 0 < factor < float("inf"):
            raise ScenarioError(f"--scale-tenant {one}: expected NAME=FACTOR, a number above 0")
        if name not in (tenant.name for tenant in scenario.tenants):
            raise ScenarioError(f"--scale-tenant {one}: no tenant is called {name}")
        scenario = scenario.scaled(factor, only=name)
    return scenario


def described(scenario: Scenario, schedule: Schedule) -> str:
    """What would be offered, in a few lines: for `--dry-run`."""
    summary = schedule.summary()
    totals = summary.totals()
    window_s = schedule.window_end_s - schedule.window_start_s
    known = f"{totals.ideal_cached_tokens:,} ({totals.ideal_share:.1%})"
    lines = [
        f"{scenario.name}, seed {schedule.seed}: {totals.requests:,} requests, {totals.measured:,} of them measured in "
        f"{window_s:g} s ({totals.measured / window_s:.2f}/s{_loop(scenario)})",
        f"prompt tokens: {totals.input_tokens:,}; a measured request {_quantiles(summary.inputs)}; {known} of the measured "
        "ones known to a cache without a limit",
        f"output tokens: {totals.output_tokens:,}; a measured request {_quantiles(summary.outputs)}",
        *_more(scenario, summary),
        f"schedule: sha256 {schedule.digest()}",
    ]
    return "".join(line + "\n" for line in lines)


def _loop(scenario: Scenario) -> str:
    return " at most, in a closed loop" if scenario.closed else ""


def _quantiles(counts: dict[int, int]) -> str:
    mean = sum(value * number for value, number in counts.items()) / max(1, sum(counts.values()))
    named = (f"p{share * 100:g} {quantile(counts, share):,}" for share in _SHARES)
    return ", ".join((f"mean {mean:,.0f}", *named))


def _more(scenario: Scenario, summary: Summary) -> Iterable[str]:
    totals = summary.totals()
    if len(totals.tenants) > 1:
        most = sorted(totals.tenants.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{name} {count / totals.requests:.1%}" for name, count in most[:8])
        yield f"tenants: {len(most)}; {shown}{', ...' if len(most) > 8 else ''}"
    if len(summary.classes) > 1:
        yield "classes: " + ", ".join(f"{name} {summary.classes[name]:,}" for name in scenario.classes)
    if totals.sessions:
        yield f"sessions: {totals.sessions:,}, {summary.in_sessions / totals.sessions:.1f} requests each"
    if summary.turns:
        yield f"thinking: {summary.think_s / summary.turns:.1f} s before a later request, on average"
    if scenario.salt == "none":
        yield "salt: none; a run may find in the caches what another one left there"
    if scenario.telling:
        yield f"max_tokens tells the length of the answer for {', '.join(scenario.telling)}"


def _entered(place: Any, step: str, path: str, error: type[Exception]) -> Any:
    if isinstance(place, list | tuple):
        found = [one for one in place if isinstance(one, dict) and one.get("name") == step]
        if found:
            return found[0]
    elif isinstance(place, dict):
        if place.get(step) is None:
            place[step] = {}
        return place[step]
    raise error(f"--set {path}: there is no {step}")


def basis(scenario: Scenario, schedule: Schedule, cells: Iterable[tuple[str, str]]) -> Basis:
    """What a report needs of the plan; `cells` are all pairs of tenant and class. Who ran it, and where, is added to it."""
    pairs = sorted(cells)
    return Basis(
        started="",
        seed=schedule.seed,
        schedule=schedule.digest(),
        window_start_s=schedule.window_start_s,
        window_end_s=schedule.window_end_s,
        closed=scenario.closed,
        slo=scenario.slo,
        goals=tuple(
            Goal(
                tenant=tenant,
                cls=cls,
                slo=scenario.goal(tenant, cls),
                expect_rejects=scenario.source(tenant).expect_rejects,
            )
            for tenant, cls in pairs
        ),
        weights={tenant: scenario.source(tenant).weight for tenant, _ in pairs},
        cost=scenario.cost,
        scenario=msgspec.to_builtins(scenario),
        target={},
        environment={},
    )
