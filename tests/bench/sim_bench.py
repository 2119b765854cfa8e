"""How fast is virtual time? 300 s of a standard load of some 10,000 requests on four engines, one core of this machine.

The aim is 10 s (loadgen.md 1.3), decisions of the core included. `--profile` says where the time goes.
"""

import argparse
import cProfile
import time

from loadgen.sim import inputs
from loadgen.sim.arm import Arm, run

AIM_S = 10.0
RATE = 27.0
ROUTERS = ("core", "least_requests", "lmetric")


def arm(router: str) -> Arm:
    """Chat lengths, as fast as four engines carry them."""
    given = inputs.read("chat", "ref4", None, ["duration=300s"])
    scenario = given.scenario.at_rate(RATE)
    return Arm(router=router, scenario=scenario, fleet=given.fleet, policy=given.policy)


def main() -> None:
    """Print requests, events and processor seconds of each arm."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    if parser.parse_args().profile:
        cProfile.runctx("run(made, 7)", {"run": run, "made": arm("core")}, {}, sort="tottime")
        return
    for router in ROUTERS:
        began_s = time.process_time()
        ran = run(arm(router), 7)
        took_s = time.process_time() - began_s
        verdict = "" if took_s <= AIM_S else f"  more than the aim of {AIM_S:g} s"
        print(f"{router:<16}{ran.requests:>8,} requests {ran.events:>10,} events {took_s:6.2f} s{verdict}")


if __name__ == "__main__":
    main()
