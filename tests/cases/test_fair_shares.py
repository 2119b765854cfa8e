"""Tenants of weights 4 and 1 get 80 and 20 of what engines can do: in the simulator, and at night on sockets (issue TENANTS)."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen import scenario as scenarios
from loadgen.schedule import build
from loadgen.sim import fleet as fleets
from loadgen.sim.arm import Arm, simulate
from loadgen.sim.fleet import Fleet
from loadgen.sim.policy import policy
from policies.types import Tenant
from tests.kit import wire
from tests.kit.raw_client import connect
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.sizes import sized
from tests.kit.stage import stage
from tests.kit.tenants import bearer, tenant
from tests.loadgen.simulations import mini

BOTH_WAIT = """
version: 1
name: shares
seed: 3
warmup: 5s
duration: 60s
tail: 1s
slo: {ttft: {base_ms: 400}, tpot_ms: 100, stall_ms: 400}
tenants:
"""
TENANT = """
  - name: NAME
    priority: standard
    arrivals: {kind: poisson, rate: RATE}
    input: INPUT
    output: {kind: fixed, value: 128}
    max_tokens: {kind: fixed, value: 128}
"""
USUAL = "{kind: lognormal, median: 2048, sigma: 0.5, min: 100, max: 9000}"
WEIGHTS = {"a": 4.0, "b": 1.0}
PATIENT = {"classes": {"standard": {"queue_timeout_s": 3600}}}


def cost_of_a_minute(fleet: Fleet, rates: dict[str, float], inputs: dict[str, str]) -> Counter[str]:
    """What the engines' minute was given to: by tenant, of which all have some that wait to the end."""
    texts = [
        TENANT.replace("NAME", name).replace("RATE", str(rates[name])).replace("INPUT", inputs[name]) for name in rates
    ]
    plan = scenarios.load(BOTH_WAIT + "".join(texts))
    made = policy(PATIENT, fleets.pools(fleet, fleets.members(fleet)[0].profile.model))
    settings = replace(made.settings, tenants={name: Tenant(id=name, weight=each) for name, each in WEIGHTS.items()})
    arm = Arm(router="core", scenario=plan, fleet=fleet, policy=msgspec.structs.replace(made, settings=settings))
    cost, waiting = Counter[str](), Counter[str]()
    for one in simulate(arm, build(plan, 1), 1).samples:
        began_s = one.sched_s + one.queued_s
        if 5.0 <= began_s < 65.0:
            cost[one.tenant] += one.input_tokens + 2 * one.planned_output
        waiting[one.tenant] += one.sched_s < 65.0 <= began_s
    assert min(waiting[name] for name in rates) > 8
    return cost


def test_row_27_in_the_simulator_shares_of_a_minute_follow_the_weights() -> None:
    """One engine of which both ask more than their part: it can do about fifteen a second."""
    cost = cost_of_a_minute(mini(1), {"a": 18, "b": 6}, {"a": USUAL, "b": USUAL})
    assert 0.78 <= cost["a"] / cost.total() <= 0.82


@pytest.mark.parametrize("cap", [0, 512], ids=["no cap", "cap"])
def test_row_27_shares_are_the_same_where_lanes_are_and_one_sends_prompts_of_a_hundred_thousand_tokens(
    cap: int,
) -> None:
    """Each engine has a place for a long prompt beside short ones, and one of `b` would always be there to take it."""
    fleet = mini(4, max_model_len=131_072, long_prefill_token_threshold=cap)
    inputs = {"a": "{kind: fixed, value: 4000}", "b": "{kind: fixed, value: 100000}"}
    cost = cost_of_a_minute(fleet, {"a": 38, "b": 0.6}, inputs)
    assert 0.78 <= cost["a"] / cost.total() <= 0.82


@pytest.mark.parametrize("cap", [0, 512], ids=["no cap", "cap"])
def test_row_27_shares_are_the_same_where_the_heavier_one_sends_prompts_that_wait_for_lanes(cap: int) -> None:
    """Lanes alone gave it 45 % where an engine was kept for short ones, and 60 where these were computed beside."""
    fleet = mini(3, max_model_len=131_072, long_prefill_token_threshold=cap)
    inputs = {"a": "{kind: fixed, value: 100000}", "b": "{kind: fixed, value: 3000}"}
    cost = cost_of_a_minute(fleet, {"a": 1.5, "b": 10}, inputs)
    assert 0.78 <= cost["a"] / cost.total() <= 0.82


# -- on sockets --------------------------------------------------------------------------------------------------------

SECONDS = sized(10, 60)
COST_PER_S = 400_000.0
EACH = 8  # requests of a tenant that are under way or wait


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "prompts",
    [{"a": 5_000, "b": 5_000}, {"a": 5_000, "b": 100_000}, {"a": 100_000, "b": 5_000}],
    ids=["alike", "long b", "long a"],
)
async def test_row_27_on_sockets_shares_of_a_minute_follow_the_weights(tmp_path: Path, prompts: dict[str, int]) -> None:
    """An engine with one place that takes as long as what it is asked costs; its own log says what it has done."""
    tenants = [tenant(name, weight=weight) for name, weight in WEIGHTS.items()]
    bodies = {name: list(range(tokens)) for name, tokens in prompts.items()}

    def answer(seen: Seen) -> list[Step]:
        tokens = len(seen.json["prompt"])
        return [Wait(tokens / COST_PER_S), wire.json_answer(wire.body("completions", "x", prompt=tokens, output=1))]

    facts: dict[str, Any] = {
        "endpoint": {"max_seqs": 1, "max_prefill_tokens": 1_000_000}, "timeouts": {"scale": 1},
        "isolation": {"salt_secret": "0" * 32}, "affinity": {"ttl_s": 1},
    }  # fmt: skip
    async with stage(tmp_path, tenants=tenants, **facts) as made:
        made.engine.answer = answer
        ended_s = time.monotonic() + SECONDS

        async def one(who: str, number: int) -> None:
            async with await connect(made.gateway.port) as connection:
                while time.monotonic() < ended_s:
                    number += EACH
                    body = {"model": "m", "prompt": [number % 50_000, *bodies[who][1:]], "max_tokens": 1}
                    await connection.send(wire.request("/v1/completions", body, extra=[bearer(who)]))
                    assert (await connection.response(60)).status == 200

        await asyncio.gather(*(one(who, number) for who in WEIGHTS for number in range(EACH)))
        cost = Counter[str]()
        salts = {seen.json["cache_salt"] for seen in made.engine.seen}
        assert len(salts) == 2
        first = made.engine.seen[0].json["cache_salt"]
        for seen in made.engine.seen:
            if seen.complete_s < ended_s:
                cost["first" if seen.json["cache_salt"] == first else "second"] += len(seen.json["prompt"]) + 2
    shares = sorted(each / cost.total() for each in cost.values())
    off = 0.02 + (max(prompts.values()) / COST_PER_S / SECONDS if SECONDS < 60 else 0.0)
    assert 0.2 - off <= shares[0] <= 0.2 + off
