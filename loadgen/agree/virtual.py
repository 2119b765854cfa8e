"""The simulated side."""

from loadgen.agree.case import SCRAPE_S, Case
from loadgen.agree.outcome import Came, output_tokens
from loadgen.sim.arm import CORE, Arm, simulate
from loadgen.sim.loop import Timing


def simulated(case: Case, net_s: float) -> Came:
    """`net_s`: what a request takes live beside queue and engine, clients' and gateway's own work included."""
    arm = Arm(
        router=CORE,
        scenario=case.scenario,
        fleet=case.fleet,
        policy=case.policy(),
        timing=Timing(net_s=net_s, poll_s=SCRAPE_S),
        endpoints=case.endpoints(),
    )
    floor = simulate(arm, case.schedule, case.schedule.seed)
    tokens = output_tokens(floor.samples)
    return Came(
        report=case.report(floor.samples),
        output_tokens=tokens,
        sent={member.name: sent for member, sent in zip(case.members, floor.sent, strict=True)},
        steps=sum(engine.steps for engine in floor.engines),
        preemptions=sum(engine.scheduler.preemptions for engine in floor.engines),
    )
