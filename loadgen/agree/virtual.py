"""The simulated side.

A load in motion amplifies what is small: half a millisecond more on the way to the engines sends some requests
elsewhere, and the p90 of first tokens is 8 % away. Live runs, whose ways differ from request to request, are as far
from each other. So the same schedule is simulated a few times with the net constant a little apart, and medians are
compared.
"""

from loadgen.agree.case import SCRAPE_S, Case
from loadgen.agree.outcome import Came, output_tokens
from loadgen.sim.arm import CORE, Arm, simulate
from loadgen.sim.loop import Timing

NEARBY = (0.8, 0.9, 1.0, 1.1, 1.2)  # of the net constant


def nearby(case: Case, net_s: float) -> list[Came]:
    """One run for each of `NEARBY`."""
    return [simulated(case, net_s * factor) for factor in NEARBY]


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
