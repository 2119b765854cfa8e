"""The official `openai` client, unchanged and with its defaults, against gateway and engine as an operator runs them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.journeys.served import KINDS, VECTOR, Either, Served, either, said, served, words
from tests.kit.processes import until_async

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

CLIENTS = {"sync": openai.OpenAI, "async": openai.AsyncOpenAI}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("openai"), timeouts={"scale": 1}) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", params=KINDS)
async def api(house: Served, request: pytest.FixtureRequest) -> AsyncIterator[Either]:
    async with house.holding(), either(CLIENTS, request.param, **options(house)) as client:
        yield client


def options(house: Served, **more: Any) -> dict[str, Any]:
    return {"base_url": house.gateway.url + "/v1", "api_key": "tenant-key", **more}


async def chat(api: Either, text: str, **more: Any) -> Any:
    return await api.call(api.client.chat.completions.create, model="m", messages=said(text), **more)


async def test_an_answer_is_the_engines_with_its_usage(house: Served, api: Either) -> None:
    answer = await chat(api, f"[[fb out=12 canary=plain-{api.kind}]]")
    entry = await house.entry(f"plain-{api.kind}")
    assert answer.choices[0].message.content.startswith(f"plain-{api.kind}")
    assert (answer.choices[0].finish_reason, answer.object, answer.model) == ("stop", "chat.completion", "m")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        entry["prompt_tokens"],
        entry["output_tokens"],
    )
    assert entry["output_tokens"] == 12 and "tenant-key" not in json.dumps(entry)


async def test_a_stream_says_the_same_as_the_whole_answer(api: Either) -> None:
    whole = await chat(api, "[[fb out=20]] the same")
    chunks = await api.read(await chat(api, "[[fb out=20]] the same", stream=True))
    assert words([chunk.choices[0].delta.content for chunk in chunks]) == whole.choices[0].message.content
    assert len(chunks) >= 20 and [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"


@pytest.mark.parametrize("asked", [None, False, True])
async def test_usage_comes_to_those_who_asked(house: Served, api: Either, asked: bool | None) -> None:
    more = {} if asked is None else {"stream_options": {"include_usage": asked}}
    canary = f"usage-{api.kind}-{asked}"
    chunks = await api.read(await chat(api, f"[[fb out=7 canary={canary}]]", stream=True, **more))
    told = [chunk for chunk in chunks if chunk.usage is not None]
    entry = await house.entry(canary)
    if not asked:
        assert told == [] and all(chunk.choices for chunk in chunks)
        return
    assert told == [chunks[-1]] and chunks[-1].choices == []
    assert (told[0].usage.prompt_tokens, told[0].usage.completion_tokens) == (entry["prompt_tokens"], 7)


async def test_a_tool_is_called_with_arguments_that_parse(api: Either) -> None:
    answer = await chat(api, "[[fb out=16 tool=weather]]", tools=[TOOL], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, answer.choices[0].finish_reason) == ("weather", "tool_calls")
    assert json.loads(call.function.arguments)["q"]


async def test_a_streamed_tool_call_accumulates_to_the_same_call(api: Either) -> None:
    manager = api.client.chat.completions.stream(
        model="m", messages=said("[[fb out=16 tool=weather]]"), tools=[TOOL], tool_choice="required"
    )
    whole = await chat(api, "[[fb out=16 tool=weather]]", tools=[TOOL], tool_choice="required")
    final = await api.inside(manager, lambda stream: stream.get_final_completion())
    (call,), (same,) = final.choices[0].message.tool_calls, whole.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", same.function.arguments)


async def test_a_tools_result_goes_back_into_the_conversation(house: Served, api: Either) -> None:
    asked = said("[[fb out=16 tool=weather]]")
    first = await api.call(api.client.chat.completions.create, model="m", messages=asked, tools=[TOOL])
    call = first.choices[0].message.tool_calls[0]
    turn = [*asked, first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    more = [*turn, *said(f"[[fb out=5 canary=told-{api.kind}]]")]
    answer = await api.call(api.client.chat.completions.create, model="m", messages=more, tools=[TOOL])
    assert answer.choices[0].message.content
    assert (await house.entry(f"told-{api.kind}"))["prompt_tokens"] > first.usage.prompt_tokens


async def test_reasoning_is_passed_on(api: Either) -> None:
    chunks = await api.read(await chat(api, "[[fb out=20 think=12]]", stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    thought = words([(delta.model_extra or {}).get("reasoning") for delta in deltas])
    whole = (await chat(api, "[[fb out=20 think=12]]")).choices[0].message
    assert thought and thought == whole.model_extra["reasoning"]
    assert words([delta.content for delta in deltas]) == whole.content


async def test_several_choices_arrive_apart(api: Either) -> None:
    chunks = await api.read(await chat(api, "[[fb out=6]] some", stream=True, n=3))
    texts = {at: words([c.choices[0].delta.content for c in chunks if c.choices[0].index == at]) for at in range(3)}
    whole = await chat(api, "[[fb out=6]] some", n=3)
    assert [choice.message.content for choice in whole.choices] == list(
        texts.values()
    ) and whole.usage.completion_tokens == 18


async def test_a_raw_response_has_our_headers(api: Either) -> None:
    raw = await api.call(
        api.client.chat.completions.with_raw_response.create,
        model="m", messages=said("[[fb out=3]]"), extra_headers={"x-request-id": "mine-1", "x-forebay-priority": "batch"},
    )  # fmt: skip
    wanted = {
        "x-request-id": "mine-1",
        "x-forebay-pool": "main",
        "x-forebay-class": "batch",
        "x-forebay-attempts": "1",
        "cache-control": "no-store",
    }
    assert {name: raw.headers.get(name) for name in wanted} == wanted
    assert raw.headers["content-type"] == "application/json" and int(raw.headers["x-forebay-queue-ms"]) >= 0
    assert raw.parse().choices[0].message.content and raw.headers["x-forebay-request-id"]
    assert not {"server", "date", "set-cookie", "via"} & set(raw.headers)


async def test_a_raw_stream_has_our_headers_too(api: Either) -> None:
    raw = await api.call(
        api.client.chat.completions.with_raw_response.create, model="m", messages=said("[[fb out=3]]"), stream=True
    )
    assert raw.headers["content-type"].startswith("text/event-stream") and raw.headers["x-accel-buffering"] == "no"
    assert raw.headers["x-request-id"] == raw.headers["x-forebay-request-id"]
    assert len(await api.read(raw.parse())) >= 3


async def test_completions_whole_and_streamed(api: Either) -> None:
    create = api.client.completions.create
    whole = await api.call(create, model="m", prompt="[[fb out=9]] complete", max_tokens=40)
    chunks = await api.read(
        await api.call(create, model="m", prompt="[[fb out=9]] complete", max_tokens=40, stream=True)
    )
    assert (
        words([chunk.choices[0].text for chunk in chunks]) == whole.choices[0].text
        and whole.usage.completion_tokens == 9
    )
    both = await api.call(create, model="m", prompt=["[[fb out=2]] one", "[[fb out=3]] two"], max_tokens=40)
    assert [choice.index for choice in both.choices] == [0, 1]


async def test_models_are_listed_and_found(api: Either) -> None:
    listed = await api.read(await api.call(api.client.models.list))
    assert sorted(model.id for model in listed) == ["emb", "m", "scripted"]
    assert (await api.call(api.client.models.retrieve, "m")).id == "m"
    with pytest.raises(openai.NotFoundError) as caught:
        await api.call(api.client.models.retrieve, "gpt-nobody")
    assert caught.value.code == "model_not_found"


async def test_embeddings(house: Served, api: Either) -> None:
    answer = await api.call(api.client.embeddings.create, model="emb", input=["a", "b"])
    assert [tuple(one.embedding) for one in answer.data] == [VECTOR, VECTOR] and answer.usage.prompt_tokens == 7
    assert house.scripted.seen[-1].json["input"] == ["a", "b"]


async def test_responses_whole_and_streamed(house: Served, api: Either) -> None:
    whole = await api.call(api.client.responses.create, model="scripted", input="say this back")
    assert whole.output_text == "say this back" and house.scripted.seen[-1].json["store"] is False
    manager = api.client.responses.stream(model="scripted", input="say this back")
    final = await api.inside(manager, lambda stream: stream.get_final_response())
    assert final.output_text == "say this back" and final.status == "completed"
    for state in ({"previous_response_id": "resp_1"}, {"background": True}):
        with pytest.raises(openai.BadRequestError) as caught:
            await api.call(api.client.responses.create, model="scripted", input="x", **state)
        assert (caught.value.code, caught.value.param) == ("parameter_not_allowed", next(iter(state)))


# What is wrong, how it is called, the type, the code, the parameter.
ERRORS: list[tuple[str, dict[str, Any], type[openai.APIStatusError], str, str | None]] = [
    ("a bad number", {"max_tokens": 0}, openai.BadRequestError, "invalid_parameter", "max_tokens"),
    ("a bad type", {"extra_body": {"stream": "yes"}}, openai.BadRequestError, "invalid_parameter", "stream"),
    ("too many answers", {"n": 9}, openai.BadRequestError, "invalid_parameter", "n"),
    ("a forbidden field", {"extra_body": {"lora_path": "/etc"}}, openai.BadRequestError, "parameter_not_allowed", "lora_path"),
    ("a field not granted", {"extra_body": {"prompt_logprobs": 1}}, openai.BadRequestError, "parameter_not_allowed", "prompt_logprobs"),
    ("an unknown model", {"model": "gpt-nobody"}, openai.NotFoundError, "model_not_found", "model"),
    ("two keys that differ", {"extra_headers": {"x-api-key": "another"}}, openai.AuthenticationError, "invalid_api_key", None),
    ("a body too large", {"messages": said("x" * 1_100_000)}, openai.APIStatusError, "request_too_large", None),
    ("a compressed body", {"extra_headers": {"content-encoding": "gzip"}}, openai.APIStatusError, "unsupported_encoding", None),
    ("what the engine refuses", {"messages": []}, openai.BadRequestError, "400", "messages"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_has_its_type_code_and_parameter_and_is_not_retried(
    house: Served, api: Either, stream: bool
) -> None:
    ids: list[str | None] = []
    for name, more, kind, code, param in ERRORS:
        with pytest.raises(kind) as caught:
            await api.call(
                api.client.chat.completions.create, **{"model": "m", "messages": said("x"), "stream": stream, **more}
            )
        error = caught.value
        assert (str(error.code), error.param, bool(error.type)) == (code, param, True), name
        assert error.response.headers["x-should-retry"] == "false" and error.request_id, name
        ids.append(error.request_id)
        await until_async(lambda: logged(house, ids), 2, f"{name}: not one attempt and one line")


async def logged(house: Served, ids: list[str | None]) -> bool:
    """Whether the last lines are of exactly these requests."""
    return [line["request_id"] for line in house.gateway.access()][-len(ids) :] == ids


async def test_an_unknown_route_is_not_found(api: Either) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await api.call(api.client.files.list)
    assert caught.value.code == "route_not_found"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_default_retries_outlast_a_full_engine(house: Served, api: Either, stream: bool) -> None:
    await house.faults("status:503,count=2,retry_after=1")
    began = time.monotonic()
    made = await chat(api, f"[[fb out=3 canary=again-{api.kind}-{stream}]]", stream=stream)
    assert made.choices[0].message.content if not stream else await api.read(made)
    assert 2.0 <= time.monotonic() - began <= 6.0  # twice retry-after-ms of 1 s and up to a quarter


async def test_an_engine_that_stays_full_is_an_internal_server_error_after_three_tries(
    house: Served, api: Either
) -> None:
    await house.faults("status:503,retry_after=1")
    seen = len(await house.engine.log())
    with pytest.raises(openai.InternalServerError) as caught:
        await chat(api, "full")
    assert (caught.value.status_code, caught.value.code, caught.value.type) == (
        503,
        "backend_saturated",
        "overloaded_error",
    )
    assert len(await house.engine.log()) - seen == 3


async def test_an_engines_500_is_one_without_its_text(house: Served, api: Either) -> None:
    await house.faults("status:500")
    with pytest.raises(openai.InternalServerError) as caught:
        await api.call(api.client.with_options(max_retries=0).chat.completions.create, model="m", messages=said("x"))
    assert (caught.value.status_code, caught.value.code) == (500, "backend_error") and "simulated" not in str(
        caught.value
    )


@pytest.mark.parametrize("fault", ["hang", "stall:60000,chunk=0"])
async def test_a_timeout_of_the_client_ends_the_engines_work(house: Served, api: Either, fault: str) -> None:
    await house.faults(fault)
    patient = api.client.with_options(max_retries=0, timeout=0.4)
    with pytest.raises((openai.APITimeoutError, openai.InternalServerError)):
        stream = await api.call(patient.chat.completions.create, model="m", messages=said("[[fb out=9]]"), stream=True)
        await api.read(stream)
    await until_async(lambda: nothing_open(house), 2, "the engine goes on")


async def nothing_open(house: Served) -> bool:
    return all(one["ended"] for one in await house.engine.log())


BREAKS: list[tuple[str, str]] = [
    ("reset:chunk=5", "backend_stream_interrupted"), ("fin:chunk=5", "backend_stream_interrupted"), ("half_chunk:chunk=5", "backend_stream_interrupted"),
    ("no_done", "backend_bad_stream"), ("error_event:chunk=5", "500"), ("error_event:chunk=5,done=0", "500"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "code"), BREAKS)
async def test_a_stream_that_dies_raises_after_what_it_said(house: Served, api: Either, fault: str, code: str) -> None:
    await house.faults(fault)
    stream = await chat(api, "[[fb out=9]]", stream=True)
    with pytest.raises(openai.APIError) as caught:
        await api.read(stream)
    assert str(caught.value.code) == code and type(caught.value) is openai.APIError


async def test_a_closed_stream_closes_the_engines_connection(house: Served, api: Either) -> None:
    canary = f"left-{api.kind}"
    stream = await chat(api, f"[[fb out=4000 canary={canary}]]", stream=True)
    assert len(await api.first(stream, 5)) == 5
    await api.call(stream.close)
    left = time.monotonic()
    entry = await house.entry(canary)
    assert entry["abort_seen_s"] - left <= 0.25 and entry["output_tokens"] < 2000


async def test_a_cancelled_task_closes_the_engines_connection(house: Served) -> None:
    async with house.holding(), either(CLIENTS, "async", **options(house)) as api:
        for stream in (False, True):
            canary = f"cancelled-{stream}"
            task = asyncio.create_task(read_all(api, f"[[fb out=4000 canary={canary}]]", stream))
            await until_async(lambda canary=canary: running(house, canary), 5, "not at the engine")  # type: ignore[misc]
            task.cancel()
            left = time.monotonic()
            await asyncio.gather(task, return_exceptions=True)
            assert (await house.entry(canary))["abort_seen_s"] - left <= 0.25


async def read_all(api: Either, text: str, stream: bool) -> None:
    made = await chat(api, text, stream=stream)
    if stream:
        await api.read(made)


async def running(house: Served, canary: str) -> bool:
    return any(one["canary"] == canary for one in await house.engine.log())


async def test_many_at_once_each_get_their_own(house: Served) -> None:
    async with house.holding(), either(CLIENTS, "async", **options(house)) as api:
        names = [f"own-{at:03}" for at in range(60)]
        chosen: Callable[[int], bool] = lambda at: at % 2 == 0  # noqa: E731
        texts = await asyncio.gather(*(one_text(api, name, chosen(at)) for at, name in enumerate(names)))
        assert [text[: len(name)] for text, name in zip(texts, names, strict=True)] == names


async def one_text(api: Either, name: str, stream: bool) -> str:
    made = await chat(api, f"[[fb out=12 canary={name}]]", stream=stream)
    if not stream:
        return str(made.choices[0].message.content)
    return words([chunk.choices[0].delta.content for chunk in await api.read(made)])
