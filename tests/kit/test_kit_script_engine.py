"""The scripted engine plays its script to the byte and logs what it saw."""

import asyncio
import json

import pytest

from tests.kit import wire
from tests.kit.processes import until
from tests.kit.raw_client import connect, exchange
from tests.kit.script_engine import FIN, HANG, ScriptEngine, Wait

ROUTES = ("chat", "completions", "messages", "responses")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics"])
async def test_probes_are_answered_and_not_counted(path: str) -> None:
    async with ScriptEngine() as engine:
        answer = await exchange(engine.port, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert (answer.status, engine.seen, engine.probes) == (200, [], 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_the_default_answer_echoes_the_prompt(route: str, stream: bool) -> None:
    async with ScriptEngine() as engine:
        message = wire.request(wire.ROUTES[route].decode(), wire.request_body(route, "canary-42", stream=stream))
        answer = await exchange(engine.port, message)
        assert answer.clean and b"canary-42" in answer.body
        (seen,) = engine.seen
        assert (seen.method, seen.target, seen.json["model"]) == (b"POST", wire.ROUTES[route], "m")
        assert seen.complete_s >= seen.first_byte_s > 0 and not seen.aborted


async def test_requests_on_one_connection_are_told_apart() -> None:
    async with ScriptEngine() as engine, await connect(engine.port) as client:
        for at in range(3):
            await client.send(wire.request("/v1/chat/completions", wire.request_body("chat", f"c{at}")))
            assert f"c{at}".encode() in (await client.response()).body
        assert [(one.connection, one.index) for one in engine.seen] == [(1, 0), (1, 1), (1, 2)]


async def test_scripts_for_the_next_requests_are_used_once() -> None:
    async with ScriptEngine() as engine, await connect(engine.port) as client:
        engine.once.append([wire.json_answer({"error": "full"}, status=503)])
        message = wire.request("/v1/chat/completions", wire.request_body("chat", "x"))
        found = []
        for _ in range(2):
            await client.send(message)
            found.append((await client.response()).status)
        assert found == [503, 200]


async def test_concurrency_and_abort_times_are_logged() -> None:
    async with ScriptEngine(lambda _: [HANG]) as engine:
        message = wire.request("/v1/chat/completions", wire.request_body("chat", "x"))
        clients = [await connect(engine.port) for _ in range(5)]
        for client in clients:
            await client.send(message)
        await until(lambda: engine.active == 5, 2, "not all are there")
        for client in clients:
            client.close()
        await until(lambda: len(engine.aborted()) == 5, 2, "not all have gone")
        assert (engine.peak, engine.active) == (5, 0)


async def test_an_idle_connection_is_closed_when_asked() -> None:
    async with ScriptEngine() as engine, await connect(engine.port) as client:
        engine.idle_close_s = 0.05
        await client.send(wire.request("/v1/chat/completions", wire.request_body("chat", "x")))
        await client.response()
        assert await asyncio.wait_for(client.read(), 2) == b"" and client.end == "fin"


async def test_bytes_before_the_answer_is_complete_are_logged_as_leftover() -> None:
    async with ScriptEngine(lambda _: [Wait(0.05), wire.answer(b"{}")]) as engine, await connect(engine.port) as client:
        message = wire.request("/v1/chat/completions", wire.request_body("chat", "x"))
        await client.send(message)
        await until(lambda: bool(engine.seen), 2, "nothing came")
        await client.send(message)
        await client.response()
        await client.response()
        assert engine.seen[0].leftover == message and len(engine.seen) == 2


async def test_it_refuses_after_it_stops_listening_and_may_come_back() -> None:
    engine = ScriptEngine()
    await engine.start()
    engine.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await connect(engine.port)
    await engine.start()
    async with await connect(engine.port) as client:
        await until(lambda: bool(engine.open_connections), 2, "not accepted")
        engine.drop_connections(FIN)
        await asyncio.wait_for(client.read(), 2)
    await engine.stop()


@pytest.mark.parametrize("route", ROUTES)
def test_streams_parse_back_to_their_words(route: str) -> None:
    events = wire.events(route, ["one", " two"], with_usage=True)
    datas = [event.split(b"data: ", 1)[1].strip() for event in events]
    texts = [json.loads(data) for data in datas if data != b"[DONE]"]
    assert "two" in json.dumps(texts) and "output_tokens" in json.dumps(texts) + '"output_tokens"'
    assert (events[-1] == wire.DONE) == (route in ("chat", "completions"))


@pytest.mark.parametrize("trailer", [b"", b"x: y\r\n"])
def test_dechunk_needs_the_whole_message(trailer: bytes) -> None:
    data = wire.chunk(b"abc") + wire.chunk(b"de") + b"0\r\n" + trailer + b"\r\n"
    assert wire.dechunk(data + b"rest") == (b"abcde", len(data))
    assert all(wire.dechunk(data[:cut]) == (None, 0) for cut in range(len(data)))


async def test_a_jammed_engine_lets_connects_hang() -> None:
    async with ScriptEngine() as engine:
        engine.jam()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connect(engine.port), 0.3)
