"""The gateway in front of an engine that speaks SGLang's dialect: what it learns of it, what clients get, what goes wrong."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.journeys.served import PROFILE, said, words
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.invariants import holding
from tests.kit.processes import free_ports, until_async
from tests.kit.raw_client import connect, exchange

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

SGLANG = (
    *("--dialect", "sglang", "--profile", PROFILE, "--served-model-name", "m", "--context-length", "32768"),
    *("--enable-metrics", "--enable-cache-report", "--allow-markers"),
)
KV_TOKENS = 876_000
PROMPT = "the and for you " * 256  # 1,024 tokens


@dataclass(frozen=True, slots=True)
class House:
    gateway: Gateway
    engine: Engine

    async def endpoint(self) -> dict[str, Any]:
        """What /health says of the first one."""
        found: dict[str, Any] = (await self.gateway.admin("/health"))["endpoints"][0]
        return found

    async def entry(self, canary: str) -> dict[str, Any]:
        """The engine's log of the request with that canary, once it has ended there."""
        found: list[dict[str, Any]] = []

        async def ended() -> bool:
            found[:] = [one for one in await self.engine.log() if one["canary"] == canary and one["ended"]]
            return bool(found)

        await until_async(ended, 15, f"no request {canary} has ended at the engine")
        return found[-1]


def fleet(*urls: str, scrape_s: float = 0.2) -> dict[str, Any]:
    upstream = {"probe_s": 2, "scrape_s": scrape_s}  # health takes a second
    return config(list(urls), endpoint={"engine": "sglang"}, upstream=upstream, timeouts={"scale": 1})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("sglang")
    async with Engine(folder, arguments=SGLANG) as engine, Gateway(fleet(engine.url), folder) as gateway:
        await gateway.wait_up(1)
        yield House(gateway, engine)


@pytest_asyncio.fixture(loop_scope="module")
async def api(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        holding(house.gateway),
        openai.AsyncOpenAI(base_url=house.gateway.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_the_gateway_learns_what_the_engine_is_and_how_loaded(house: House, api: openai.AsyncOpenAI) -> None:
    async def known() -> bool:
        engine = (await house.endpoint())["engine"]
        facts = engine["context_tokens"], engine["kv_tokens"], engine["block_tokens"]
        return facts == (32768, KV_TOKENS, 16) and engine["running"] == 0

    async def at_work() -> bool:
        engine = (await house.endpoint())["engine"]
        return engine["running"] == 2 and engine["kv_usage"] > 0 and not engine["stale"]

    await until_async(known, 10, "it does not know what the engine is")
    asked = [
        asyncio.create_task(api.chat.completions.create(model="m", messages=said(f"{n} [[fb out=700]]")))
        for n in (1, 2)
    ]
    await until_async(at_work, 10, "it does not see the engine's load")
    await asyncio.gather(*asked)


async def test_an_answer_is_the_engines_with_its_usage(house: House, api: openai.AsyncOpenAI) -> None:
    text = "[[fb out=12 canary=plain]] " + PROMPT
    answers = [await api.chat.completions.create(model="m", messages=said(text)) for _ in range(2)]
    entry = await house.entry("plain")
    for answer in answers:
        assert answer.choices[0].message.content is not None
        assert answer.choices[0].message.content.startswith("plain")
        usage = answer.usage
        assert usage is not None
        assert (answer.choices[0].finish_reason, usage.prompt_tokens, usage.completion_tokens) == (
            *("stop", entry["prompt_tokens"], 12),
        )
    assert answers[0].usage.prompt_tokens_details is None
    assert answers[1].usage.prompt_tokens_details.cached_tokens == entry["cached_tokens"] > 1000


@pytest.mark.parametrize("wanted", [False, True])
async def test_a_stream_says_the_same_and_has_usage_for_who_asked(
    house: House, api: openai.AsyncOpenAI, wanted: bool
) -> None:
    before = (await house.gateway.metrics()).sum("forebay_usage_missing_total")
    text = f"[[fb out=20]] the same {wanted}"
    whole = await api.chat.completions.create(model="m", messages=said(text))
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if wanted else {}
    chunks = [
        one async for one in await api.chat.completions.create(model="m", messages=said(text), stream=True, **options)
    ]
    told = [chunk.usage for chunk in chunks if chunk.usage is not None]
    chunks = [chunk for chunk in chunks if chunk.choices]
    assert words([chunk.choices[0].delta.content for chunk in chunks]) == whole.choices[0].message.content
    assert (chunks[-1].choices[0].finish_reason, len(chunks)) == ("stop", 22)
    assert [usage.completion_tokens for usage in told] == ([20] if wanted else [])
    assert (await house.gateway.metrics()).sum("forebay_usage_missing_total") == before


async def test_completions_choices_reasoning_and_tools_come_through(api: openai.AsyncOpenAI) -> None:
    both = await api.completions.create(model="m", prompt="[[fb out=9]] two", n=2)
    assert [len(choice.text) for choice in both.choices] == [36, 36]
    thought = (await api.chat.completions.create(model="m", messages=said("[[fb out=9 think=5]]"))).choices[0].message
    assert thought.model_extra is not None
    assert len(thought.model_extra["reasoning_content"]) == 20
    parts = [
        part.choices[0].delta
        async for part in await api.chat.completions.create(
            model="m", messages=said("[[fb out=9 tool=look]]"), stream=True
        )
    ]
    arguments = words([call.function.arguments for part in parts for call in part.tool_calls or ()])
    assert json.loads(arguments)["q"]


async def test_what_the_engine_refuses_is_said_in_openais_shape(house: House, api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await api.chat.completions.create(model="m", messages=said("ab, " * 40_000), stream=True)
    assert "is longer than the model's context length (32768 tokens)" in refused.value.message
    raw = await exchange(
        house.gateway.port, wire.request("/v1/chat/completions", {"model": "m", "messages": said("x"), "min_tokens": 9, "max_tokens": 3})
    )  # fmt: skip
    assert raw.status == 400
    assert "min_new_tokens" in json.loads(raw.body)["error"]["message"]


async def test_the_engine_is_salted_and_nothing_else_is_asked_of_it(house: House, api: openai.AsyncOpenAI) -> None:
    await api.chat.completions.create(
        model="m", messages=said("[[fb out=3 canary=salted]]"), extra_body={"cache_salt": "mine", "priority": -4}
    )
    entry = await house.entry("salted")
    assert entry["cache_salt"] not in ("", "mine")
    assert entry["priority"] == -(1 << 63), "none was set"
    kinds = {one["kind"] for one in await house.engine.log()}
    assert kinds == {"generate"}, "no admin route, and none that does not exist"


async def test_who_leaves_early_is_forgotten_here_and_served_there_for_a_while(
    house: House, api: openai.AsyncOpenAI
) -> None:
    body = {"model": "m", "messages": said("[[fb out=4000 canary=gone]]"), "stream": True}
    connection = await connect(house.gateway.port)
    await connection.send(wire.request("/v1/chat/completions", body))

    async def runs() -> bool:
        return bool((await house.engine.control("GET", "/state"))["running"])

    await until_async(runs, 10, "it does not run")
    connection.close()
    assert (await house.entry("gone"))["ended"] == "client left"
    assert await runs(), "SGLang notices two seconds later"


async def test_a_full_queue_inside_a_200_is_tried_at_another_engine(tmp_path: Path) -> None:
    small = ("--max-running-requests", "1", "--max-queued-requests", "1")
    async with (
        Engine(tmp_path, "full", arguments=[*SGLANG, *small]) as full,
        Engine(tmp_path, "free", arguments=SGLANG) as free,
        Gateway(fleet(full.url, free.url, scrape_s=60), tmp_path) as gateway,  # it does not know what others do there
    ):
        await gateway.wait_up(2)
        long = {"model": "m", "messages": said("[[fb out=3000]]"), "stream": True}
        blockers = [await connect(full.port), await connect(full.port)]
        for blocker in blockers:
            await blocker.send(wire.request("/v1/chat/completions", long))
        async with (
            holding(gateway),
            openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client,
        ):
            for number in range(4):
                stream = await client.chat.completions.create(
                    model="m", messages=said(f"{number} [[fb out=5]]"), stream=True
                )
                assert len([chunk async for chunk in stream]) == 7
        bounced = (await gateway.metrics()).sum("forebay_attempts_total", result="bounced")
        for blocker in blockers:
            blocker.close()
        assert bounced >= 1


async def test_a_long_prompt_that_keeps_health_waiting_takes_no_engine_out(tmp_path: Path) -> None:
    slow = ("--profile", "llama70b-fp8-h200-tp1", "--context-length", "65536")
    async with Engine(tmp_path, arguments=[*SGLANG, *slow]) as engine, Gateway(fleet(engine.url), tmp_path) as gateway:
        await gateway.wait_up(1)
        body = {"model": "m", "messages": said(PROMPT * 48 + "[[fb out=2]]")}  # ten seconds of prefill, without a token
        asked = asyncio.create_task(exchange(gateway.port, wire.request("/v1/chat/completions", body), timeout_s=40))
        while not asked.done():
            assert (await gateway.metrics()).sum("forebay_endpoint_up") == 1
            await asyncio.sleep(0.1)
        assert (await asked).status == 200


async def test_figures_that_stand_still_when_all_is_done_hold_nobody_back(tmp_path: Path) -> None:
    slow = ("--decode-log-interval", "40", "--max-running-requests", "1")
    async with Engine(tmp_path, arguments=[*SGLANG, *slow]) as engine:
        settings = fleet(engine.url)
        settings["endpoints"][0]["max_seqs"] = 1
        async with Gateway(settings, tmp_path) as gateway, holding(gateway):
            await gateway.wait_up(1)
            for number in range(6):
                body = {"model": "m", "messages": said(f"{number} [[fb out=20]]")}
                answer = await exchange(gateway.port, wire.request("/v1/chat/completions", body))
                [waited] = [value for name, value in answer.headers if name == b"x-forebay-queue-ms"]
                assert answer.status == 200 and int(waited) < 2_000, "the engine says that one still runs"
                await asyncio.sleep(0.5)
            page = (await exchange(engine.port, b"GET /metrics HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")).body
            (shown,) = [line for line in page.splitlines() if line.startswith(b"sglang:num_running_reqs{")]
            assert shown.endswith(b" 1.0"), "for half a minute"


async def test_an_engine_that_drains_ends_its_streams_and_gets_no_more(tmp_path: Path) -> None:
    async with Engine(tmp_path, arguments=SGLANG) as engine, Gateway(fleet(engine.url), tmp_path) as gateway:
        await gateway.wait_up(1)
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(model="m", messages=said("[[fb out=3000]]"), stream=True)
            first = await anext(stream)
            assert engine.child is not None
            engine.child.signal(signal.SIGTERM)
            await gateway.wait_up(0, 20)
            assert not engine.child.exited
            chunks = [first, *[chunk async for chunk in stream]]
            assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
            assert len(chunks) == 3002
            assert await engine.child.wait(10) == 0


async def test_what_is_published_of_its_cache_is_understood(tmp_path: Path) -> None:
    here, again = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    flag = json.dumps({"enable_kv_cache_events": True, "endpoint": here, "replay_endpoint": again})
    async with Engine(tmp_path, arguments=[*SGLANG, "--kv-events-config", flag]) as engine:
        settings = fleet(engine.url)
        settings["endpoints"][0] |= {"kv_events": here, "kv_events_replay": again}
        async with Gateway(settings, tmp_path) as gateway:
            await gateway.wait_up(1)
            asked = 0

            async def ask() -> None:
                nonlocal asked
                asked += 1
                body = {"model": "m", "max_tokens": 4, "messages": said(f"{asked:04}{PROMPT}")}
                assert (await exchange(gateway.port, wire.request("/v1/chat/completions", body))).status == 200

            async def heard(kind: str) -> bool:
                await ask()
                return (await gateway.metrics()).sum("forebay_kv_events_total", endpoint="e0", kind=kind) > 0

            async with holding(gateway):
                await until_async(lambda: heard("stored"), 20, "nothing is heard of the engine")
                flush = b"POST /flush_cache HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                assert (await exchange(engine.port, flush)).status == 200
                await until_async(lambda: heard("cleared"), 20, "the gateway was not told of the empty cache")
                await engine.control("PUT", "/faults", ["drop:count=1"])

                async def told_again() -> bool:
                    await ask()
                    metrics = await gateway.metrics()
                    return metrics.sum("forebay_kv_event_replays_total", endpoint="e0", result="whole") > 0

                await until_async(told_again, 20, "what was lost was not told again")
            assert (await gateway.metrics()).sum("forebay_kv_events_total", endpoint="e0", kind="invalid") == 0
