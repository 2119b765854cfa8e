"""What the simulated engine refuses, and in which shape: vLLM's rows of engines.md 4.2."""

import asyncio
import json

import pytest

from tests.loadgen.simulated import chat, get, post, simulated, talk, until

MODEL = "llama-8b"


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


BAD = [
    (b"{", 400, "Bad Request", None),
    (b"[]", 400, "Bad Request", None),
    (json.dumps({"model": MODEL, "messages": []}).encode(), 400, "BadRequestError", "messages"),
    (json.dumps({"model": "other", "messages": user("x")}).encode(), 404, "NotFoundError", "model"),
    (json.dumps({"model": MODEL, "messages": user("x"), "n": 0}).encode(), 400, "Bad Request", "n"),
    (json.dumps({"model": MODEL, "messages": user("x"), "stream": 3}).encode(), 400, "Bad Request", "stream"),
    (
        json.dumps({"model": MODEL, "messages": user("x"), "stream_options": {}}).encode(),
        *(400, "BadRequestError", "stream_options"),
    ),
    (
        json.dumps({"model": MODEL, "messages": user("x"), "cache_salt": "a/b"}).encode(),
        *(400, "Bad Request", "cache_salt"),
    ),
    (
        json.dumps({"model": MODEL, "messages": user("x"), "cache_salt": "a" * 129}).encode(),
        *(400, "Bad Request", "cache_salt"),
    ),
    (
        json.dumps({"model": MODEL, "messages": user("x"), "max_tokens": 2, "min_tokens": 3}).encode(),
        *(400, "BadRequestError", "min_tokens"),
    ),
    (
        json.dumps({"model": MODEL, "messages": user("y" * 40_000)}).encode(),
        *(400, "BadRequestError", "input_tokens"),
    ),
    (
        json.dumps({"model": MODEL, "messages": user("y"), "max_tokens": 9000}).encode(),
        *(400, "BadRequestError", "input_tokens"),
    ),
]


@pytest.mark.parametrize(("body", "status", "kind", "param"), BAD)
async def test_bad_requests_are_refused_in_vllms_shape(body: bytes, status: int, kind: str, param: str | None) -> None:
    async with simulated() as engine:
        wire = await talk(engine.port, post("/v1/chat/completions", body))
    error = json.loads(wire.body)["error"]
    assert wire.status == status
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    if param == "input_tokens":
        assert error["message"].startswith("This model's maximum context length is")


async def test_key_content_type_and_anthropic_errors_have_their_own_shapes() -> None:
    body = json.dumps({"model": MODEL, "messages": user("x"), "max_tokens": 3}).encode()
    async with simulated(api_key="secret") as engine:
        wrong = await talk(engine.port, post("/v1/chat/completions", body))
        assert (wrong.status, json.loads(wrong.body)) == (401, {"error": "Unauthorized"})
        key = "content-type: application/json\r\nauthorization: Bearer secret\r\n"
        assert (await talk(engine.port, post("/v1/chat/completions", body, key), seconds=2)).status == 200
        text = await talk(engine.port, post("/v1/chat/completions", body, "content-type: text/plain\r\n" + key[32:]))
        assert text.status == 400
        other = body.replace(b"llama-8b", b"none")
        assert json.loads((await talk(engine.port, post("/v1/messages", other, key))).body)["type"] == "error"


async def test_a_full_queue_is_a_real_503() -> None:
    async with simulated({"max_num_seqs": 1, "max_num_queued_reqs": 1}) as engine:
        slow = [asyncio.create_task(talk(engine.port, chat(f"{n} [[fb out=200]]", stream=True), 5)) for n in range(2)]
        await until(lambda: len(engine.model.running) == 1 and len(engine.model.waiting) == 1)
        wire = await talk(engine.port, chat("third", stream=True))
        assert wire.status == 503
        assert json.loads(wire.body)["error"]["type"] == "Service Unavailable"
        assert engine.metrics.refused["max_num_queued_reqs"] == 1
        for task in slow:
            task.cancel()


async def test_other_paths_are_traps_and_probes_are_not() -> None:
    async with simulated() as engine:
        for path in ("/health", "/ping", "/version", "/load", "/v1/models", "/metrics"):
            assert (await talk(engine.port, get(path))).status == 200, path
        assert json.loads(engine.log.lines()) == []
        assert (await talk(engine.port, get("/sleep"))).status == 404
        assert (await talk(engine.port, get("/v1/chat/completions"))).status == 405
        assert [(entry["kind"], entry["path"]) for entry in json.loads(engine.log.lines())] == [
            ("trap", "/sleep"),
            ("trap", "/v1/chat/completions"),
        ]
