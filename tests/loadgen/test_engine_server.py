"""The simulated engine over real sockets: both client libraries, answer shapes, refusals, aborts, shutdown."""

import asyncio
import json
import time

import aiohttp
import anthropic
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.engine_server.control import Control
from tests.loadgen.simulated import chat, get, simulated, talk, until

MODEL = "llama-8b"


def client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_the_openai_client_reads_a_stream_with_usage() -> None:
    async with simulated() as engine, client(engine.port) as api:
        stream = await api.chat.completions.create(
            model=MODEL,
            messages=user("hello [[fb out=12]]"),
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks[1:-1]]
    assert len(texts) == 12
    assert all(len(text) == 4 for text in texts)
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0


async def test_streamed_and_whole_answers_are_the_same_text() -> None:
    async with simulated() as engine, client(engine.port) as api:
        for path in (api.chat.completions.create, api.completions.create):
            asked = {"messages": user("same")} if path == api.chat.completions.create else {"prompt": "same"}
            whole = await path(model=MODEL, max_tokens=20, **asked)
            parts = [part async for part in await path(model=MODEL, max_tokens=20, stream=True, **asked)]
            if path == api.chat.completions.create:
                text = "".join(part.choices[0].delta.content for part in parts)
                assert text == whole.choices[0].message.content
            else:
                assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
            assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason


async def test_a_tool_call_arrives_whole_and_in_pieces() -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    async with simulated() as engine, client(engine.port) as api:
        asked = {"model": MODEL, "messages": user("x [[fb out=9]]"), "tools": tools, "tool_choice": "required"}
        whole = await api.chat.completions.create(**asked)
        parts = [part async for part in await api.chat.completions.create(**asked, stream=True)]
    call = whole.choices[0].message.tool_calls[0]
    assert call.function.name == "look_up"
    assert json.loads(call.function.arguments)["q"]
    assert whole.usage.completion_tokens == 9
    deltas = [part.choices[0].delta.tool_calls[0] for part in parts if part.choices[0].delta.tool_calls]
    assert deltas[0].function.name == "look_up"
    assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"


async def test_the_anthropic_client_reads_stream_and_whole() -> None:
    async with simulated() as engine:
        base = f"http://127.0.0.1:{engine.port}"
        async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as api:
            asked = {"model": MODEL, "max_tokens": 50, "messages": user("hello [[fb out=8 think=3]]")}
            whole = await api.messages.create(**asked)
            async with api.messages.stream(**asked) as stream:
                final = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert final.content[1].text == whole.content[1].text
    assert final.content[0].thinking == whole.content[0].thinking
    assert final.usage.output_tokens == whole.usage.output_tokens == 8
    assert final.stop_reason == "end_turn"


async def test_n_and_list_prompts_give_one_choice_each() -> None:
    async with simulated() as engine, client(engine.port) as api:
        answer = await api.completions.create(model=MODEL, prompt=["one ", "two two "], n=2, max_tokens=5)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert len({choice.text for choice in answer.choices}) == 4
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 20)
        parts = [
            part
            async for part in await api.chat.completions.create(
                model=MODEL, messages=user("hi [[fb out=4]]"), n=3, stream=True
            )
        ]
    by_index = {index: [part for part in parts if part.choices[0].index == index] for index in range(3)}
    assert [len(found) for found in by_index.values()] == [5, 5, 5]


@pytest.mark.parametrize(
    ("fields", "tokens", "finish"),
    [
        ({"max_tokens": 7}, 7, "length"),
        ({"max_completion_tokens": 6, "max_tokens": 9}, 6, "length"),
        ({"ignore_eos": True, "max_tokens": 30}, 30, "length"),
        ({"min_tokens": 400, "max_tokens": 400}, 400, "length"),
    ],
)
async def test_length_fields_are_obeyed(fields: dict[str, object], tokens: int, finish: str) -> None:
    async with simulated(profile="noop", served_model_name=MODEL) as engine:
        wire = await talk(engine.port, chat("some words", **fields), seconds=5)
    answer = json.loads(wire.body)
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["choices"][0]["finish_reason"] == finish


async def test_a_stop_string_ends_the_text_before_it() -> None:
    async with simulated(profile="noop", served_model_name=MODEL) as engine:
        plain = json.loads((await talk(engine.port, chat("tell me", max_tokens=40))).body)
        text = plain["choices"][0]["message"]["content"]
        word = text[20:23]
        cut = json.loads((await talk(engine.port, chat("tell me", max_tokens=40, stop=[word]))).body)
    assert cut["choices"][0]["message"]["content"] == text[: text.index(word)]
    assert cut["choices"][0]["finish_reason"] == "stop"


async def test_markers_set_reasoning_and_canary_and_only_when_allowed() -> None:
    text = "hi [[fb out=9 think=4 canary=abcdefgh]]"
    async with simulated(profile="noop", served_model_name=MODEL) as engine:
        answer = json.loads((await talk(engine.port, chat(text))).body)
        wire = await talk(engine.port, chat(text, stream=True))
    message = answer["choices"][0]["message"]
    assert len(message["reasoning"]) == 16
    assert message["content"].startswith("abcdefgh")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
    deltas = [event["choices"][0]["delta"] for event in wire.events[1:-1]]
    assert ["reasoning" in delta for delta in deltas] == [True] * 4 + [False] * 5
    async with simulated(profile="noop", served_model_name=MODEL, markers=False) as engine:
        answer = json.loads((await talk(engine.port, chat(text, max_tokens=3))).body)
    assert "abcd" not in answer["choices"][0]["message"]["content"]


async def test_prompt_tokens_are_bytes_in_fours_with_one_for_each_role() -> None:
    async with simulated(profile="noop", served_model_name=MODEL) as engine:
        messages = [
            {"role": "system", "content": "the and for "},
            {"role": "user", "content": [{"type": "text", "text": "12345"}]},
        ]
        answer = json.loads((await talk(engine.port, chat(messages=messages, max_tokens=1))).body)
    assert answer["usage"]["prompt_tokens"] == (1 + 3) + (1 + 2) + 1


async def test_the_prefix_cache_is_split_by_salt() -> None:
    text = "and " * 100
    cached = []
    async with simulated() as engine:
        for salt in ("a", "a", "b"):
            wire = await talk(engine.port, chat(text, max_tokens=1, cache_salt=salt), seconds=2)
            cached.append(json.loads(wire.body)["usage"]["prompt_tokens_details"]["cached_tokens"])
        log = json.loads(engine.log.lines())
    assert cached == [0, 96, 0]
    assert [entry["cache_salt"] for entry in log] == ["a", "a", "b"]


async def test_an_answer_sent_back_as_history_hits_the_cache() -> None:
    async with simulated() as engine:
        first = json.loads((await talk(engine.port, chat("x" * 60, max_tokens=64), seconds=5)).body)
        history = [
            {"role": "user", "content": "x" * 60},
            {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
            {"role": "user", "content": "and then?"},
        ]
        second = json.loads((await talk(engine.port, chat(messages=history, max_tokens=1), seconds=5)).body)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


async def test_cached_tokens_are_told_only_with_the_flag() -> None:
    async with simulated(profile="noop", served_model_name=MODEL, shows_cached=False) as engine:
        answer = json.loads((await talk(engine.port, chat(max_tokens=1))).body)
    assert "prompt_tokens_details" not in answer["usage"]


async def test_a_stream_interval_gathers_tokens() -> None:
    async with simulated(profile="noop", served_model_name=MODEL, stream_interval=4) as engine:
        wire = await talk(engine.port, chat("hi [[fb out=10]]", stream=True))
    lengths = [len(event["choices"][0]["delta"]["content"]) for event in wire.events[1:-1]]
    assert lengths == [4, 12, 16, 8]


async def test_continuous_usage_counts_up() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with simulated(profile="noop", served_model_name=MODEL) as engine:
        wire = await talk(engine.port, chat("hi [[fb out=3]]", stream=True, stream_options=options))
    assert [event["usage"]["completion_tokens"] for event in wire.events[:-1]] == [0, 1, 2, 3, 3]


async def test_metrics_are_the_models_true_state() -> None:
    async with simulated() as engine:
        before = engine.metrics.render(engine.model, engine.pacemaker.lag).decode()
        await talk(engine.port, chat("and " * 63, max_tokens=5), seconds=2)
        await talk(engine.port, chat("and " * 63, max_tokens=5), seconds=2)
        text = (await talk(engine.port, get("/metrics"))).body.decode()
    assert {line.split("{")[0] for line in before.splitlines()} == {line.split("{")[0] for line in text.splitlines()}
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["vllm:num_requests_running", MODEL, "0"] == 0
    assert samples["vllm:prompt_tokens_total", MODEL, "0"] == 130
    assert samples["vllm:prefix_cache_hits_total", MODEL, "0"] == 64
    assert samples["vllm:generation_tokens_total", MODEL, "0"] == 10
    assert samples["vllm:request_success_total", MODEL, "0", "length"] == 2
    assert samples["vllm:time_to_first_token_seconds_count", MODEL, "0"] == 2


NAMES = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc prefix_cache_queries_total
prefix_cache_hits_total prompt_tokens_total prompt_tokens_cached_total prompt_tokens_by_source_total
prompt_tokens_cached_by_source_total generation_tokens_total request_success_total num_preemptions_total
request_num_preemptions_count admission_rejections_total time_to_first_token_seconds_count
inter_token_latency_seconds_count request_time_per_output_token_seconds_count e2e_request_latency_seconds_count
request_queue_time_seconds_count request_inference_time_seconds_count request_prefill_time_seconds_count
request_decode_time_seconds_count request_prompt_tokens_count request_generation_tokens_count
request_prefill_kv_computed_tokens_count request_params_n_count request_params_max_tokens_count
iteration_tokens_total_count engine_sleep_state sleep_mode_operations_in_flight cache_config_info
"""


async def test_metrics_have_all_of_vllms_names_and_add_up() -> None:
    async with simulated({"max_num_seqs": 1}) as engine:
        both = [talk(engine.port, chat(f"{n} [[fb out=40]]", max_tokens=50), 5) for n in range(2)]
        await asyncio.gather(*both)
        text = (await talk(engine.port, get("/metrics"))).body.decode()
    found = {
        one.name: one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if not one.name.endswith("_bucket")
    }
    assert {f"vllm:{name}" for name in NAMES.split()} <= set(found)
    assert found["vllm:inter_token_latency_seconds_count"] == 78
    assert found["vllm:iteration_tokens_total_sum"] == engine.model.scheduled_tokens
    parts = [found[f"vllm:request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(found["vllm:e2e_request_latency_seconds_sum"], abs=0.01)
    assert parts[0] > 0.1, "the second one waited for the first"


@pytest.mark.serial
async def test_the_head_comes_before_prefill_and_the_role_with_the_first_token() -> None:
    async with simulated(profile="llama70b-fp8-h200-tp2", served_model_name=MODEL) as engine:
        wire = await talk(engine.port, chat("and " * 3000 + "[[fb out=1]]", stream=True), seconds=3)
        sent = json.loads(engine.log.lines())[0]["accepted_s"]
    # Two chunks of prefill: 0.161 s and about 0.09 s, from the model's clock.
    assert wire.times[0] - sent < 0.1 < 0.2 < wire.times[1] - sent
    assert wire.events[0]["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.serial
async def test_real_time_follows_the_model_exactly_on_average() -> None:
    async with simulated() as engine:
        began = time.monotonic()
        await talk(engine.port, chat("hi [[fb out=200]]", stream=True), seconds=5)
        took = time.monotonic() - began
        assert engine.model.busy_s <= took < engine.model.busy_s + 0.15
        assert engine.model.steps == 200


@pytest.mark.serial
async def test_a_client_that_leaves_frees_its_blocks() -> None:
    async with simulated() as engine:
        for stream in (True, False):
            reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
            writer.write(chat("bye [[fb out=4000]]", stream=stream))
            await until(lambda: engine.model.running)
            left = time.monotonic()
            writer.close()
            await until(lambda: not engine.model.running)
            entry = json.loads(engine.log.lines())[-1]
            assert entry["ended"] == "client left"
            assert 0 <= entry["abort_seen_s"] - left < 0.25
            assert engine.model.scheduler.kv.referenced == 0
            assert await reader.read() is not None


async def test_an_idle_connection_is_closed_and_a_kept_one_serves_again() -> None:
    async with simulated(keep_alive_s=0.2, profile="noop", served_model_name=MODEL) as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        for _ in range(2):
            writer.write(get("/version"))
            await reader.readuntil(b"}")
        quiet = time.monotonic()
        assert await reader.read() == b""
        assert 0.15 < time.monotonic() - quiet < 1.0
        writer.close()


async def test_shutdown_ends_streams_with_abort() -> None:
    async with simulated() as engine:
        task = asyncio.create_task(talk(engine.port, chat("x [[fb out=3000]]", stream=True), 5))
        whole = asyncio.create_task(talk(engine.port, chat("y [[fb out=3000]]"), 5))
        await until(lambda: len(engine.model.running) == 2)
        await engine.stop()
        wire = await task
        assert wire.events[-2]["choices"][0]["finish_reason"] == "abort"
        assert wire.events[-1] == "[DONE]"
        assert json.loads((await whole).body)["choices"][0]["finish_reason"] == "abort"


async def test_while_shutting_down_new_requests_are_empty_and_old_ones_finish() -> None:
    async with simulated(shutdown_timeout_s=5.0) as engine:
        task = asyncio.create_task(talk(engine.port, chat("x [[fb out=60]]", stream=True), 5))
        await until(lambda: engine.model.running)
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)
        late = await talk(engine.port, chat("late"))
        answer = json.loads(late.body)["choices"][0]
        assert (late.status, answer["finish_reason"], answer["message"]["content"]) == (200, "abort", "")
        assert (await task).events[-2]["choices"][0]["finish_reason"] == "stop"
        await stopping


async def test_the_control_listener_shows_and_resets() -> None:
    async with simulated() as engine:
        control = Control(engine)
        base = f"http://127.0.0.1:{await control.start('127.0.0.1', 0)}"
        async with aiohttp.ClientSession() as http:
            slow = asyncio.create_task(talk(engine.port, chat("x [[fb out=100]]", stream=True), 5))
            await until(lambda: engine.model.running)
            state = await (await http.get(base + "/state")).json()
            assert (state["running"], state["open"]) == (1, 1)
            assert state["requests"][0]["prompt_tokens"] > 1
            await slow
            log = await (await http.get(base + "/log")).json()
            assert [(entry["ended"], entry["output_tokens"]) for entry in log] == [("finished", 100)]
            assert log[0]["accepted_s"] < log[0]["first_s"] < log[0]["ended_s"]
            assert (await (await http.get(base + "/lag")).json())["steps"] == 100
            assert (await http.put(base + "/faults", json=["status:503", "nonsense"])).status == 400
            assert await (await http.get(base + "/faults")).json() == {"faults": []}
            assert (await http.put(base + "/faults", json=["status:503"])).status == 200
            assert (await talk(engine.port, chat("x"))).status == 503
            assert (await http.delete(base + "/faults")).status == 200
            assert (await talk(engine.port, chat("x", max_tokens=1))).status == 200
            await http.post(base + "/reset")
            assert await (await http.get(base + "/log")).json() == []
        await control.stop()
