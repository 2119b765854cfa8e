"""From options to what is offered: scenario, schedule, keys, where each tenant's requests go."""

from collections.abc import Mapping

import msgspec

from loadgen.bench.basis import Plan
from loadgen.bench.exits import BenchError
from loadgen.bench.extra import PROBE
from loadgen.bench.keys import Keys, keys
from loadgen.bench.options import BenchOptions
from loadgen.bench.preflight import Asked
from loadgen.scenario import Scenario
from loadgen.schedule import build
from loadgen.sim import inputs
from loadgen.workload.fields import duration


def prepared(options: BenchOptions) -> Plan:
    """The scenario as the options change it, and its schedule. ScenarioError."""
    scenario = _scenario(options)
    if options.schedule is not None:
        return Plan(scenario=scenario, schedule=inputs.schedule(options.schedule), drawn=False)
    return Plan(scenario=scenario, schedule=build(scenario, seed_of(options, scenario)))


def seed_of(options: BenchOptions, scenario: Scenario) -> int:
    """The one that is asked for, or the scenario's."""
    return scenario.seed if options.seed is None else options.seed


def keys_of(options: BenchOptions, plan: Plan, environ: Mapping[str, str]) -> Keys:
    """Those of all tenants of the plan. BenchError."""
    tenants = {one.tenant for one in plan.schedule.requests}
    variables = {tenant: name for tenant in tenants if (name := plan.scenario.source(tenant).key_env)}
    return keys(options.keys, variables, environ)


def asked(options: BenchOptions, plan: Plan) -> Asked:
    """What preflight is to find out."""
    tenants = {one.tenant for one in plan.schedule.requests}
    own = {tenant: (url,) for tenant in tenants if (url := plan.scenario.source(tenant).url)}
    control = options.length_control or plan.scenario.length_control
    return Asked(
        urls={**own, **({"": options.urls} if options.urls else {})},
        model=options.model,
        api=options.api,
        control=None if control == "auto" else control,
        timeout_s=options.timeout_s,
        connect_s=options.connect_timeout_s,
        tenants=(*sorted(tenants), *((PROBE,) if options.probe else ())),
    )


def _scenario(options: BenchOptions) -> Scenario:
    if options.scenario is None:
        raise BenchError("name a scenario; `forebay bench list` has the standard ones")
    scenario = inputs.scenario(options.scenario, options.changes)
    if options.trace is not None:
        scenario = scenario.with_trace(options.trace)
    if options.scale is not None:
        scenario = scenario.scaled(options.scale)
    names = [tenant.name for tenant in scenario.tenants]
    for name in (*options.rates, *options.searched):
        if name not in names:
            raise BenchError(f"--scale-tenant {name}: no tenant is called that; there are {', '.join(names)}")
    for name, factor in options.rates.items():
        scenario = scenario.scaled(factor, name)
    if options.tail_s is not None:
        scenario = msgspec.structs.replace(scenario, tail=duration(options.tail_s))
    if PROBE in names and options.probe:
        raise BenchError(f"--probe: a tenant of the scenario is called {PROBE} already")
    return scenario
