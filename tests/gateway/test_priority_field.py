"""`endpoints[].priority_field`: an engine is told how urgent each request is, in its own sense; any other is told nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.engines import ENGINES
from tests.gateway.test_reload import change
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.invariants import holding
from tests.kit.processes import until_async
from tests.kit.raw_client import exchange
from tests.kit.script_engine import Seen
from tests.kit.stage import EVERY_PLACE, PATHS, Stage, stage

CLASSES = ("critical", "interactive", "standard", "batch")
ON = {"priority_field": True}
BY_BODY = [route for route in PATHS if route != "messages"]


async def sent(made: Stage, route: str, band: str, **more: Any) -> Seen:
    """What the engine of the last attempt saw of a request of that class."""
    asked = await made.ask(route, "hi", extra=[("x-forebay-priority", band)], **more)
    assert asked.status == 200, asked.body
    return max((seen for engine in made.engines for seen in engine.seen), key=lambda seen: seen.complete_s)


def told(seen: Seen) -> tuple[int | None, str | None]:
    return seen.json.get("priority"), seen.header("x-vllm-priority")


@pytest.mark.parametrize(("engine", "sign"), [("vllm", 1), ("sglang", -1)])
async def test_each_class_has_its_rank_in_the_engines_sense(tmp_path: Path, engine: str, sign: int) -> None:
    async with stage(tmp_path, endpoint={"engine": engine, **ON}, classes=EVERY_PLACE) as made, made.holding():
        for rank, band in enumerate(CLASSES):
            for route in BY_BODY:
                assert told(await sent(made, route, band)) == (sign * rank, None), route
            assert told(await sent(made, "chat", band, stream=True)) == (sign * rank, None)


async def test_vllm_is_told_in_the_head_where_its_body_has_no_such_field(tmp_path: Path) -> None:
    async with stage(tmp_path, endpoint=ON, classes=EVERY_PLACE) as made, made.holding():
        for rank, band in enumerate(CLASSES):
            assert told(await sent(made, "messages", band)) == (None, str(rank))


async def test_sglang_is_told_in_every_body(tmp_path: Path) -> None:
    async with stage(tmp_path, endpoint={"engine": "sglang", **ON}, classes=EVERY_PLACE) as made, made.holding():
        assert told(await sent(made, "messages", "batch")) == (-3, None)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "openai"])
async def test_without_the_field_nothing_is_said_and_with_it_no_client_says_it(tmp_path: Path, engine: str) -> None:
    async with stage(tmp_path, endpoint={"engine": engine}) as made, made.holding():
        for route in ("chat", "messages", "embeddings"):
            assert told(await sent(made, route, "batch", priority=-9)) == (None, None)
    if not ENGINES[engine].priority:
        return
    async with stage(tmp_path, name="on", endpoint={"engine": engine, **ON}) as made, made.holding():
        assert told(await sent(made, "chat", "batch", priority=-9)) == (3 * ENGINES[engine].priority, None)


async def test_a_route_that_only_counts_tokens_says_nothing(tmp_path: Path) -> None:
    granted = {"allow": {"routes": ["tokenize"]}}
    async with stage(tmp_path, endpoint=ON, tenant_defaults=granted) as made, made.holding():
        answer = await exchange(made.gateway.port, wire.request("/tokenize", {"model": "m", "prompt": "a"}))
        assert answer.status == 200, answer.body
        assert [told(seen) for seen in made.engine.seen] == [(None, None)]


async def test_another_attempt_is_told_by_its_own_engine(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2, classes=EVERY_PLACE) as made, made.holding():
        vllm, sglang = made.gateway.settings["endpoints"]
        await change(made.gateway, endpoints=[{**vllm, **ON}, {**sglang, "engine": "sglang", **ON}])
        await made.gateway.wait_up(2)
        for engine in made.engines:
            engine.clear()
        fault = [b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"]
        for _ in range(4):
            for engine in made.engines:
                engine.once = [fault]
            await made.ask("chat", "hi", extra=[("x-forebay-priority", "standard")])
            for engine in made.engines:
                engine.once = []
        assert {told(seen) for seen in made.engines[0].seen} == {(2, None)}
        assert {told(seen) for seen in made.engines[1].seen} == {(-2, None)}


async def test_a_reload_switches_it_on_and_off_for_what_comes_then(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        (endpoint,) = made.gateway.settings["endpoints"]
        for field, value in ((True, 3), (False, None)):
            answer = await change(made.gateway, endpoints=[{**endpoint, "priority_field": field}])
            assert answer["changed"] == ["endpoints.e0"]
            assert told(await sent(made, "chat", "batch")) == (value, None)


@pytest.mark.parametrize(
    ("kind", "flags"),
    [("vllm", ("--scheduling-policy", "priority")), ("sglang", ("--enable-priority-scheduling", "--enable-metrics"))],
)
async def test_an_engine_with_one_place_serves_the_most_urgent_first(
    tmp_path: Path, kind: str, flags: tuple[str, ...]
) -> None:
    places = ("--max-running-requests", "1") if kind == "sglang" else ("--max-num-seqs", "1")
    arguments = ("--dialect", kind, "--served-model-name", "m", "--allow-markers", *places, *flags)
    async with Engine(tmp_path, arguments=arguments) as engine:
        endpoint, waits = {"engine": kind, "max_seqs": 8, **ON}, {"probe_s": 2, "scrape_s": 0.2}
        settings = config(
            [engine.url], endpoint=endpoint, classes=EVERY_PLACE, upstream=waits, timeouts={"scale": 1}
        )  # SGLang's health takes a second
        async with Gateway(settings, tmp_path) as gateway, holding(gateway):
            await gateway.wait_up(1)
            made = Stage(gateway, ())
            running = asyncio.create_task(made.ask("chat", "[[fb out=40 canary=running]]", extra=_of("standard")))
            await until_async(lambda: _seen(engine, 1), 10, "it does not run")
            asked = [
                asyncio.create_task(made.ask("chat", f"[[fb out=2 canary={band}]]", extra=_of(band)))
                for band in reversed(CLASSES)
            ]
            await until_async(lambda: _seen(engine, 5), 10, "they do not wait at the engine")
            assert {each.status for each in await asyncio.gather(running, *asked)} == {200}
            entries = [each for each in await engine.log() if each["canary"] in CLASSES]
            assert [each["canary"] for each in sorted(entries, key=lambda each: each["started_s"])] == list(CLASSES)


def _of(band: str) -> list[tuple[str, str]]:
    return [("x-forebay-priority", band)]


async def _seen(engine: Engine, count: int) -> bool:
    return len(await engine.log()) == count
