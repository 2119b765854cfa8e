"""One thing to compare: a schedule, engines, and one configuration that the gateway and the simulator both read.

The gateway has no tenants here: everybody is `default`. So the requests of all tenants are simulated as that one's, and
get their own tenant back in the report, where goals and cells are by tenant.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from loadgen.report.record import Sample
from loadgen.report.run import RunReport, report
from loadgen.scenario import Scenario, load, standard
from loadgen.schedule import Schedule, build
from loadgen.sim import fleet as fleets
from loadgen.sim import policy as policies
from loadgen.sim.arm import slo_of
from loadgen.sim.fleet import Fleet, Member
from loadgen.sim.policy import Policy
from loadgen.workload.fields import duration
from policies.types import Endpoint

TENANT = "default"
GATEWAY_SEED = 0  # of its core's random numbers
SCRAPE_S = 1.0  # the gateway's default
SECONDS = {"mixed-lengths": 120.0}  # of the window (loadgen.md 10); others last as long as they say
SATURATED = ("spike",)  # ask for more than is served
RATES = {"mixed-lengths": 6.0}  # requests/s; others come at their own rate
_UNLOADED = """
version: 1
name: small
seed: 7
warmup: 1s
duration: 5s
slo: {ttft: {base_ms: 400}, tpot_ms: 100, stall_ms: 400}
tenants:
  - name: one
    priority: interactive
    arrivals: {kind: constant, rate: 40}
    input: {kind: fixed, value: 32}
    output: {kind: fixed, value: 1}
    max_tokens: {kind: fixed, value: 16}
"""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`drawn` is sent, `schedule` the same as one tenant's and simulated; `tenants` has the true one of each, by its id."""

    scenario: Scenario
    drawn: Schedule
    schedule: Schedule
    tenants: tuple[str, ...]
    fleet: Fleet
    members: tuple[Member, ...]

    @property
    def model(self) -> str:
        """What the engines serve, under the name clients use."""
        return self.members[0].profile.model

    @property
    def priorities(self) -> tuple[str, ...]:
        """The classes that clients ask for."""
        return tuple(dict.fromkeys(tenant.priority for tenant in self.scenario.tenants))

    def config(self) -> dict[str, Any]:
        """What of forebay.yaml decides; addresses are not in it. Bounds follow from the engines' flags."""
        return {
            "pools": {name: self._pool(name) for name in self.fleet.pools},
            "upstream": {"scrape_s": SCRAPE_S},
        }

    def policy(self) -> Policy:
        """The same as the simulator reads it."""
        made = policies.policy(self.config(), fleets.pools(self.fleet, self.model))
        return msgspec.structs.replace(made, settings=replace(made.settings, seed=GATEWAY_SEED))

    def endpoints(self) -> tuple[Endpoint, ...]:
        """What the gateway can know of each engine: its operator's bounds, and what the engine tells."""
        return tuple(
            Endpoint(
                name=member.name,
                pools=member.pools,
                max_seqs=known.max_seqs,
                max_prefill_tokens=known.max_prefill_tokens,
                long_lanes=known.long_lanes,
                long_prefill_cap=known.long_prefill_cap,
                kv_tokens=known.kv_tokens,
                context_tokens=known.context_tokens,
            )
            for member in self.members
            for known in (member.endpoint(),)
        )

    def report(self, samples: Sequence[Sample]) -> RunReport:
        """The report of a run of either kind."""
        for sample in samples:
            sample.tenant = self.tenants[sample.id]
        window_s = self.schedule.window_start_s, self.schedule.window_end_s
        identity = self.schedule.seed, self.schedule.digest()
        return report(samples, slo_of(self.scenario), self.scenario.slo, window_s, identity)

    def _pool(self, name: str) -> dict[str, Any]:
        spec = self.fleet.pools[name]
        budgets = [member.endpoint().step_tokens for member in self.members if name in member.pools]
        told = {
            "model": self.model,
            "lanes": spec.lanes,
            "borrow": list(spec.borrow),
            "long_prompt_tokens": spec.long_prompt_tokens or 2 * max(budgets),
        }
        return told | ({"max_total_tokens": spec.max_total_tokens} if spec.max_total_tokens else {})


def case(name: str, seconds: float | None, rate: float | None, fleet: str | None = None) -> Case:
    """The case of a standard scenario: its warm-up, so many seconds of its window, and no tail: live and simulated run
    to the last answer. None: as loadgen.md 10 has it. ScenarioError, FleetError."""
    scenario = standard(name)
    window_s = seconds or SECONDS.get(name, scenario.duration_s)
    scenario = msgspec.structs.replace(scenario, duration=duration(window_s), tail="0s")
    wanted = rate or RATES.get(name)
    return _case(scenario if wanted is None else scenario.at_rate(wanted), fleet or scenario.fleet)


def unloaded(like: Case) -> Case:
    """200 small requests, each alone, on the engines of `like`."""
    small = msgspec.structs.replace(load(_UNLOADED), name=like.scenario.name)
    return _case(small, like.scenario.fleet)


def _case(scenario: Scenario, fleet: str) -> Case:
    engines = fleets.load(fleet)
    drawn = build(scenario, scenario.seed)
    everybody = (msgspec.structs.replace(one, tenant=TENANT) for one in drawn.requests)
    return Case(
        scenario=msgspec.structs.replace(scenario, fleet=fleet),
        drawn=drawn,
        schedule=msgspec.structs.replace(drawn, requests=tuple(everybody)),
        tenants=tuple(one.tenant for one in drawn.requests),
        fleet=engines,
        members=tuple(fleets.members(engines)),
    )
