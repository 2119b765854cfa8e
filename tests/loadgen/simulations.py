"""Small simulations: a scenario of a few seconds on small engines, run in an instant."""

from typing import Any

import msgspec

from loadgen import scenario as scenarios
from loadgen.report.record import Outcome, Sample
from loadgen.scenario import Scenario
from loadgen.schedule import Schedule, build
from loadgen.sim import fleet as fleets
from loadgen.sim.arm import CORE, Arm
from loadgen.sim.fleet import Fleet
from loadgen.sim.loop import Floor, Front
from loadgen.sim.policy import Policy, policy

TEXT = """
version: 1
name: small
seed: 3
warmup: 2s
duration: 20s
tail: 2s
fleet: mini2
classes: {short: {max_total_tokens: 1500}, long: {}}
slo: {ttft: {base_ms: 400, per_token_ms: 0.25, free_tokens: 2048}, tpot_ms: 100, stall_ms: 400}
prefixes: {sys: {count: 3, tokens: 200, zipf: 1.0}}
tenants:
  - name: chat
    priority: interactive
    arrivals: {kind: poisson, rate: 12}
    input: {kind: lognormal, median: 300, sigma: 0.7, min: 10, max: 900}
    output: {kind: lognormal, median: 60, sigma: 0.6, min: 2, max: 200}
    prompt: {prefix: sys}
    cancel: {p: 0.05, after: {kind: uniform, min: 0.1, max: 1}}
  - name: docs
    priority: batch
    stream: false
    arrivals: {kind: poisson, rate: 2}
    input: {kind: lognormal, median: 4000, sigma: 0.5, min: 1500, max: 9000}
    output: {kind: fixed, value: 40}
"""


def scenario(**changes: Any) -> Scenario:
    """The small scenario with other values for its own fields."""
    return msgspec.structs.replace(scenarios.load(TEXT), **changes)


def mini(count: int = 2, **flags: Any) -> Fleet:
    """`count` engines of 8B, with these flags."""
    flags = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "max_model_len": 16384, **flags}
    raw = {"engines": [{"name": "e", "count": count, "profile": "llama8b-fp8-h100", "flags": flags}]}
    return fleets.checked("mini", raw)


def arm(router: str = CORE, plan: Scenario | None = None, fleet: Fleet | None = None, **fields: Any) -> Arm:
    """An arm on small engines."""
    engines = fleet or mini()
    return Arm(router=router, scenario=plan or scenario(), fleet=engines, policy=policy_for(engines), **fields)


def policy_for(fleet: Fleet, **raw: Any) -> Policy:
    """The default policy with these sections of forebay.yaml."""
    return policy(raw, fleets.pools(fleet, fleets.members(fleet)[0].profile.model))


def floor(made: Arm, front: Any, schedule: Schedule | None = None) -> Floor:
    """The floor of an arm, not yet run, with any front."""
    members = fleets.members(made.fleet)
    plan = schedule or build(made.scenario, 3)
    return Floor(plan, [member.engine(0) for member in members], made.timing, front)


class ToTheFirst:
    """A front that sends everything to engine 0 and writes down what it is told."""

    isolates = True

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.told: list[tuple[str, str, float]] = []
        self.seen: list[tuple[float, float, int]] = []
        self.due: list[float] = []

    def arrived(self, call: Any, now: float) -> None:
        self.told.append(("arrived", call.id, now))
        self.floor.send(call, 0, now)

    def first_token(self, call: Any, now: float) -> None:
        self.told.append(("first_token", call.id, now))

    def finished(self, call: Any, now: float) -> None:
        self.told.append(("finished", call.id, now))

    def left(self, call: Any, now: float) -> None:
        self.told.append(("left", call.id, now))

    def refused(self, call: Any, full: bool, now: float) -> None:
        self.told.append(("full" if full else "too_long", call.id, now))
        self.floor.refuse(call, Outcome.REJECTED_CAPACITY if full else Outcome.ERROR_STATUS, "", now)

    def observed(self, seen: Any, observed_s: float, now: float) -> None:
        self.seen.append((observed_s, now, seen[0].running))

    def next_wakeup(self) -> float | None:
        return self.due[0] if self.due else None

    def tick(self, now: float) -> None:
        self.told.append(("tick", "", now))
        self.due.pop(0)


def run_to_the_first(made: Arm, schedule: Schedule | None = None) -> tuple[ToTheFirst, list[Sample]]:
    """Everything to engine 0; what the front was told and what became of each request."""
    fronts: list[ToTheFirst] = []

    def front(place: Floor) -> Front:
        fronts.append(ToTheFirst(place))
        return fronts[0]

    ran = floor(made, front, schedule)
    ran.run()
    return fronts[0], ran.samples
