"""Reserve before, settle once, count on every route: cases C043, C044, C047 and C049."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from policies.types import Limits
from tests.cases.test_quotas import SALT, acme, ask, held, some_tokens, used
from tests.kit import wire
from tests.kit.processes import until_async
from tests.kit.script_engine import HANG, RST, Seen, Step
from tests.kit.sizes import sized
from tests.kit.stage import PATHS, stage
from tests.kit.tenants import bearer
from tests.policies.tenants import Quotas
from tests.policies.tenants import acme as tenant_of

MANY = {"tpm": 10_000_000, "rpm": 10_000, "max_concurrency": None}


# -- C043: limits are asked before, not after


@pytest.mark.parametrize("seed", range(3))
def test_c043_what_is_let_in_never_exceeds_the_burst_and_the_rate_over_any_time(seed: int) -> None:
    """Five at once, then five a second for ten minutes: 40 reserved each, 58 to 175 used."""
    random = Random(seed)
    world = Quotas(tenant_of(tpm=100, rpm=10_000, keys={"k": Limits(rpm=9_000)}))
    admitted: list[float] = []
    ends: list[tuple[float, str]] = []
    for step in range(600):
        at = float(step)
        while ends and ends[0][0] <= at:
            ended, name = ends.pop(0)
            output = random.randint(48, 165)
            world.end(name, ended, prompt_tokens=10, output_tokens=output)
        for number in range(5):
            name = f"{step}-{number}"
            if world.told(name, at, key="k") == "ok":
                admitted.append(at)
                ends.append((at + 0.5, name))
        if not step:
            assert len(admitted) == 2
    for scope in ("tenant", "key"):  # who was refused by one limit has moved no other
        assert world.meter("rpm", at, scope).reserved == len(admitted)
    for first, since in enumerate(admitted):
        for last in range(first, len(admitted)):
            assert 40 * (last - first + 1) <= 100 + 100 * (admitted[last] - since) / 60
    assert len(admitted) >= 7


# -- C044: what the engine counts, streamed or not


def cached(route: str) -> dict[str, Any]:
    """10,000 in, of which 8,000 from the cache, and 9 out, as each dialect says it."""
    if route == "messages":  # what was cached is not in `input_tokens`
        return {"input_tokens": 2_000, "cache_read_input_tokens": 8_000, "output_tokens": 9}
    if route == "responses":
        return {"input_tokens": 10_000, "input_tokens_details": {"cached_tokens": 8_000}, "output_tokens": 9}
    return {"prompt_tokens": 10_000, "prompt_tokens_details": {"cached_tokens": 8_000}, "completion_tokens": 9}


def telling(route: str, usage: dict[str, Any]) -> Callable[[Seen], list[Step]]:
    """An engine that tells this usage, wherever its dialect has one."""

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: usage if key == "usage" and each else told(each) for key, each in value.items()}
        return [told(each) for each in value] if isinstance(value, list) else value

    def event(raw: bytes) -> bytes:
        name, _, data = raw.strip().decode().rpartition("data: ")
        return raw if data == "[DONE]" else wire.event(told(json.loads(data)), name.strip().removeprefix("event: "))

    def answer(seen: Seen) -> list[Step]:
        if seen.json.get("stream"):
            return list(wire.stream([event(each) for each in wire.events(route, ["one ", "two"], prompt=7)]))
        return [wire.json_answer(told(wire.body(route, "one two", prompt=7, output=2)))]

    return answer


@pytest.mark.parametrize("route", wire.ROUTES)
async def test_c044_cached_tokens_are_free_where_that_is_said_streamed_or_not(tmp_path: Path, route: str) -> None:
    tenants = [acme(limits=MANY, cost={"cached": 0}), acme(name="beta", limits=MANY)]
    async with stage(tmp_path, tenants=tenants, isolation=SALT) as made, made.holding():
        made.engine.answer = telling(route, cached(route))
        for who, units in (("acme", 2_009), ("beta", 10_009)):
            for stream in (False, True):
                before = await used(made, "tpm", who)
                answer = await made.ask(route, "hi", stream=stream, extra=[bearer(who)], max_tokens=30)
                assert answer.status == 200
                assert await used(made, "tpm", who) - before == units, (who, stream)


async def test_c044_a_long_prompt_counts_also_where_hardly_anything_is_answered(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[acme(limits=MANY)], isolation=SALT) as made, made.holding():
        made.engine.answer = lambda seen: [wire.json_answer(wire.body("completions", "x", prompt=50_000, output=1))]
        assert (await ask(made, prompt=list(range(50_000)), max_tokens=1)).status == 200
        assert await used(made, "tpm") == 50_001


@pytest.mark.parametrize("route", wire.ROUTES)
async def test_c044_usage_of_the_prompt_alone_leaves_no_answer_unpaid(tmp_path: Path, route: str) -> None:
    """What an engine leaves out is counted as it was seen."""
    name = "input_tokens" if route in ("messages", "responses") else "prompt_tokens"
    async with stage(tmp_path, tenants=[acme(limits=MANY)], isolation=SALT) as made, made.holding():
        made.engine.answer = telling(route, {name: 100})
        for stream in (False, True):
            before = await used(made, "tpm")
            assert (await made.ask(route, "hi", stream=stream, extra=[bearer("acme")], max_tokens=30)).status == 200
            assert await used(made, "tpm") - before >= 101, stream


# -- C047: always a reservation, never the whole headroom


@pytest.mark.parametrize("route", PATHS)
async def test_c047_every_request_holds_something_and_no_wish_of_tokens_blocks_the_tenant(
    tmp_path: Path, route: str
) -> None:
    """A limit of 10,000 tokens, a model that may say 4,096: 100 in."""
    generates = route in wire.ROUTES
    fleet: dict[str, Any] = {"models": {"m": {"max_output_tokens": 4096}}, "isolation": SALT}
    async with stage(tmp_path, tenants=[acme(limits={"tpm": 10_000})], **fleet) as made, made.holding():
        made.engine.answer = lambda seen: [HANG]
        name = "max_output_tokens" if route == "responses" else "max_tokens"
        wishes: list[dict[str, Any]] = [{name: 999_999_999}, {name: None}] if generates else [{}]
        if route == "messages":
            wishes = wishes[:1]  # its dialect asks for one
        for wish in wishes:
            async with await made.begin(route, "x" * 300, extra=[bearer("acme")], **wish):

                async def holds() -> bool:
                    return await held(made) > 0

                await until_async(holds, 3.0, f"nothing is held for {route} {wish}")
                most = 4096 if wish.get(name) else 1024 if generates else 0  # less than a quarter of the limit
                assert 100 <= await held(made) - most <= 250

            async def free() -> bool:
                return await held(made) == 0

            await until_async(free, 3.0, "something is still held")


@pytest.mark.parametrize(
    ("more", "answers"), [({"n": 4}, 4), ({"best_of": 3}, 3), ({"n": 2, "best_of": 3}, 3), ({"prompt": ["x", "y", "z"], "n": 2}, 6)]
)  # fmt: skip
async def test_c047_each_of_several_answers_is_reserved_for(tmp_path: Path, more: dict[str, Any], answers: int) -> None:
    async with stage(tmp_path, tenants=[acme(limits={"tpm": 10_000})], isolation=SALT) as made, made.holding():
        made.engine.answer = lambda seen: [HANG]
        body = {"prompt": [1, 2, 3], "max_tokens": 100, **more}
        async with await made.begin("completions", "x", extra=[bearer("acme")], **body):

            async def holds() -> bool:
                return await held(made) > 0

            await until_async(holds, 3.0, "nothing is held")
            assert 100 * answers < await held(made) <= 100 * answers + 20


# -- C049: who leaves and what dies


@pytest.mark.parametrize("end", ["left", "died"])
async def test_c049_what_was_begun_is_paid_for_and_the_rest_given_back(tmp_path: Path, end: str) -> None:
    """Many at once leave after 500 of 2,000 tokens; or their engine dies at token 10 of 1,000."""
    many = sized(20, 100)
    seen_tokens, most = (500, 2_000) if end == "left" else (10, 1_000)
    limits = {**MANY, "max_queued": None}
    fleet: dict[str, Any] = {"endpoint": {"max_seqs": 200, "max_prefill_tokens": 100_000}, "timeouts": {"scale": 1}}
    async with stage(tmp_path, tenants=[acme(limits=limits)], isolation=SALT, **fleet) as made, made.holding():
        made.engine.answer = some_tokens(seen_tokens, HANG if end == "left" else RST)

        async def one() -> None:
            more = {"prompt": list(range(10)), "max_tokens": most}
            async with await made.begin("completions", "x", stream=True, extra=[bearer("acme")], **more) as connection:
                if end == "left":
                    await connection.read_until(f"w{seen_tokens - 1} ".encode())
                else:
                    await connection.response(15)

        await asyncio.gather(*(one() for _ in range(many)))

        async def free() -> bool:
            return await held(made) == 0

        await until_async(free, 3.0, "something is still held")
        assert many * (10 + seen_tokens) <= await used(made, "tpm") <= many * (10 + seen_tokens + 20)
        metrics = await made.gateway.metrics()
        sums = {
            name: metrics.sum(f"forebay_quota_{name}_units_total", metric="tpm")
            for name in ("reserved", "refunded", "extra")
        }
        assert sums["reserved"] == many * (10 + most) and sums["extra"] == 0
        assert sums["refunded"] == sums["reserved"] - await used(made, "tpm")
