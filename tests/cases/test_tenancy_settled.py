"""Rows 2, 3, 5, 9, 14, 17 and 44 of the tenancy table on real sockets: what engines tell is what is paid, and what clients are told."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.cases.test_quotas import SALT, acme, ask, held, used
from tests.kit import wire
from tests.kit.processes import until_async
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.stage import error_of, stage
from tests.kit.tenants import bearer

WORDS = ["five ", "words ", "are ", "said ", "here"]
MANY = {"tpm": 1_000_000, "rpm": 10_000}


@pytest.mark.parametrize("route", wire.ROUTES)
async def test_row_2_a_stream_and_a_whole_answer_of_the_same_text_settle_the_same(tmp_path: Path, route: str) -> None:
    def answer(seen: Seen) -> list[Step]:
        if seen.json.get("stream"):
            return list(wire.stream(wire.events(route, WORDS, prompt=12)))
        return [wire.json_answer(wire.body(route, "".join(WORDS), prompt=12, output=len(WORDS)))]

    async with stage(tmp_path, tenants=[acme(limits=MANY)], isolation=SALT) as made, made.holding():
        made.engine.answer = answer
        paid = []
        for stream in (False, True):
            before = await used(made, "tpm")
            assert (await made.ask(route, "hi", stream=stream, extra=[bearer("acme")], max_tokens=30)).status == 200
            paid.append(await used(made, "tpm") - before)
        assert paid == [17, 17]


async def test_row_3_what_the_engine_had_cached_counts_as_its_weight_says(tmp_path: Path) -> None:
    weights = {"all": 1, "tenth": 0.1, "none": 0}
    tenants = [acme(name=name, limits=MANY, cost={"cached": weight}) for name, weight in weights.items()]
    async with stage(tmp_path, tenants=tenants, isolation=SALT) as made, made.holding():
        told = wire.body("completions", "", prompt=10_000, output=0)
        told["usage"]["prompt_tokens_details"] = {"cached_tokens": 8_000}
        made.engine.answer = lambda seen: [wire.json_answer(told)]
        for name, units in {"all": 10_000, "tenth": 2_800, "none": 2_000}.items():
            assert (await ask(made, name, prompt=list(range(10_000)), max_tokens=1)).status == 200
            assert await used(made, "tpm", name) == units, name


async def test_row_5_the_eleventh_is_told_the_fraction_of_a_second_and_passes_after_it(tmp_path: Path) -> None:
    limits = {"rpm": 60, "burst_s": 10}
    async with stage(tmp_path, tenants=[acme(limits=limits)], isolation=SALT) as made, made.holding():
        first = await asyncio.gather(*(ask(made) for _ in range(10)))
        assert {answer.status for answer in first} == {200}
        late = await ask(made)
        assert (late.status, late.header("retry-after")) == (429, "1")
        wait_ms = int(late.header("retry-after-ms") or 0)
        assert 0 < wait_ms < 1000
        await asyncio.sleep(wait_ms / 1000)
        assert (await ask(made)).status == 200


async def test_row_9_an_endless_wish_reserves_what_the_model_may_say_and_gives_the_rest_back(tmp_path: Path) -> None:
    waits = iter((0.3, 3.0, 0.0))

    def answer(seen: Seen) -> list[Step]:
        return [Wait(next(waits)), wire.json_answer(wire.body("completions", "x", prompt=100, output=50))]

    wish: dict[str, Any] = {"prompt": list(range(100)), "max_tokens": 999_999_999}
    models = {"m": {"max_output_tokens": 4096}}
    fleet = {"isolation": SALT, "models": models, "timeouts": {"scale": 1}}
    async with stage(tmp_path, tenants=[acme(limits={"tpm": 10_000})], **fleet) as made, made.holding():
        made.engine.answer = answer
        running = [asyncio.create_task(ask(made, **wish)) for _ in range(2)]

        async def both() -> bool:
            return await held(made) == 2 * 4_196

        await until_async(both, 0.25, "not both hold what they may need")
        assert (await ask(made, **wish)).status == 429
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in done] == [200] and await held(made) == 4_196
        assert (await ask(made, **wish)).status == 200
        assert [answer.status for answer in await asyncio.gather(*running)] == [200, 200]
        assert {seen.json["max_tokens"] for seen in made.engine.seen} == {4096}
        assert await used(made, "tpm") == 3 * 150


async def test_row_14_what_two_engines_have_failed_at_costs_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2, tenants=[acme(limits=MANY)], isolation=SALT) as made, made.holding():
        for engine in made.engines:
            engine.answer = lambda seen: [wire.json_answer({"error": {"message": "no"}}, status=500)]
        failed = await ask(made)
        assert (failed.status, error_of(failed)["code"]) == (500, "backend_error")
        assert [len(engine.seen) for engine in made.engines] == [1, 1]
        metrics = await made.gateway.metrics()
        for metric, units in {"rpm": 1, "tpm": 40}.items():
            sums = {
                name: metrics.sum(f"forebay_quota_{name}_units_total", metric=metric)
                for name in ("reserved", "extra", "refunded", "settled")
            }
            assert sums == {"reserved": units, "extra": 0, "refunded": units, "settled": 0}
        assert await held(made) == 0


async def test_row_17_a_debt_is_bounded_and_who_would_wait_for_more_than_a_minute_is_told_not_to(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, tenants=[acme(limits={"tpm": 100})], isolation=SALT) as made, made.holding():
        made.engine.answer = lambda seen: [wire.json_answer(wire.body("completions", "x", prompt=400, output=100))]
        assert (await ask(made)).status == 200
        written_off = (await made.gateway.metrics()).sum("forebay_quota_written_off_units_total", metric="tpm")
        assert 299 < written_off <= 300  # what had drained of the reservation in the meantime is less
        refused = await ask(made)
        assert (refused.status, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
        assert (refused.header("retry-after"), refused.header("retry-after-ms")) == (None, None)
        assert (refused.header("x-should-retry"), refused.header("x-ratelimit-remaining-tokens")) == ("false", "0")


@pytest.mark.parametrize(
    ("route", "left"),
    [("completions", "x-ratelimit-remaining-tokens"), ("messages", "anthropic-ratelimit-tokens-remaining")],
)
async def test_row_44_a_good_answer_says_nothing_left_too_when_another_has_made_a_debt(
    tmp_path: Path, route: str, left: str
) -> None:
    def answer(seen: Seen) -> list[Step]:
        first = len(made.engine.seen) == 1
        told = wire.body(route, "x", prompt=10 if first else 300, output=9)
        return [Wait(0.5 if first else 0.0), wire.json_answer(told)]

    async with stage(tmp_path, tenants=[acme(limits={"tpm": 200})], isolation=SALT) as made, made.holding():
        made.engine.answer = answer
        waits = asyncio.create_task(ask(made, route=route, max_tokens=30))

        async def runs() -> bool:
            return len(made.engine.seen) == 1

        await until_async(runs, 0.4, "it does not run")
        assert (await ask(made, route=route, max_tokens=30)).status == 200
        good = await waits
        assert (good.status, good.header(left)) == (200, "0")
