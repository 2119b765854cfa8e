"""The simulated engine in SGLang's dialect over real sockets: answers, refusals, full queues, clients that leave."""

import asyncio
import json
import time
from typing import Any

import openai
import pytest

from loadgen.engine_server.server import SimulatedEngine
from tests.loadgen.simulated import Wire, chat, page, post, sglang, talk, until

MODEL = "llama-8b"


def client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def asked(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": user("x"), **fields}).encode()


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
