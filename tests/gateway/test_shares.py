"""What tenants had of their class in the last minute, as the admin API tells it, over real sockets."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.test_workers import workers
from tests.kit import wire
from tests.kit.gateway import Gateway, config
from tests.kit.raw_client import exchange
from tests.kit.redis import needs_redis
from tests.kit.script_engine import ScriptEngine, Seen, Step
from tests.kit.stage import gathered
from tests.kit.tenants import bearer, tenant

COST = 70 + 2 * 30  # admission.fairness: 1 for a prompt token, 2 for one of an answer
TENANTS = [tenant("acme", weight=3), tenant("beta"), tenant("idle", weight=4), tenant("bank", partition="finance")]
HARD = {"partitions": {"finance": {"mode": "hard", "tenants": ["bank"]}}, "isolation": {"salt_secret": "s" * 40}}


def answer(seen: Seen) -> list[Step]:
    return [wire.json_answer(wire.body("completions", "x", prompt=70, output=30))]


async def ask(gateway: Gateway, name: str, times: int) -> None:
    """Prompts that have nothing in common: none of it can be cached."""
    bodies = [{"model": "m", "prompt": list(range(at, at + 70)), "max_tokens": 30} for at in range(times)]
    asked = [wire.request("/v1/completions", body, extra=[bearer(name)]) for body in bodies]
    answers = await gathered([exchange(gateway.port, message, timeout_s=30) for message in asked], at_once=4)
    assert Counter(answer.status for answer in answers) == {200: times}


async def shares(gateway: Gateway, name: str) -> list[dict[str, Any]]:
    return list((await gateway.admin(f"/admin/v1/tenants/{name}/usage"))["shares"])


def row(cost: int, of: int, fair: float | None, pool: str = "main") -> dict[str, Any]:
    share = round(cost / of, 4)
    return {"pool": pool, "class": "standard", "cost": cost, "of": of, "share": share, "fair_share": fair}


async def test_a_tenants_usage_says_what_it_had_and_what_its_weight_gives_it(tmp_path: Path) -> None:
    async with ScriptEngine(answer) as one, ScriptEngine(answer) as other:
        made = config([one.url, other.url], **HARD)
        made["endpoints"][1]["partition"] = "finance"
        async with Gateway(made, tmp_path, tenants=TENANTS) as gateway:
            assert await shares(gateway, "acme") == []
            await ask(gateway, "acme", 6)
            await ask(gateway, "beta", 4)
            await ask(gateway, "bank", 3)
            of = 10 * COST
            assert await shares(gateway, "acme") == [row(6 * COST, of, 0.75)]
            assert await shares(gateway, "beta") == [row(4 * COST, of, 0.25)]
            assert await shares(gateway, "idle") == [row(0, of, None)], "it asked for nothing"
            assert await shares(gateway, "bank") == [row(3 * COST, 3 * COST, 1.0, "finance/main")]
            every = (await gateway.admin("/admin/v1/usage"))["tenants"]
            assert {each["tenant"]: each["shares"] for each in every} == {
                name: await shares(gateway, name) for name in ("acme", "beta", "idle", "bank")
            }
            mine = await gateway.get("/v1/usage", token=str(bearer("acme")[1]).removeprefix("Bearer "))
            assert mine.status == 200 and b"share" not in mine.body, "what others had is not a tenant's to know"


@needs_redis
@pytest.mark.timeout(120)
async def test_what_all_workers_served_is_added_up(tmp_path: Path) -> None:
    async with workers(tmp_path, tenants=[tenant("acme", weight=3), tenant("beta")]) as one:
        for engine in one.engines:
            engine.answer = answer
        await ask(one.gateway, "acme", 30)
        await ask(one.gateway, "beta", 10)
        assert await shares(one.gateway, "acme") == [row(30 * COST, 40 * COST, 0.75)]
        assert await shares(one.gateway, "beta") == [row(10 * COST, 40 * COST, 0.25)]
