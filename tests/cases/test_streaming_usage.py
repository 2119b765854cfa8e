"""Cases C022 and C025: nothing of a stream is changed but for the usage chunk that the client did not ask for."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.cases.streams import OPENAI, compact, stream_of, tokens
from tests.kit import wire
from tests.kit.invariants import same_stream
from tests.kit.stage import Stage, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    directory = tmp_path_factory.mktemp("streaming")
    async with stage(directory, retries={"max_attempts": 1}, timeouts={"scale": 1}, upstream={"probe_s": 30}) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def one(house: Stage) -> AsyncIterator[Stage]:
    house.reset()
    async with house.holding():
        yield house
        house.reset()


# C022


def tool_events(finish: str = "tool_calls") -> list[bytes]:
    """Three parallel calls, their arguments over 40 deltas in turn, with fields no client type knows."""
    base = {"id": "chatcmpl-kit", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def choice(delta: dict[str, Any], reason: str | None = None) -> bytes:
        return wire.event(
            {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "token_ids": [1, 2]}]}
        )

    made = [choice({"role": "assistant", "content": None, "reasoning_items": [{"id": "r1", "blob": "x" * 50}]})]
    for at in range(3):
        function = {"name": f"tool{at}", "arguments": ""}
        made.append(
            choice({"tool_calls": [{"index": at, "id": f"call_{at}", "type": "function", "function": function}]})
        )
    texts = [json.dumps({"city": f"city {at}", "days": list(range(40))}) for at in range(3)]
    for part in range(40):
        for at, text in enumerate(texts):
            size = -(-len(text) // 40)
            piece = {"index": at, "function": {"arguments": text[part * size : (part + 1) * size]}}
            made.append(choice({"tool_calls": [piece], "token_ids": [part]}))
    return [
        *made,
        choice({}, finish),
        wire.event({**base, "choices": [], "usage": wire.usage("chat", 9, 126)}),
        wire.DONE,
    ]


@pytest.mark.parametrize("asked", [False, True])
async def test_c022_parallel_tool_calls_and_unknown_fields_pass_byte_for_byte(one: Stage, asked: bool) -> None:
    events = tool_events()
    one.engine.answer = lambda seen: wire.stream(events)
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
    answer = await one.ask("chat", "x", stream=True, **more)
    same_stream(events, answer.body, stripped=[] if asked else events[-2:-1])


async def test_c022_the_official_client_puts_the_three_calls_together(one: Stage) -> None:
    one.engine.answer = lambda seen: wire.stream(tool_events())
    named: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    async with (
        openai.AsyncOpenAI(base_url=one.gateway.url + "/v1", api_key="k", max_retries=0) as client,
        client.chat.completions.stream(**named) as stream,
    ):
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [(call.id, call.function.name, json.loads(call.function.arguments)["city"]) for call in calls] == [
        (f"call_{at}", f"tool{at}", f"city {at}") for at in range(3)
    ]
    assert final.choices[0].finish_reason == "tool_calls"


# C025


def usage_streams() -> dict[str, tuple[list[bytes], list[bytes], int]]:
    """name -> (events when usage is asked for, those of them the client did not ask for, output tokens)."""
    plain = stream_of("chat", ["a", "b"], prompt=9, usage=True)
    base = json.loads(plain[0].removeprefix(b"data: "))

    def chunk(**fields: Any) -> bytes:
        return compact(wire.event({**base, **fields}))

    def choice(text: str, index: int = 0, finish: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish}

    def used(output: int, **more: Any) -> dict[str, Any]:
        return {**wire.usage("chat", 9, output), **more}

    details = used(300, completion_tokens_details={"reasoning_tokens": 298}, prompt_tokens_details={"cached_tokens": 4})
    two = [chunk(choices=[choice("a", at)]) for at in (0, 1)] + [
        chunk(choices=[choice("", at, "stop")]) for at in (0, 1)
    ]
    null = [chunk(choices=[choice("a")], usage=None), chunk(choices=[choice("", finish="stop")], usage=None)]
    first, last = chunk(choices=[], prompt_filter_results=[]), chunk(choices=[], usage=used(2))
    return {
        "plain": (plain, plain[-2:-1], 2),
        "reasoning far beyond the text": ([*plain[:-2], chunk(choices=[], usage=details), wire.DONE], [chunk(choices=[], usage=details)], 300),
        "two choices": ([*two, last, wire.DONE], [last], 2),
        "null in every chunk": ([*null, last, wire.DONE], [last], 2),
        "nothing said": ([chunk(choices=[choice("", finish="stop")]), last, wire.DONE], [last], 2),
        "empty choices without usage first": ([first, *plain], plain[-2:-1], 2),
        "usage in the finish chunk too": ([chunk(choices=[choice("a")]), chunk(choices=[choice("", finish="stop")], usage=used(2)), last, wire.DONE], [last], 2),
    }  # fmt: skip


@pytest.mark.parametrize("asked", [None, False, True])
@pytest.mark.parametrize("name", usage_streams())
async def test_c025_the_usage_chunk_is_for_those_who_asked(one: Stage, name: str, asked: bool | None) -> None:
    events, stripped, output = usage_streams()[name]
    one.engine.answer = lambda seen: wire.stream(events)
    before = await tokens(one)
    more: dict[str, Any] = {} if asked is None else {"stream_options": {"include_usage": asked}}
    answer = await one.ask("chat", "x", stream=True, **more)
    same_stream(events, answer.body, stripped=[] if asked else stripped)
    assert one.engine.seen[-1].json["stream_options"] == {"include_usage": True}
    after = await tokens(one)
    assert (after[0] - before[0], after[1] - before[1]) == (9, output)
    if asked:
        assert answer.body.endswith(stripped[0] + wire.DONE) and answer.body.count(stripped[0]) == 1


@pytest.mark.parametrize("route", ["messages", "responses"])
async def test_c025_nothing_is_injected_where_usage_is_part_of_the_stream(one: Stage, route: str) -> None:
    answer = await one.ask(route, "x", stream=True)
    assert "stream_options" not in one.engine.seen[-1].json and b'"output_tokens":3' in answer.body


@pytest.mark.parametrize("route", OPENAI)
async def test_c025_an_answer_that_is_not_streamed_is_not_asked_for_usage(one: Stage, route: str) -> None:
    answer = await one.ask(route, "x")
    assert "stream_options" not in one.engine.seen[-1].json and b'"usage"' in answer.body
