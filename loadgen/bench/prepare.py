"""From options to what is offered: scenario, schedule, keys, where each tenant's requests go."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from loadgen import offer
from loadgen.bench.basis import Plan, plan
from loadgen.bench.exits import BenchError
from loadgen.bench.extra import PROBE
from loadgen.bench.keys import Keys, keys
from loadgen.bench.options import BenchOptions, check_server
from loadgen.bench.preflight import Asked
from loadgen.scenario import Scenario, ScenarioError
from loadgen.schedule import Schedule, build, planned_in, saved
from loadgen.workload.fields import duration
from loadgen.workload.trace import Trace
from loadgen.workload.words import listed, suggestion

LARGE = 100_000  # requests: a schedule of more of them stays in its file


def scenario_of(options: BenchOptions) -> Scenario:
    """The scenario as the options change it. ScenarioError."""
    if options.scenario is None:
        raise BenchError("name a scenario; `forebay bench list` has the standard ones")
    scenario = offer.changed(offer.named(options.scenario), [offer.parsed(one) for one in options.changes])
    if options.trace is not None:
        scenario = offer.traced(scenario, options.trace)
    _check_servers(options, scenario)
    names = [tenant.name for tenant in scenario.tenants]
    for name in options.searched:
        if name not in names:
            close = suggestion(name, names)
            raise BenchError(f"--scale-tenant {name}: no tenant is called that; there are {listed(names)}{close}")
    if PROBE in names and options.probe:
        raise BenchError(f"--probe: a tenant of the scenario is called {PROBE} already")
    scenario = offer.scaled(scenario, scale=options.scale, tenants=options.rates)
    if options.tail_s is not None:
        scenario = msgspec.structs.replace(scenario, tail=duration(options.tail_s))
    return scenario


def _check_servers(options: BenchOptions, scenario: Scenario) -> None:
    for tenant in scenario.tenants:
        if tenant.url:
            check_server(f"`url` of tenant {tenant.name}", tenant.url)
    all_have = all(tenant.url for tenant in scenario.tenants) and not options.probe
    if not (options.dry_run or options.urls or all_have):
        raise BenchError("--url is missing: where to send, like http://127.0.0.1:8000")


def schedule_of(options: BenchOptions, scenario: Scenario, file: Path | None = None) -> Schedule:
    """What is sent: the saved one, or drawn from the scenario; a large one is written to `file`. ScenarioError."""
    if options.schedule is not None:
        return _fitting(saved(options.schedule), scenario, options.schedule)
    seed = seed_of(options, scenario)
    if file is not None and scenario.rate * scenario.total_s > LARGE:
        return planned_in(file, scenario, seed)
    return build(scenario, seed)


def _fitting(schedule: Schedule, scenario: Scenario, file: Path) -> Schedule:
    """The schedule, whose tenants have their goals, keys and weights from the scenario. BenchError where it has others."""
    try:
        for tenant in schedule.totals.tenants:
            scenario.source(tenant)
    except ScenarioError as error:
        raise BenchError(f"--schedule {file}: it was made of {schedule.name}, and {error}") from error
    return schedule


def planned(options: BenchOptions, scenario: Scenario, file: Path) -> Plan:
    """The whole of it. BenchError when there is nothing to measure."""
    made = plan(scenario, schedule_of(options, scenario, file), drawn=options.schedule is None)
    if not made.facts.measured:
        raise BenchError("no request falls into the measured window: make it longer, or raise the rate")
    return made


def seed_of(options: BenchOptions, scenario: Scenario) -> int:
    """The one that is asked for, or the scenario's."""
    return scenario.seed if options.seed is None else options.seed


def keys_of(options: BenchOptions, scenario: Scenario, tenants: Sequence[str], environ: Mapping[str, str]) -> Keys:
    """Those of `tenants`, all that the schedule has. BenchError, also for a file with names that nobody has."""
    variables = {tenant: name for tenant in tenants if (name := scenario.source(tenant).key_env)}
    return keys(options.keys, variables, environ, _known(options, scenario, tenants))


def _known(options: BenchOptions, scenario: Scenario, tenants: Sequence[str]) -> Collection[str] | None:
    """Names that keys may be of. A trace may have more than come in the time of this run; None: any may be, because that of
    a saved schedule is not there."""
    names = dict.fromkeys((*(one.name for one in scenario.tenants), *senders(options, tenants)))
    for one in scenario.tenants:
        if isinstance(one.arrivals, Trace) and one.arrivals.tenant_field:
            if options.schedule is not None:
                return None
            names |= dict.fromkeys(one.arrivals.names())
    return tuple(names)


def senders(options: BenchOptions, tenants: Iterable[str]) -> tuple[str, ...]:
    """All that send: those of the schedule, and the probe."""
    return (*tenants, *((PROBE,) if options.probe else ()))


def asked(options: BenchOptions, made: Plan) -> Asked:
    """What preflight is to find out."""
    tenants = tuple(made.facts.tenants)
    own = {tenant: (url,) for tenant in tenants if (url := made.scenario.source(tenant).url)}
    control = options.length_control or made.scenario.length_control
    return Asked(
        urls={**own, **({"": options.urls} if options.urls else {})},
        model=options.model,
        api=options.api,
        control=None if control == "auto" else control,
        timeout_s=options.timeout_s,
        connect_s=options.connect_timeout_s,
        tenants=senders(options, tenants),
    )
