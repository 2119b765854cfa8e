"""One arm of a comparison: a scenario, a fleet, and what stands in front of it. Run it under a seed, get a report."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from loadgen.report.record import Sample
from loadgen.report.run import EndpointShare, RunReport, report
from loadgen.scenario import Goal, Scenario
from loadgen.schedule import Schedule, build
from loadgen.sim import fleet
from loadgen.sim.engine import EngineModel
from loadgen.sim.fleet import Fleet, Member
from loadgen.sim.foresight import KINDS as FORESIGHT
from loadgen.sim.foresight import foresight
from loadgen.sim.journal_file import JournalFile
from loadgen.sim.left import Left, leave
from loadgen.sim.loop import Floor, Front, Timing
from loadgen.sim.policy import Policy
from loadgen.sim.processes import spread
from loadgen.sim.routers import make
from loadgen.sim.through_core import Recorder, ThroughCore
from loadgen.sim.through_router import ThroughRouter
from loadgen.sim.timeline import Timeline
from loadgen.sim.timeline import read as read_faults
from loadgen.sim.trouble import Trouble
from policies.core import Core, PoolView
from policies.types import Endpoint

CORE = "core"
LEARNED = "learned"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """`router` is `core` or the name of a baseline; `lengths` what the core takes for the lengths of answers. `schedule` None: drawn from the scenario under the seed.

    `check` audits the core after each event; `journal` is written by the core alone. `endpoints`: what the core is told
    of the engines; None: what their flags say. `faults` of the engines, in seconds of the run. `out`: where the folder of a run is
    left, with report.html if `html`.
    """

    router: str
    scenario: Scenario
    fleet: Fleet
    policy: Policy
    timing: Timing = Timing()
    lengths: str = LEARNED
    schedule: Schedule | None = None
    check: bool = False
    journal: Path | None = None
    endpoints: tuple[Endpoint, ...] | None = None
    out: Path | None = None
    html: bool = True
    faults: tuple[str, ...] = ()


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A report, the core's view of its pools at the end (empty for a baseline), and what it cost to get them."""

    report: RunReport
    pools: tuple[PoolView, ...]
    events: int
    requests: int
    took_s: float


def run(arm: Arm, seed: int, settled: Callable[[Sample], bool] | None = None) -> Ran:
    """Simulate one arm. `settled` is told of each measured end; True from it stops the run there."""
    began_s = time.perf_counter()
    schedule = arm.schedule or build(arm.scenario, seed)
    members = fleet.members(arm.fleet)
    floor = simulate(arm, schedule, seed, settled)
    made = report(floor.samples, slo_of(arm.scenario), arm.scenario.slo, _window(schedule), (seed, schedule.digest()))
    made.endpoints = [
        _share(member, engine, sent, floor.now)
        for member, engine, sent in zip(members, floor.engines, floor.sent, strict=True)
    ]
    if arm.out is not None:
        target = {"router": arm.router, "lengths": arm.lengths, "fleet": msgspec.to_builtins(arm.fleet)}
        left = Left(scenario=arm.scenario, schedule=schedule, samples=floor.samples, target=target, html=arm.html)
        leave(arm.out / f"{arm.router}-{seed}", left)
    return Ran(
        report=made,
        pools=tuple(floor.front.pools()) if isinstance(floor.front, ThroughCore) else (),
        events=floor.events,
        requests=len(floor.samples),
        took_s=time.perf_counter() - began_s,
    )


def simulate(arm: Arm, schedule: Schedule, seed: int, settled: Callable[[Sample], bool] | None = None) -> Floor:
    """The run itself: samples and engines as they were at its end."""
    with _recorded(arm) as record:
        floor = _floor(arm, schedule, seed, record)
        floor.settled = settled
        floor.run()
    return floor


def run_all(tasks: Sequence[tuple[Arm, int]], jobs: int, done: Callable[[Arm, Ran], None]) -> list[Ran]:
    """Every (arm, seed), in that order, on so many processes; `done` is told of each, in order too."""
    ran = []
    for (arm, _), one in zip(tasks, spread(_run, tasks, jobs), strict=True):
        done(arm, one)
        ran.append(one)
    return ran


def slo_of(scenario: Scenario) -> Callable[[Sample], Goal]:
    """What a request has to meet: its tenant's goal for its class."""
    known: dict[tuple[str, str], Goal] = {}

    def goal(sample: Sample) -> Goal:
        key = sample.tenant, sample.cls
        if key not in known:
            known[key] = scenario.goal(*key)
        return known[key]

    return goal


def _run(task: tuple[Arm, int]) -> Ran:
    return run(*task)


def _floor(arm: Arm, schedule: Schedule, seed: int, record: Recorder | None) -> Floor:
    members = fleet.members(arm.fleet)
    engines = [member.engine(seed * 1000 + number) for number, member in enumerate(members)]
    if arm.router != CORE:
        router = make(arm.router, [member.facts() for member in members], seed)
        timing = msgspec.structs.replace(arm.timing, poll_s=router.poll_s)
        floor = Floor(schedule, engines, timing, lambda floor: ThroughRouter(floor, router))
        return _named(floor, arm, members, seed)

    lengths = foresight(arm.lengths, schedule, seed) if arm.lengths in FORESIGHT else None

    def through_core(floor: Floor) -> Front:
        front = ThroughCore(floor, Core(lengths=lengths), members, arm.policy)
        front.record, front.check = record, arm.check
        front.begin(arm.endpoints or [member.endpoint() for member in members])
        return front

    return _named(Floor(schedule, engines, arm.timing, through_core), arm, members, seed)


def _named(floor: Floor, arm: Arm, members: Sequence[Member], seed: int) -> Floor:
    """With its engines' names, and its faults, if it has any."""
    names = floor.names = [member.name for member in members]
    if arm.faults:
        timeline = Timeline(read_faults(arm.faults, names), names, seed)
        floor.trouble = Trouble(floor, timeline, arm.policy.probe_s, arm.policy.first_byte_s, seed=seed)
    return floor


@contextmanager
def _recorded(arm: Arm) -> Iterator[Recorder | None]:
    """What writes the journal, if one is wanted."""
    if arm.journal is None:
        yield None
        return
    file = JournalFile(arm.journal, arm.policy.settings.seed)
    try:
        yield file.record
    finally:
        file.close()


def _window(schedule: Schedule) -> tuple[float, float]:
    return schedule.window_start_s, schedule.window_end_s


def _share(member: Member, engine: EngineModel, sent: int, now: float) -> EndpointShare:
    return EndpointShare(
        name=member.name,
        requests=sent,
        busy_share=engine.busy_s / now if now else 0.0,
        prompt_tokens=engine.prompt_tokens,
        cached_tokens=engine.cached_tokens,
        output_tokens=engine.generated_tokens,
        steps=engine.steps,
        preemptions=engine.scheduler.preemptions,
    )
