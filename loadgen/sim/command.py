"""`forebay sim`: options in, tables or JSON out.

Standard output carries the report and nothing else; what is going on goes to standard error. Equal options give equal
output, but for the block `run` of the JSON.
"""

import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from loadgen.report import arms as side_by_side
from loadgen.report.run import RunReport
from loadgen.scenario import Scenario, ScenarioError
from loadgen.schedule import build
from loadgen.sim import inputs
from loadgen.sim.arm import CORE, Arm, Ran, run_all
from loadgen.sim.inputs import Inputs
from loadgen.sim.loop import Timing

MET, MISSED, WRONG, INVALID = 0, 1, 2, 3  # exit codes (loadgen.md 1.1)
SCHEMA = "forebay.report/1"
_PLAIN_WIDTH = 140  # without a terminal


class SimOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; names are the options'."""

    scenario: str
    config: Path | None = None
    fleet: str | None = None
    routers: tuple[str, ...] = (CORE,)
    timing: Timing = Timing()
    seeds: int = 1
    seed: int | None = None
    jobs: int = 1
    rate: float | None = None
    scale: float | None = None
    journal: Path | None = None
    check: bool = False
    json: bool = False
    changes: tuple[str, ...] = ()
    trace: Path | None = None
    schedule: Path | None = None
    dry_run: bool = False
    quiet: bool = False


def sim_command(options: SimOptions) -> int:
    """Run it; the exit code."""
    try:
        return _simulate(options)
    except inputs.UNUSABLE as error:
        _say(f"forebay sim: {error}")
        return WRONG


def _simulate(options: SimOptions) -> int:
    began_s = time.time()
    given = _given(options)
    first = given.scenario.seed if options.seed is None else options.seed
    if options.dry_run:
        _describe(given.scenario, first)
        return MET
    arms = [_arm(options, given, router) for router in options.routers]
    tasks = [(arm, seed) for arm in arms for seed in range(first, first + options.seeds)]
    ran = run_all(tasks, options.jobs, lambda arm, one: _progress(options, arm, one))
    reports = {arm.router: [one.report for (of, _), one in zip(tasks, ran, strict=True) if of is arm] for arm in arms}
    if options.json:
        _print_json(options, given, reports, _run_block(began_s, ran))
    else:
        _print_tables(given, reports)
    return _exit_code(next(iter(reports.values())))


def _given(options: SimOptions) -> Inputs:
    given = inputs.read(options.scenario, options.fleet, options.config, options.changes)
    if given.without_effect and not options.quiet:
        _say(f"without effect in the simulator: {', '.join(given.without_effect)}")
    if options.journal is not None and (options.routers != (CORE,) or options.seeds != 1):
        raise ScenarioError("--journal: a journal holds one run of the core; leave --router and --seeds out")
    scenario = given.scenario
    if options.trace is not None:
        scenario = scenario.with_trace(options.trace)
    if options.rate is not None:
        scenario = scenario.at_rate(options.rate)
    if options.scale is not None:
        scenario = scenario.scaled(options.scale)
    return msgspec.structs.replace(given, scenario=scenario)


def _arm(options: SimOptions, given: Inputs, router: str) -> Arm:
    return Arm(
        router=router,
        scenario=given.scenario,
        fleet=given.fleet,
        policy=given.policy,
        timing=options.timing,
        schedule=inputs.schedule(options.schedule) if options.schedule else None,
        check=options.check,
        journal=options.journal,
    )


def _describe(scenario: Scenario, seed: int) -> None:
    """What would be offered."""
    plan = build(scenario, seed)
    prompt = sum(one.input_tokens for one in plan.requests)
    output = sum(one.output_tokens for one in plan.requests)
    number = len(plan.requests)
    sys.stdout.write(
        f"{scenario.name}, seed {seed}: {number:,} requests, {plan.measured:,} of them measured in "
        f"{scenario.duration_s:g} s, {scenario.rate:.2f}/s\n"
        f"prompt tokens: {prompt:,}, {prompt / max(1, number):,.0f} a request; "
        f"{plan.ideal_cached_tokens:,} of the measured ones known to an unlimited cache\n"
        f"output tokens: {output:,}, {output / max(1, number):,.0f} a request\n"
        f"schedule: sha256 {plan.digest()}\n"
    )


def _print_tables(given: Inputs, reports: Mapping[str, Sequence[RunReport]]) -> None:
    page = Console()
    if not page.is_terminal:
        page = Console(width=_PLAIN_WIDTH)
    runs = next(iter(reports.values()))
    seeds = f"seed {runs[0].seed}" if len(runs) == 1 else f"{len(runs)} seeds from {runs[0].seed}"
    page.print(
        f"{given.scenario.name}: {given.scenario.rate:.2f} requests/s for {runs[0].window_s:g} s, {seeds}",
        highlight=False,
    )
    page.print(side_by_side.table(reports))
    page.print(side_by_side.engines(reports))
    page.print()
    for note in side_by_side.footnotes(given.scenario.slo, reports):
        page.print(note, highlight=False)


def _print_json(
    options: SimOptions, given: Inputs, reports: Mapping[str, Sequence[RunReport]], run: dict[str, object]
) -> None:
    document = {
        "schema": SCHEMA,
        "run": run,
        "target": {
            "driver": "sim",
            "fleet": msgspec.to_builtins(given.fleet),
            "timing": msgspec.to_builtins(options.timing),
        },
        "scenario": msgspec.to_builtins(given.scenario),
        "arms": {router: side_by_side.as_json(runs) for router, runs in reports.items()},
    }
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def _run_block(began_s: float, ran: Sequence[Ran]) -> dict[str, object]:
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began_s)),
        "took_s": round(time.time() - began_s, 3),
        "python": platform.python_version(),
        "each": [{"took_s": round(one.took_s, 3), "events": one.events, "requests": one.requests} for one in ran],
    }


def _exit_code(runs: Sequence[RunReport]) -> int:
    """By the first arm."""
    if not all(run.valid for run in runs):
        _say("INVALID: no group of requests is large enough to be judged (100); simulate a longer time")
        return INVALID
    return MET if all(run.met for run in runs) else MISSED


def _progress(options: SimOptions, arm: Arm, ran: Ran) -> None:
    if not options.quiet:
        _say(f"{arm.router}, seed {ran.report.seed}: {ran.requests:,} requests in {ran.took_s:.1f} s")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
