"""Routes of the simulated vLLM that only read a prompt, or do not ask the model at all."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.invariants import holding
from tests.kit.raw_client import exchange
from tests.loadgen.simulated import chat, get, post, simulated, talk, until

MODEL = "llama-8b"


async def asked(port: int, path: str, **fields: Any) -> tuple[int, Any]:
    wire = await talk(port, post(path, json.dumps({"model": MODEL, **fields}).encode()), 5)
    return wire.status, json.loads(wire.body)


async def test_embeddings_are_read_by_the_openai_client_and_belong_to_their_text() -> None:
    async with simulated() as engine:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{engine.port}/v1", api_key="x", max_retries=0) as api:
            many = await api.embeddings.create(model=MODEL, input=["the and for you", "other", "the and for you"])
            plain = await api.embeddings.create(
                model=MODEL, input="the and for you", encoding_format="float", dimensions=8
            )
        vectors = [one.embedding for one in many.data]
        assert vectors[0] == vectors[2] != vectors[1]
        assert plain.data[0].embedding == pytest.approx(vectors[0][:8], abs=1e-6)
        assert (many.usage.prompt_tokens, many.usage.total_tokens) == (10, 10)
        assert not engine.model.running


async def test_rerank_sorts_and_score_compares() -> None:
    async with simulated() as engine:
        status, ranked = await asked(engine.port, "/v1/rerank", query="q", documents=["a", "b", "c"], top_n=2)
        scores = [one["relevance_score"] for one in ranked["results"]]
        assert status == 200 and len(scores) == 2 and scores == sorted(scores, reverse=True)
        assert all(one["document"]["text"] == "abc"[one["index"]] for one in ranked["results"])
        _, scored = await asked(engine.port, "/v1/score", text_1="q", text_2=["a", "b"])
        assert [one["index"] for one in scored["data"]] == [0, 1]
        assert scored["usage"]["prompt_tokens"] == 2
        assert (await asked(engine.port, "/v1/score", text_1=["q", "r", "s"], text_2=["a"]))[0] == 400
        assert (await asked(engine.port, "/v1/rerank", query="q", documents=[]))[0] == 400


async def test_prompts_take_their_time_and_their_turn() -> None:
    async with simulated({"max_num_seqs": 1}) as engine:
        task = asyncio.create_task(talk(engine.port, chat("x [[fb out=3000]]"), 20))
        await until(lambda: engine.model.running)
        waits = asyncio.create_task(asked(engine.port, "/v1/embeddings", input="a"))
        await until(lambda: len(engine.model.waiting) == 1)
        task.cancel()
        assert (await waits)[0] == 200


async def test_tokens_are_told_and_made_text_again() -> None:
    async with simulated() as engine:
        _, told = await asked(engine.port, "/tokenize", prompt="the and for")
        assert (told["count"], told["max_model_len"]) == (3, 8192)
        assert await asked(engine.port, "/detokenize", tokens=told["tokens"]) == (200, {"prompt": "the and for"})
        said = [{"role": "user", "content": "the and for you"}]
        _, chat_tokens = await asked(engine.port, "/tokenize", messages=said)
        answer = json.loads((await talk(engine.port, chat("the and for you", max_tokens=1), 2)).body)
        assert chat_tokens["count"] == answer["usage"]["prompt_tokens"]
        async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{engine.port}", api_key="x") as api:
            counted = await api.messages.count_tokens(model=MODEL, messages=said, system="be brief")
        assert counted.input_tokens > chat_tokens["count"]
        assert (await asked(engine.port, "/detokenize", tokens=["x"]))[0] == 400
        assert (await asked(engine.port, "/tokenize", model="none", prompt="x"))[0] == 404
        assert (await talk(engine.port, get("/tokenize"))).status == 405
        assert {entry["kind"] for entry in json.loads(engine.log.lines())} >= {"text", "generate", "trap"}


async def test_the_gateway_passes_them_on(tmp_path: Path) -> None:
    flags = ("--profile", "llama8b-fp8-h200", "--served-model-name", "emb")
    async with Engine(tmp_path, arguments=flags) as engine, Gateway(config([engine.url]), tmp_path) as gateway:
        async with holding(gateway):
            for path, fields in (
                ("/v1/embeddings", {"input": "the and for"}),
                ("/rerank", {"query": "q", "documents": ["a"]}),
                ("/v1/score", {"text_1": "q", "text_2": "a"}),
            ):
                answer = await exchange(gateway.port, wire.request(path, {"model": "emb", **fields}))
                assert answer.status == 200, answer.body
                assert json.loads(answer.body)["usage"]["prompt_tokens"] > 0
        assert (await gateway.metrics()).sum("forebay_usage_missing_total") == 0
        assert {entry["kind"] for entry in await engine.log()} == {"generate"}
