"""What is asked of the simulated engine in SGLang's dialect beside answers: health, keys, metrics, its admin's routes, its end."""

import asyncio
import json
import time
from typing import Any

from tests.loadgen.simulated import chat, get, page, post, sglang, talk, until

JSON = "content-type: application/json\r\n"


async def test_all_but_health_and_metrics_is_behind_the_key() -> None:
    async with sglang(api_key="secret") as engine:
        for path in ("/v1/models", "/get_model_info", "/flush_cache", "/nothing"):
            wire = await talk(engine.port, get(path))
            assert (wire.status, json.loads(wire.body)) == (401, {"error": "Unauthorized"})
        assert (await talk(engine.port, chat())).status == 401
        assert (await talk(engine.port, get("/metrics"))).status == 200
        assert (await talk(engine.port, get("/health"), 3)).status == 200
        key = post(
            "/v1/completions",
            json.dumps({"prompt": "x", "max_tokens": 1}).encode(),
            JSON + "authorization: Bearer secret\r\n",
        )
        assert (await talk(engine.port, key, 2)).status == 200


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
        "queue_time_seconds_count": 2,
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
