"""`forebay sim`: from options to arms, and from arms to an exit code. Equal options give equal output."""

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadgen.faults import FaultError
from loadgen.offer import described, scaled, traced
from loadgen.report import arms as side_by_side
from loadgen.report.place import folder
from loadgen.report.run import RunReport
from loadgen.scenario import Scenario, ScenarioError
from loadgen.schedule import Schedule, build
from loadgen.sim import inputs, output
from loadgen.sim.arm import CORE, LEARNED, Arm, Ran, run_all
from loadgen.sim.fleet import members
from loadgen.sim.inputs import Inputs
from loadgen.sim.kv import InvariantError as ModelError
from loadgen.sim.loop import Timing
from loadgen.sim.processes import spread
from loadgen.sim.recorded import recorded
from loadgen.sim.routers import names as routers
from loadgen.sim.search import Found, Probe, Search
from loadgen.sim.timeline import NEEDS_CORE
from loadgen.sim.timeline import read as read_faults
from policies.core import InvariantError as CoreError
from policies.types import Settings

SEEDS = 5  # a difference of policies shows over several (loadgen.md 1.3)
MET, MISSED, WRONG, INVALID, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 5, 130  # exit codes (loadgen.md 1.1)


class SimOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; names are the options'. `seeds` None: `SEEDS`, or one where the requests are given or a
    journal is written. `served`: `config` as the gateway reads it, if it has files of tenants beside it.
    """

    scenario: str
    config: Path | None = None
    served: Settings | None = None
    fleet: str | None = None
    routers: tuple[str, ...] = (CORE,)
    lengths: str = LEARNED
    timing: Timing = Timing()
    seeds: int | None = None
    seed: int | None = None
    jobs: int = 1
    rate: float | None = None
    scale: float | None = None
    scale_tenants: tuple[str, ...] = ()
    find_max_rate: bool = False
    start: float = 0.25
    probe_s: float = 120.0
    journal: Path | None = None
    from_journal: Path | None = None
    faults: tuple[str, ...] = ()
    check: bool = False
    out: Path | None = None
    html: bool = True
    json: bool = False
    changes: tuple[str, ...] = ()
    trace: Path | None = None
    schedule: Path | None = None
    dry_run: bool = False
    quiet: bool = False


def sim_command(options: SimOptions) -> int:
    """Run it; the exit code."""
    try:
        return _Command(options).run()
    except inputs.UNUSABLE as error:
        output.say(f"forebay sim: {error}")
        return WRONG
    except (CoreError, ModelError):
        traceback.print_exc()
        return INTERNAL
    except KeyboardInterrupt:
        output.say("interrupted")
        return INTERRUPTED


class _Command:
    """One call. Raises one of `inputs.UNUSABLE` for options that cannot be."""

    def __init__(self, options: SimOptions) -> None:
        _check(options)
        self._options = options
        self._began_s = time.time()
        self._given = _given(options)
        self._check_faults()
        self._seed = self._given.scenario.seed if options.seed is None else options.seed
        self._schedule = self._fixed_schedule()
        self._arms = [self._arm(router) for router in options.routers]

    def run(self) -> int:
        if self._options.dry_run:
            plan = self._schedule or build(self._given.scenario, self._seed)
            sys.stdout.write(described(self._given.scenario, plan, json=self._options.json))
            return MET
        if self._options.find_max_rate:
            return self._search()
        with folder(self._options.out, self._given.scenario.name, self._began_s) as path:
            code = self._compare([msgspec.structs.replace(arm, out=path) for arm in self._arms])
            self._say(f"Files: {path}")
        return code

    def _compare(self, arms: Sequence[Arm]) -> int:
        first = self._seed
        tasks = [(arm, seed) for arm in arms for seed in range(first, first + self._seeds)]
        ran = run_all(tasks, self._options.jobs, self._told)
        reports = {
            arm.router: [one.report for (of, _), one in zip(tasks, ran, strict=True) if of is arm] for arm in arms
        }
        if self._options.json:
            made = {router: side_by_side.as_json(runs) for router, runs in reports.items()}
            self._json(ran, side_by_side.compared(made, reports))
        else:
            output.tables(self._given.scenario, reports)
        return _exit_code(next(iter(reports.values())))

    @property
    def _seeds(self) -> int:
        one = self._schedule is not None or self._options.journal is not None
        return self._options.seeds or (1 if one else SEEDS)

    def _search(self) -> int:
        options = self._options
        searches = [Search(arm, self._seed, options.start, options.probe_s) for arm in self._arms]
        found = _search_all(searches, options.jobs, self._probed)
        if options.json:
            self._json([], {one.router: msgspec.to_builtins(one) for one in found})
        else:
            output.found_table(self._given.scenario, found)
        if not all(one.valid for one in found):
            output.say("INVALID: no group of requests is large enough to be judged; take longer --probe-seconds")
            return INVALID
        return MET if all(one.scale for one in found) else MISSED

    def _json(self, ran: Sequence[Ran], arms: dict[str, object]) -> None:
        options, given = self._options, self._given
        target = {
            "fleet": msgspec.to_builtins(given.fleet),
            "timing": msgspec.to_builtins(options.timing),
            "lengths": options.lengths,
        }
        output.json(output.run_block(self._began_s, ran), target, given.scenario, arms)

    def _check_faults(self) -> None:
        """Raises FaultError for what cannot be in virtual time, or not with these arms."""
        names = [member.name for member in members(self._given.fleet)]
        for one in read_faults(self._options.faults, names):
            if one.name in NEEDS_CORE and self._options.routers != (CORE,):
                raise FaultError(
                    f"--faults: {one.spec!r}: nobody looks after engines or retries in a baseline; --router core alone"
                )

    def _fixed_schedule(self) -> Schedule | None:
        options, scenario = self._options, self._given.scenario
        if options.schedule is not None:
            return inputs.schedule(options.schedule)
        if options.from_journal is None:
            return None
        made = recorded(options.from_journal, scenario)
        if made.guessed:
            self._say(
                f"{made.guessed} of {len(made.schedule.requests)} requests got no answer in the journal: "
                "the median answer of their tenant is taken"
            )
        return made.schedule

    def _arm(self, router: str) -> Arm:
        given, options = self._given, self._options
        return Arm(
            router=router,
            scenario=given.scenario,
            fleet=given.fleet,
            policy=given.policy,
            timing=options.timing,
            lengths=options.lengths,
            schedule=self._schedule,
            faults=options.faults,
            check=options.check,
            journal=options.journal,
            html=options.html,
        )

    def _told(self, arm: Arm, ran: Ran) -> None:
        self._say(f"{arm.router}, seed {ran.report.seed}: {ran.requests:,} requests in {ran.took_s:.1f} s")

    def _probed(self, router: str, probe: Probe) -> None:
        share = "" if probe.attainment is None else f", {probe.attainment * 100:.1f} % within the SLO"
        cut = " when it was cut off" if probe.cut else ""
        self._say(f"{router}, seed {probe.seed}: {probe.rate:.2f}/s {probe.why or 'passed'}{share}{cut}")

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            output.say(text)


def _given(options: SimOptions) -> Inputs:
    given = inputs.read(options.scenario, options.fleet, options.config, options.changes, options.served)
    if options.lengths == "declared":
        given = inputs.declared(given)
    if given.without_effect and not options.quiet:
        output.say(f"without effect in the simulator: {', '.join(given.without_effect)}")
    if given.unlimited and not options.quiet:
        output.say(f"no file in tenants.d, and so without limits: {', '.join(given.unlimited)}")
    return msgspec.structs.replace(given, scenario=_offered(options, given.scenario))


def _offered(options: SimOptions, scenario: Scenario) -> Scenario:
    if options.trace is not None:
        scenario = traced(scenario, options.trace)
    return scaled(scenario, rate=options.rate, scale=options.scale, tenants=options.scale_tenants)


def _check(options: SimOptions) -> None:
    """Options that do not go together. Raises ScenarioError."""
    unknown = [router for router in options.routers if router not in (CORE, *routers())]
    if unknown:
        raise ScenarioError(f"--router: no router is called {unknown[0]}; there are core, {', '.join(routers())}")
    if len(set(options.routers)) < len(options.routers):
        raise ScenarioError("--router: each arm once")
    several = options.seeds is not None and options.seeds > 1
    if options.journal is not None and (options.routers != (CORE,) or several or options.find_max_rate):
        raise ScenarioError("--journal: a journal holds one run of the core")
    if options.out is not None and options.find_max_rate:
        raise ScenarioError("--out: a search leaves no runs")
    fixed = [
        name for name, path in (("--schedule", options.schedule), ("--from-journal", options.from_journal)) if path
    ]
    drawn = options.rate or options.scale or options.scale_tenants or several or options.find_max_rate
    if len(fixed) > 1 or (fixed and drawn):
        raise ScenarioError(
            f"{fixed[0]}: the requests are given; no other source, rate or number of seeds goes with it"
        )


def _search_all(searches: Sequence[Search], jobs: int, probed: Callable[[str, Probe], None]) -> list[Found]:
    """Each search, on so many processes; its probes are told when it is over where there are several."""
    if jobs <= 1 or len(searches) <= 1:
        return [search.run(probed) for search in searches]
    found = []
    for one in spread(Search.run, searches, jobs):
        for probe in one.probes:
            probed(one.router, probe)
        found.append(one)
    return found


def _exit_code(runs: Sequence[RunReport]) -> int:
    """By the first arm."""
    if not all(run.valid for run in runs):
        output.say("INVALID: no group of requests is large enough to be judged (100); simulate a longer time")
        return INVALID
    return MET if all(run.met for run in runs) else MISSED
