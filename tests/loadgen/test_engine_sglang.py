"""The simulated engine in SGLang's dialect over real sockets: answers, refusals, health, metrics, admin routes, aborts."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.engine_server.server import SimulatedEngine
from tests.loadgen.simulated import Wire, chat, get, post, simulated, talk, until

MODEL = "llama-8b"
JSON = "content-type: application/json\r\n"


@asynccontextmanager
async def sglang(settings: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[SimulatedEngine]:
    async with simulated({"variant": "sglang", **(settings or {})}, dialect="sglang", **options) as engine:
        yield engine


def client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def asked(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": user("x"), **fields}).encode()


async def page(engine: SimulatedEngine) -> dict[str, float]:
    """What /metrics says, without buckets; labels are left out."""
    text = (await talk(engine.port, get("/metrics"))).body.decode()
    families = text_string_to_metric_families(text)
    return {one.name: one.value for family in families for one in family.samples if not one.name.endswith("_bucket")}


async def test_the_openai_client_reads_a_stream_with_usage() -> None:
    async with sglang() as engine, client(engine.port) as api:
        stream = await api.chat.completions.create(
            model=MODEL, messages=user("hello [[fb out=12]]"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [len(chunk.choices[0].delta.content) for chunk in chunks[1:13]] == [4] * 12
    assert [chunk.choices[0].finish_reason for chunk in chunks[:14]] == [None] * 13 + ["stop"]
    assert chunks[13].choices[0].delta.content is None, "why it ended has an event of its own"
    assert (chunks[14].choices, len(chunks)) == ([], 15)
    assert chunks[14].usage.completion_tokens == 12


async def test_streamed_and_whole_answers_are_the_same_text() -> None:
    async with sglang() as engine, client(engine.port) as api:
        for path, said in (
            (api.chat.completions.create, {"messages": user("a")}),
            (api.completions.create, {"prompt": "a"}),
        ):
            whole = await path(model=MODEL, max_tokens=20, n=2, **said)
            parts = [part async for part in await path(model=MODEL, max_tokens=20, n=2, stream=True, **said)]
            for index in range(2):
                own = [one.choices[0] for one in parts if one.choices[0].index == index]
                texts = [one.delta.content if "messages" in said else one.text for one in own]
                choice = whole.choices[index]
                assert "".join(filter(None, texts)) == (choice.message.content if "messages" in said else choice.text)
                assert own[-1].finish_reason == choice.finish_reason


async def test_reasoning_and_tool_calls_have_sglangs_names() -> None:
    async with sglang() as engine:
        thought = await talk(engine.port, chat("a [[fb out=6 think=4]]"), 2)
        streamed = await talk(engine.port, chat("a [[fb out=6 think=4]]", stream=True), 2)
        async with client(engine.port) as api:
            call = await api.chat.completions.create(model=MODEL, messages=user("a [[fb out=9 tool=look]]"))
    body = json.loads(thought.body)
    assert len(body["choices"][0]["message"]["reasoning_content"]) == 16
    assert body["usage"]["reasoning_tokens"] == 4
    assert body["metadata"] == {"weight_version": "default"}
    deltas = [event["choices"][0]["delta"] for event in streamed.events[1:7]]
    assert [delta["reasoning_content"] is None for delta in deltas] == [False] * 4 + [True] * 2
    function = call.choices[0].message.tool_calls[0].function
    assert (function.name, call.choices[0].finish_reason) == ("look", "tool_calls")
    assert "q" in json.loads(function.arguments)


async def test_a_stream_has_its_head_with_the_first_token() -> None:
    async with sglang(profile="llama70b-fp8-h200-tp2", served_model_name=MODEL) as engine:
        wire = await talk(engine.port, chat("and " * 3000 + "[[fb out=1]]", stream=True), seconds=5)
        entry = json.loads(engine.log.lines())[0]
    assert wire.status == 200
    # Two prefill steps, 0.16 s and 0.09 s, and then everything: the status had no time of its own.
    assert wire.times[0] - entry["accepted_s"] > 0.2
    assert entry["first_s"] - entry["accepted_s"] > 0.2


async def test_cached_tokens_are_told_with_the_flag_and_only_if_there_are_any() -> None:
    async with sglang() as engine:
        told = [
            json.loads((await talk(engine.port, chat("and " * 63, max_tokens=1), 2)).body)["usage"] for _ in range(2)
        ]
    assert [one["prompt_tokens_details"] for one in told] == [None, {"cached_tokens": 64}]
    async with sglang(shows_cached=False) as engine:
        told = [
            json.loads((await talk(engine.port, chat("and " * 63, max_tokens=1), 2)).body)["usage"] for _ in range(2)
        ]
    assert [one["prompt_tokens_details"] for one in told] == [None, None]


async def test_salt_and_extra_key_are_one_and_an_adapter_has_a_cache_of_its_own() -> None:
    async with sglang() as engine:

        async def cached(**fields: Any) -> int:
            wire = await talk(engine.port, chat("and " * 63, max_tokens=1, **fields), 2)
            return (json.loads(wire.body)["usage"]["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"]

        assert await cached(cache_salt="ab") == 0
        assert await cached(cache_salt="a", extra_key="b") == 64
        assert await cached(cache_salt="a/@") == 0, "no character is refused"
        assert await cached(cache_salt="ab", model="other:lora") == 0
        assert await cached(cache_salt="ab", model="nothing-is-called-so") == 64


REFUSED = [
    (b"{", "Bad Request", "JSON decode error"),
    (asked(messages=[]), "BadRequestError", "Messages cannot be empty."),
    (asked(stream=3), "Bad Request", "stream"),
    (asked(max_tokens=2, min_tokens=3), "BadRequestError", "min_new_tokens must be in [0, max_new_tokens(2)], got 3."),
    (asked(messages=user("y" * 40_000)), "BadRequestError", "is longer than the model's context length (8192 tokens)."),
    (asked(max_tokens=8190), "BadRequestError", "Requested token count exceeds the model's maximum context length"),
]


@pytest.mark.parametrize(("body", "kind", "message"), REFUSED)
@pytest.mark.parametrize("streamed", [False, True])
async def test_bad_requests_are_refused_flat_and_before_the_stream(
    body: bytes, kind: str, message: str, streamed: bool
) -> None:
    if streamed and body.startswith(b'{"model"') and b"stream" not in body:
        body = body[:-1] + b', "stream": true}'
    async with sglang() as engine:
        wire = await talk(engine.port, post("/v1/chat/completions", body))
    error = json.loads(wire.body)
    assert wire.status == 400
    assert message in error["message"]
    assert error | {"message": ""} == {"object": "error", "message": "", "type": kind, "param": None, "code": 400}


async def test_prompt_and_answer_together_stay_below_the_context() -> None:
    async with sglang() as engine:
        just = await talk(
            engine.port, post("/v1/completions", json.dumps({"prompt": "x", "max_tokens": 8190}).encode()), 0.1
        )
        over = await talk(
            engine.port, post("/v1/completions", json.dumps({"prompt": "x", "max_tokens": 8191}).encode())
        )
    assert just.data == b"", "it is being answered"
    assert over.status == 400


async def test_all_but_health_and_metrics_is_behind_the_key() -> None:
    async with sglang(api_key="secret") as engine:
        for path in ("/v1/models", "/get_model_info", "/flush_cache", "/nothing"):
            wire = await talk(engine.port, get(path))
            assert (wire.status, json.loads(wire.body)) == (401, {"error": "Unauthorized"})
        assert (await talk(engine.port, chat())).status == 401
        assert (await talk(engine.port, get("/metrics"))).status == 200
        assert (await talk(engine.port, get("/health"), 3)).status == 200
        key = post("/v1/chat/completions", asked(max_tokens=1), JSON + "authorization: Bearer secret\r\n")
        assert (await talk(engine.port, key, 2)).status == 200


async def waiting(engine: SimulatedEngine, *requests: bytes) -> list[asyncio.Task[Wire]]:
    """So many requests are with the engine, one of them running."""
    tasks = []
    for number, request in enumerate(requests):
        tasks.append(asyncio.create_task(talk(engine.port, request, 20)))
        await until(lambda number=number: len(engine.model.running) == 1 and len(engine.model.waiting) == number)
    return tasks


async def test_a_full_queue_is_an_error_within_a_stream_and_a_503_beside_one() -> None:
    async with sglang({"max_num_seqs": 1, "max_num_queued_reqs": 1}) as engine:
        tasks = await waiting(engine, *(chat(f"{n} [[fb out=3000]]", stream=True) for n in range(2)))
        streamed = await talk(engine.port, chat("third", stream=True, priority=9))
        whole = await talk(engine.port, chat("third"))
        for task in tasks:
            task.cancel()
    assert (streamed.status, whole.status) == (200, 503)
    error, done = streamed.events
    assert (error["error"]["code"], error["error"]["type"], done) == (503, "SERVICE_UNAVAILABLE", "[DONE]")
    assert json.loads(whole.body)["message"] == error["error"]["message"] == "The request queue is full."


async def test_with_priorities_the_least_important_one_that_waits_gives_its_place_to_a_more_important_one() -> None:
    async with sglang({"max_num_seqs": 1, "max_num_queued_reqs": 2, "scheduling_policy": "priority"}) as engine:
        texts = [("runs", 5), ("waits", 3), ("loses", 1)]
        requests = [chat(f"{text} [[fb out=3000 canary={text}]]", stream=True, priority=value) for text, value in texts]
        tasks = await waiting(engine, *requests)
        late = await talk(engine.port, chat("late", stream=True, priority=1))
        assert late.events[0]["error"]["message"] == "The request queue is full.", "no more important than who waits"
        urgent = asyncio.create_task(talk(engine.port, chat("urgent", stream=True, priority=4), 20))
        lost = await tasks[2]
        assert lost.events[0]["error"]["message"] == "The request is aborted by a higher priority request."
        assert [sequence.priority for sequence in engine.model.waiting if not sequence.aborted] == [4, 3]
        for task in (*tasks, urgent):
            task.cancel()


async def test_health_waits_for_the_engine_to_give_something_out() -> None:
    async with sglang() as engine:
        began = time.monotonic()
        assert (await talk(engine.port, get("/health"), 3)).status == 200
        assert time.monotonic() - began >= 1.0
        engine.faults.replace(["startup:60"])
        assert (await talk(engine.port, get("/health"))).status == 503
    async with sglang(profile="llama70b-fp8-h200-tp1", settings={"max_model_len": 131072}) as engine:
        task = asyncio.create_task(talk(engine.port, chat("and " * 20_000 + "[[fb out=1]]"), 30))
        await until(lambda: engine.model.running)
        began = time.monotonic()
        assert (await talk(engine.port, get("/health"), 10)).status == 200
        assert time.monotonic() - began >= 2.0, "chunks of a long prompt give nothing out"
        task.cancel()


async def test_metrics_have_sglangs_names_and_need_the_flag() -> None:
    async with sglang(has_metrics=False) as engine:
        assert (await talk(engine.port, get("/metrics"))).status == 404
    async with sglang() as engine:
        for _ in range(2):
            await talk(engine.port, chat("and " * 63, max_tokens=5, stream=True), seconds=2)
        text = (await talk(engine.port, get("/metrics"))).body.decode()
        found = await page(engine)
        task = asyncio.create_task(talk(engine.port, chat("x [[fb out=3000]]"), 20))
        await until(lambda: engine.model.running)
        assert (await page(engine))["sglang:num_running_reqs"] == 1
        assert (await page(engine))["sglang:prompt_tokens_total"] == 130, "tokens count when their request has ended"
        task.cancel()
    assert "vllm" not in text
    assert f'page_size="16",num_pages="{876_000 // 16}"' in text
    expected = {
        "num_running_reqs": 0,
        "num_queue_reqs": 0,
        "token_usage": 0,
        "max_total_num_tokens": 876_000,
        "prompt_tokens_total": 130,
        "generation_tokens_total": 10,
        "cached_tokens_total": 64,
        "num_requests_total": 2,
        "num_aborted_requests_total": 0,
        "time_to_first_token_seconds_count": 2,
        "e2e_request_latency_seconds_count": 2,
        "inter_token_latency_seconds_count": 8,
    }
    assert {name: found[f"sglang:{name}"] for name in expected} == expected


async def test_with_an_interval_the_gauges_are_as_old_as_sglangs() -> None:
    async with sglang(decode_log_interval=40) as engine:
        task = asyncio.create_task(talk(engine.port, chat("x [[fb out=30]]"), 20))
        await until(lambda: engine.model.running)
        assert len((await task).body) > 0
        assert (await page(engine))["sglang:num_running_reqs"] == 1, "what was true at the prefill"
        await talk(engine.port, chat("y [[fb out=60]]"), 20)
        assert (await page(engine))["sglang:num_running_reqs"] == 1
        assert json.loads((await talk(engine.port, get("/v1/loads"))).body)["loads"][0]["num_running_reqs"] == 0


async def test_the_server_says_what_it_is_and_how_loaded() -> None:
    async with sglang(served_model_name="org/model") as engine:

        async def told(path: str) -> Any:
            return json.loads((await talk(engine.port, get(path))).body)

        [card] = (await told("/v1/models"))["data"]
        assert (card["id"], card["owned_by"], card["max_model_len"]) == ("org/model", "sglang", 8192)
        assert (await told("/get_model_info"))["is_generation"] is True
        assert (await told("/model_info"))["model_path"] == "org/model"
        info = await told("/get_server_info")
        assert (info["page_size"], info["max_total_num_tokens"], info["max_running_requests"]) == (16, 876_000, 64)
        assert (await told("/get_load"))[0]["num_reqs"] == 0
        assert "sglang_num_running_reqs" in (await talk(engine.port, get("/v1/loads?format=prometheus"))).body.decode()
        assert json.loads(engine.log.lines())[-1]["kind"] == "admin", "no gateway should ever ask that"
        assert (await talk(engine.port, get("/version"))).status == 404
        assert json.loads(engine.log.lines())[-1]["kind"] == "trap"


async def test_the_cache_is_flushed_when_nothing_runs() -> None:
    async with sglang() as engine:
        await talk(engine.port, chat("and " * 63, max_tokens=1), 2)
        task = asyncio.create_task(talk(engine.port, chat("x [[fb out=3000]]"), 20))
        await until(lambda: engine.model.running)
        assert (await talk(engine.port, get("/flush_cache"))).status == 400
        await talk(engine.port, post("/abort_request", b'{"abort_all": true}'))
        await task
        await until(lambda: not engine.model.running)
        assert engine.model.scheduler.kv.cached > 0
        assert (await talk(engine.port, post("/flush_cache", b"", ""))).status == 200
        assert engine.model.scheduler.kv.cached == 0


async def test_requests_are_aborted_by_the_beginning_of_their_id() -> None:
    async with sglang() as engine:
        texts = ("tenant-1a", "tenant-1b", "tenant-2")
        requests = [chat(f"{rid} [[fb out=3000]]", rid=rid, stream=True) for rid in texts]
        tasks = [asyncio.create_task(talk(engine.port, request, 20)) for request in requests]
        await until(lambda: len(engine.model.running) == 3)
        assert (await talk(engine.port, post("/abort_request", b'{"rid": "tenant-1"}'))).status == 200
        for task in tasks[:2]:
            events = (await task).events
            assert (events[-2]["choices"][0]["finish_reason"], events[-1]) == ("abort", "[DONE]")
            assert events[0]["id"].startswith("tenant-1")
        await until(lambda: len(engine.model.running) == 1)
        tasks[2].cancel()


@pytest.mark.parametrize(("streamed", "least_s"), [(True, 1.9), (False, 3.0)])
async def test_who_leaves_is_served_for_seconds_more(streamed: bool, least_s: float) -> None:
    async with sglang() as engine:
        _, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(chat("bye [[fb out=8000]]", stream=streamed))
        await until(lambda: engine.model.running)
        writer.close()
        left = time.monotonic()
        await until(lambda: json.loads(engine.log.lines())[-1]["ended"] == "client left")
        assert engine.model.running
        await until(lambda: not engine.model.running, 10)
        assert time.monotonic() - left > least_s
        assert (await page(engine))["sglang:num_aborted_requests_total"] == 1


async def test_on_sigterm_everything_is_answered_and_health_is_bad() -> None:
    async with sglang(shutdown_timeout_s=30.0) as engine:
        task = asyncio.create_task(talk(engine.port, chat("x [[fb out=150]]", stream=True), 10))
        await until(lambda: engine.model.running)
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)
        assert (await talk(engine.port, get("/health"))).status == 503
        late = await talk(engine.port, chat("late", max_tokens=3), 5)
        assert json.loads(late.body)["usage"]["completion_tokens"] == 3
        assert (await task).events[-2]["choices"][0]["finish_reason"] == "stop"
        await stopping


async def test_the_native_route_gives_the_whole_text_with_each_event() -> None:
    body = {"text": "and " * 20, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    async with sglang() as engine:
        whole = json.loads((await talk(engine.port, post("/generate", json.dumps(body).encode()), 2)).body)
        wire = await talk(engine.port, post("/generate", json.dumps({**body, "stream": True, "rid": "r1"}).encode()), 2)
        bad = await talk(engine.port, post("/generate", json.dumps({**body, "text": "x" * 40_000}).encode()))
    *events, done = wire.events
    assert [len(event["text"]) for event in events] == [4, 8, 12, 16]
    assert (events[-1]["text"], done) == (whole["text"], "[DONE]")
    assert events[-1]["meta_info"] == {
        "id": "r1",
        "finish_reason": {"type": "length", "length": 4},
        "weight_version": "default",
        "prompt_tokens": 20,
        "completion_tokens": 4,
        "cached_tokens": 16,
    }
    assert whole["meta_info"]["cached_tokens"] == 0
    assert "longer than" in json.loads(bad.body)["error"]["message"]


async def test_faults_strike_in_the_same_way() -> None:
    async with sglang(faults=("status:503,count=1", "error_event:chunk=3,count=1")) as engine:
        refused = await talk(engine.port, chat("a"))
        assert (refused.status, json.loads(refused.body)["object"]) == (503, "error")
        broken = await talk(engine.port, chat("a [[fb out=9]]", stream=True), 3)
        assert (broken.status, broken.events[-2]["error"]["code"], len(broken.events)) == (200, 500, 5)
