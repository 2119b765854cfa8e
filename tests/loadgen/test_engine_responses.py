"""`/v1/responses` of the simulated engine: the official client reads it, the gateway and bench too."""

import json
from pathlib import Path

import openai
import pytest

from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.loadgen.benching import bench
from tests.loadgen.simulated import post, simulated, talk

MODEL = "llama-8b"
FLAGS = (
    "--profile",
    "llama8b-fp8-h200",
    "--served-model-name",
    "m",
    "--allow-markers",
    "--enable-prompt-tokens-details",
)


def client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


async def test_streamed_and_whole_answers_are_the_same() -> None:
    asked = {"model": MODEL, "input": "and " * 40 + "[[fb out=12]]", "instructions": "be brief"}
    async with simulated() as engine, client(engine.port) as api:
        whole = await api.responses.create(**asked)
        async with api.responses.stream(**asked) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
    assert (
        whole.output_text
        == final.output_text
        == "".join(event.delta for event in events if event.type == "response.output_text.delta")
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (whole.status, whole.usage.output_tokens, final.usage.output_tokens) == ("completed", 12, 12)
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.input_tokens_details.cached_tokens > 0, "the second prompt was the first one's"


async def test_conversations_reasoning_tools_and_what_is_cut() -> None:
    asked = [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "sunny [[fb out=20 think=8]]"},
    ]
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    async with simulated() as engine, client(engine.port) as api:
        thought = await api.responses.create(model=MODEL, input=asked)
        parts = [part async for part in await api.responses.create(model=MODEL, input=asked, stream=True)]
        call = await api.responses.create(model=MODEL, input="x", tools=[tool], tool_choice="required")
        cut = await api.responses.create(model=MODEL, input="[[fb out=20]]", max_output_tokens=5)
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert thought.usage.output_tokens_details.reasoning_tokens == 8
    assert parts[-1].response.output_text == thought.output_text
    assert [item.type for item in parts[-1].response.output] == ["reasoning", "message"]
    assert sum(part.type == "response.reasoning_text.delta" for part in parts) == 8
    (item,) = call.output
    assert (item.type, item.name) == ("function_call", "look") and json.loads(item.arguments)
    assert (cut.status, cut.incomplete_details.reason, cut.usage.output_tokens) == (
        "incomplete",
        "max_output_tokens",
        5,
    )


@pytest.mark.parametrize("given", [None, [], 3, ["x"]])
async def test_an_input_that_is_none_is_refused(given: object) -> None:
    async with simulated() as engine:
        wire = await talk(engine.port, post("/v1/responses", json.dumps({"model": MODEL, "input": given}).encode()))
    assert (wire.status, json.loads(wire.body)["error"]["param"]) == (400, "input")


async def test_bench_and_gateway_speak_it(tmp_path: Path) -> None:
    async with Engine(tmp_path, arguments=FLAGS) as engine, Gateway(config([engine.url]), tmp_path) as gateway:
        admin = f"http://127.0.0.1:{gateway.admin_port}"
        done = await bench(tmp_path, "--url", gateway.url, "--model", "m", "--api", "responses", "--scrape", admin)
        metrics = await gateway.metrics()
    assert done.code == 0, done.err + done.out
    assert done.rule("V10")["state"] == "ok" and done.rule("V6")["state"] == "ok"
    assert metrics.sum("forebay_usage_missing_total") == 0
