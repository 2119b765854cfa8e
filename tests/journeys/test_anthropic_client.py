"""The official `anthropic` client, unchanged and with its defaults, against gateway and engine as an operator runs them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio

from tests.journeys.served import KINDS, Either, Served, either, said, served, words
from tests.kit.processes import until_async

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

CLIENTS = {"sync": anthropic.Anthropic, "async": anthropic.AsyncAnthropic}
TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("anthropic"), timeouts={"scale": 1}) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", params=KINDS)
async def api(house: Served, request: pytest.FixtureRequest) -> AsyncIterator[Either]:
    async with house.holding(), either(CLIENTS, request.param, **options(house)) as client:
        yield client


def options(house: Served, **more: Any) -> dict[str, Any]:
    return {"base_url": house.gateway.url, "api_key": "tenant-key", **more}


async def message(api: Either, text: str, **more: Any) -> Any:
    return await api.call(
        api.client.messages.create, **{"model": "m", "max_tokens": 4096, "messages": said(text), **more}
    )


def text_of(answer: Any) -> str:
    return words([block.text for block in answer.content if block.type == "text"])


async def test_an_answer_is_the_engines_with_its_usage(house: Served, api: Either) -> None:
    answer = await message(api, f"[[fb out=12 canary=plain-{api.kind}]]", system="You are brief.")
    entry = await house.entry(f"plain-{api.kind}")
    assert text_of(answer).startswith(f"plain-{api.kind}")
    assert (answer.stop_reason, answer.role, answer.type) == ("end_turn", "assistant", "message")
    prompt = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert (prompt, answer.usage.output_tokens) == (entry["prompt_tokens"], entry["output_tokens"])
    assert entry["output_tokens"] == 12 and "tenant-key" not in json.dumps(entry)


async def test_the_version_header_reaches_the_engine_and_the_key_does_not(house: Served, api: Either) -> None:
    canary = f"heads-{api.kind}"
    await message(api, f"[[fb out=2 canary={canary}]]", extra_headers={"anthropic-beta": "one-2025-01-01"})
    headers = dict((await house.entry(canary))["headers"])
    assert headers["anthropic-version"] == api.client.default_headers["anthropic-version"]
    assert headers["anthropic-beta"] == "one-2025-01-01"
    assert not {"x-api-key", "authorization", "x-stainless-lang"} & set(headers)


async def test_a_stream_says_the_same_as_the_whole_answer(api: Either) -> None:
    whole = await message(api, "[[fb out=20]] the same")
    manager = api.client.messages.stream(model="m", max_tokens=4096, messages=said("[[fb out=20]] the same"))
    final = await api.inside(manager, lambda stream: stream.get_final_message())
    assert text_of(final) == text_of(whole) and final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens == 20


async def test_the_events_of_a_stream_come_in_order(api: Either) -> None:
    kinds = [event.type for event in await api.read(await message(api, "[[fb out=8]]", stream=True))]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert kinds[2:-3] == ["content_block_delta"] * 8


async def test_a_tool_is_called_with_arguments_that_parse(api: Either) -> None:
    asked = {"tools": [TOOL], "tool_choice": {"type": "any"}}
    whole = await message(api, "[[fb out=16 tool=weather]]", **asked)
    (call,) = [block for block in whole.content if block.type == "tool_use"]
    assert (call.name, whole.stop_reason) == ("weather", "tool_use") and call.input["q"]
    manager = api.client.messages.stream(
        model="m", max_tokens=4096, messages=said("[[fb out=16 tool=weather]]"), **asked
    )
    final = await api.inside(manager, lambda stream: stream.get_final_message())
    (same,) = [block for block in final.content if block.type == "tool_use"]
    assert (same.name, same.input) == ("weather", call.input)


async def test_a_tools_result_goes_back_into_the_conversation(house: Served, api: Either) -> None:
    first = await message(api, "[[fb out=16 tool=weather]]", tools=[TOOL])
    call = next(block for block in first.content if block.type == "tool_use")
    turn = [
        *said("[[fb out=16 tool=weather]]"),
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"},
            {"type": "text", "text": f"[[fb out=5 canary=told-{api.kind}]]"},
        ]},
    ]  # fmt: skip
    assert text_of(await message(api, "", messages=turn, tools=[TOOL]))
    assert (await house.entry(f"told-{api.kind}"))["prompt_tokens"] > first.usage.input_tokens


async def test_thinking_is_passed_on(api: Either) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    whole = await message(api, "[[fb out=20 think=12]]", thinking=thinking)
    manager = api.client.messages.stream(
        model="m", max_tokens=4096, messages=said("[[fb out=20 think=12]]"), thinking=thinking
    )
    final = await api.inside(manager, lambda stream: stream.get_final_message())
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert [block.thinking for block in final.content[:1]] == [block.thinking for block in whole.content[:1]]
    assert text_of(final) == text_of(whole)


async def test_a_raw_response_has_our_headers(api: Either) -> None:
    raw = await api.call(
        api.client.messages.with_raw_response.create, model="m", max_tokens=64, messages=said("[[fb out=3]]"),
        extra_headers={"x-request-id": "mine-1", "x-forebay-priority": "interactive"},
    )  # fmt: skip
    wanted = {"x-request-id": "mine-1", "request-id": "mine-1", "x-forebay-class": "interactive", "x-forebay-attempts": "1"}  # fmt: skip
    assert {name: raw.headers.get(name) for name in wanted} == wanted
    answer = await api.call(raw.parse) if api.kind == "sync" else raw.parse()
    assert text_of(await answer if asyncio.iscoroutine(answer) else answer)
    assert not {"server", "date", "set-cookie", "via"} & set(raw.headers)


async def test_models_are_listed_and_found(api: Either) -> None:
    listed = await api.read(await api.call(api.client.models.list))
    assert sorted(model.id for model in listed) == ["emb", "m", "scripted"]
    found = await api.call(api.client.models.retrieve, "m")
    assert (found.id, found.type, found.display_name) == ("m", "model", "m")
    with pytest.raises(anthropic.NotFoundError):
        await api.call(api.client.models.retrieve, "claude-nobody")


async def test_counting_tokens_is_closed_unless_granted(api: Either) -> None:
    with pytest.raises(anthropic.PermissionDeniedError) as caught:
        await api.call(api.client.messages.count_tokens, model="m", messages=said("x"))
    assert caught.value.response.headers["x-forebay-reason"] == "route_forbidden"


async def test_betas_with_their_query_are_served(api: Either) -> None:
    create = api.client.beta.messages.create
    answer = await api.call(create, model="m", max_tokens=64, messages=said("[[fb out=3]]"), betas=["one-2025-01-01"])
    assert text_of(answer)


# What is wrong, how it is called, the type raised, the status, the error type in the body, the Reason.
ERRORS: list[tuple[str, dict[str, Any], type[anthropic.APIStatusError], int, str, str]] = [
    ("a bad number", {"max_tokens": 0}, anthropic.BadRequestError, 400, "invalid_request_error", "invalid_parameter"),
    ("a forbidden field", {"extra_body": {"chat_template": "x"}}, anthropic.BadRequestError, 400, "invalid_request_error", "parameter_not_allowed"),
    ("an image by url", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}]}]}, anthropic.BadRequestError, 400, "invalid_request_error", "forbidden_target"),
    ("an unknown model", {"model": "claude-nobody"}, anthropic.NotFoundError, 404, "not_found_error", "model_unknown"),
    ("two keys that differ", {"extra_headers": {"x-api-key": "another"}}, anthropic.AuthenticationError, 401, "authentication_error", "bad_key"),
    ("a body too large", {"messages": said("x" * 1_100_000)}, anthropic.ContentTooLargeError, 413, "request_too_large", "body_too_large"),
    ("what the engine refuses", {"messages": []}, anthropic.BadRequestError, 400, "invalid_request_error", "backend_rejected"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_has_its_type_and_reason_and_is_not_retried(house: Served, api: Either, stream: bool) -> None:
    ids: list[str | None] = []
    for name, more, kind, status, said_type, reason in ERRORS:
        with pytest.raises(kind) as caught:
            await message(api, "x", stream=stream, **more)
        error = caught.value
        assert isinstance(error.body, dict) and error.body["type"] == "error", name
        assert (error.status_code, error.body["error"]["type"]) == (status, said_type), name
        headers = error.response.headers
        assert (headers["x-forebay-reason"], headers["x-should-retry"]) == (reason, "false") and error.request_id, name
        ids.append(error.request_id)
        await until_async(lambda: logged(house, ids), 2, f"{name}: not one attempt and one line")


async def logged(house: Served, ids: list[str | None]) -> bool:
    """Whether the last lines are of exactly these requests."""
    return [line["request_id"] for line in house.gateway.access()][-len(ids) :] == ids


@pytest.mark.parametrize("stream", [False, True])
async def test_the_default_retries_outlast_a_full_engine(house: Served, api: Either, stream: bool) -> None:
    await house.faults("status:503,count=2,retry_after=1")
    began = time.monotonic()
    made = await message(api, "[[fb out=3]]", stream=stream)
    assert await api.read(made) if stream else text_of(made)
    assert 2.0 <= time.monotonic() - began <= 6.0


async def test_an_engine_that_stays_full_is_overloaded_after_three_tries(house: Served, api: Either) -> None:
    await house.faults("status:503,retry_after=1")
    seen = len(await house.engine.log())
    with pytest.raises(anthropic.OverloadedError) as caught:
        await message(api, "full")
    assert caught.value.status_code == 529 and caught.value.response.headers["x-forebay-reason"] == "backend_saturated"
    assert len(await house.engine.log()) - seen == 3


BREAKS = ("reset:chunk=5", "fin:chunk=5", "half_chunk:chunk=5", "fin:byte=700", "error_event:chunk=5")


@pytest.mark.parametrize("fault", BREAKS)
async def test_a_stream_that_dies_raises_after_what_it_said(house: Served, api: Either, fault: str) -> None:
    await house.faults(fault)
    stream = await message(api, "[[fb out=9]]", stream=True)
    with pytest.raises(anthropic.APIStatusError) as caught:
        await api.read(stream)
    assert isinstance(caught.value.body, dict) and caught.value.body["error"]["type"] == "api_error"


@pytest.mark.parametrize("fault", ["hang", "stall:60000,chunk=0"])
async def test_a_timeout_of_the_client_ends_the_engines_work(house: Served, api: Either, fault: str) -> None:
    await house.faults(fault)
    patient = api.client.with_options(max_retries=0, timeout=0.4)
    with pytest.raises((anthropic.APITimeoutError, anthropic.InternalServerError)):
        named: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": said("[[fb out=9]]"), "stream": True}
        await api.read(await api.call(patient.messages.create, **named))
    await until_async(lambda: nothing_open(house), 2, "the engine goes on")


async def nothing_open(house: Served) -> bool:
    return all(one["ended"] for one in await house.engine.log())


async def test_a_closed_stream_closes_the_engines_connection(house: Served, api: Either) -> None:
    canary = f"left-{api.kind}"
    stream = await message(api, f"[[fb out=4000 canary={canary}]]", stream=True)
    assert len(await api.first(stream, 5)) == 5
    await api.call(stream.close)
    left = time.monotonic()
    entry = await house.entry(canary)
    assert entry["abort_seen_s"] - left <= 0.25 and entry["output_tokens"] < 2000


async def test_many_at_once_each_get_their_own(house: Served) -> None:
    async with house.holding(), either(CLIENTS, "async", **options(house)) as api:
        names = [f"own-{at:03}" for at in range(40)]
        answers = await asyncio.gather(*(message(api, f"[[fb out=12 canary={name}]]") for name in names))
        assert [text_of(answer)[: len(name)] for answer, name in zip(answers, names, strict=True)] == names
