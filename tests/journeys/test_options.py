"""What an operator may switch on: engines behind TLS, comments that keep a waiting stream open, guarded routes, hosts."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kit import wire
from tests.kit.gateway import Gateway, Launch, config
from tests.kit.invariants import holding
from tests.kit.raw_client import connect, exchange
from tests.kit.script_engine import RST, ScriptEngine, Wait
from tests.kit.stage import Stage, error_of, stage
from tests.kit.tenants import bearer, tenant

HANGS = 30.0


def certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@asynccontextmanager
async def behind_tls(engine: ScriptEngine, cert: Path, key: Path) -> AsyncIterator[int]:
    """A port that speaks TLS and passes everything on to the engine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    host, port = engine.url.removeprefix("http://").split(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_an_engine_behind_tls_is_spoken_to_and_its_connection_used_again(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with ScriptEngine() as engine, behind_tls(engine, cert, key) as port:
        launch = Launch(env={"SSL_CERT_FILE": str(cert)})
        settings = config([f"https://127.0.0.1:{port}"], timeouts={"scale": 1})
        async with Gateway(settings, tmp_path, launch=launch) as gateway, holding(gateway):
            made = Stage(gateway, [engine])
            for number in range(5):
                assert b"canary-%d" % number in (await made.ask("chat", f"canary-{number}")).body
                streamed = await made.ask("chat", f"canary-{number}", stream=True)
                assert (streamed.status, streamed.end) == (200, "chunked") and b"[DONE]" in streamed.body
            posts = [seen for seen in engine.seen if seen.method == b"POST"]
            assert len(posts) == 10 and len({seen.connection for seen in posts}) == 1


async def test_an_engine_whose_certificate_nobody_vouches_for_is_not_up(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with ScriptEngine() as engine, behind_tls(engine, cert, key) as port:
        gateway = Gateway(config([f"https://127.0.0.1:{port}"]), tmp_path)
        await gateway.start(up=0)
        try:
            answer = await Stage(gateway, [engine]).ask("chat", "x")
            assert (answer.status, error_of(answer)["code"]) == (503, "no_endpoint")
            assert not [seen for seen in engine.seen if seen.method == b"POST"]
        finally:
            await gateway.stop()


async def test_comments_keep_a_waiting_stream_open_and_a_failure_is_then_a_frame(tmp_path: Path) -> None:
    changes = {"limits": {"sse_keepalive_s": 1}, "retries": {"max_attempts": 1}}  # 0.1 s at this scale
    async with stage(tmp_path, **changes) as made, made.holding():
        made.engine.answer = lambda seen: [Wait(0.5), *wire.stream(wire.events("chat", ["a", "b"]))]
        answer = await made.ask("chat", "x", stream=True)
        assert (answer.status, answer.end) == (200, "chunked")
        assert answer.body.startswith(b": ping\n\n: ping\n\n") and answer.body.endswith(b"data: [DONE]\n\n")
        made.engine.answer = lambda seen: [Wait(0.5), RST]
        answer = await made.ask("chat", "x", stream=True)
        assert (answer.status, answer.end) == (200, "cut_fin")
        assert b": ping\n\n" in answer.body and b'"backend_unavailable"' in answer.body
        made.engine.answer = lambda seen: [Wait(0.5), wire.json_answer(wire.body("chat", "x"))]
        answer = await made.ask("chat", "x", stream=True)
        assert (answer.status, answer.end) == (200, "cut_fin") and b'"backend_protocol_error"' in answer.body
        made.engine.answer = lambda seen: [Wait(0.5), wire.json_answer(wire.body("chat", "x"))]
        answer = await made.ask("chat", "x")
        assert (answer.status, answer.end) == (200, "length") and b"ping" not in answer.body


async def test_a_waiting_stream_that_fails_gives_back_the_room_that_its_body_took(tmp_path: Path) -> None:
    room = {"max_queued_bytes": 1024 * 1024}
    async with stage(tmp_path, limits={"sse_keepalive_s": 1}, retries={"max_attempts": 1}, admission=room) as made:
        made.engine.answer = lambda seen: [Wait(0.3), RST]
        for _ in range(4):
            answer = await made.ask("chat", "word " * 80_000, stream=True)
            assert b": ping\n\n" in answer.body and b'"backend_unavailable"' in answer.body


async def test_a_stream_that_begins_with_a_comment_tells_of_limits_and_of_what_was_removed(tmp_path: Path) -> None:
    acme = tenant("acme", limits={"rpm": 6})
    async with stage(tmp_path, limits={"sse_keepalive_s": 1}, tenants=[acme]) as made, made.holding():
        made.engine.answer = lambda seen: [Wait(0.3), *wire.stream(wire.events("chat", ["a", "b"]))]
        answer = await made.ask("chat", "x", stream=True, extra=[bearer("acme")], nobody_knows=1)
        assert answer.body.startswith(b": ping\n\n") and answer.end == "chunked"
        told = [answer.header(f"x-{name}") for name in ("ratelimit-limit-requests", "ratelimit-remaining-requests")]
        assert (told, answer.header("x-forebay-stripped")) == (["6", "5"], "nobody_knows")


async def test_a_guarded_route_is_open_to_whom_it_was_granted_and_two_at_a_time(tmp_path: Path) -> None:
    changes = {"tenant_defaults": {"allow": {"routes": ["tokenize"]}}, "timeouts": {"scale": 1}}
    async with stage(tmp_path, **changes) as made, made.holding():
        message = wire.request("/tokenize", {"model": "m", "prompt": "x"})
        made.engine.answer = lambda seen: [Wait(0.5), wire.json_answer({"tokens": [1, 2], "count": 2})]
        answers = await asyncio.gather(*(exchange(made.gateway.port, message) for _ in range(5)))
        assert sorted(answer.status for answer in answers) == [200, 200, 503, 503, 503]
        assert {error_of(answer)["code"] for answer in answers if answer.status == 503} == {"backend_saturated"}
        assert made.engine.peak == 2
        made.engine.answer = lambda seen: [Wait(HANGS)]
        late = await exchange(made.gateway.port, message, timeout_s=10)
        assert (late.status, error_of(late)["code"]) == (504, "backend_timeout")
        refused = await exchange(made.gateway.port, wire.request("/detokenize", {"model": "m", "tokens": [1]}))
        assert (refused.status, error_of(refused)["code"]) == (403, "route_forbidden")


async def test_only_listed_hosts_are_answered(tmp_path: Path) -> None:
    async with stage(tmp_path, listen={"hosts": ["forebay", "llm.example"]}) as made, made.holding():
        good = await made.ask("chat", "x")
        assert good.status == 200
        message = made.message("chat", "x").replace(b"host: ", b"host: evil.example\r\nx-was: ", 1)
        refused = await exchange(made.gateway.port, message)
        assert (refused.status, error_of(refused)["code"]) == (421, "host")


async def test_a_listed_host_is_answered_with_its_port_or_with_any(tmp_path: Path) -> None:
    served = ["llm.example", "llm.example:8080", "LLM.example:1", "one.example:8080", "[::1]", "[::1]:8080"]
    others = ["one.example", "one.example:80", "[::2]", "llm.example.evil", "evil:llm.example"]
    async with stage(tmp_path, listen={"hosts": ["llm.example", "one.example:8080", "[::1]"]}) as made, made.holding():
        for host in (*served, *others):
            message = made.message("chat", "x").replace(b"host: forebay", f"host: {host}".encode())
            answer = await exchange(made.gateway.port, message)
            assert answer.status == (200 if host in served else 421), host


async def test_headers_that_are_to_be_passed_on_reach_the_engine_and_no_others(tmp_path: Path) -> None:
    sent = [("x-team", "blue"), ("x-other", "1"), ("x_team", "red"), ("X-TEAM", "green")]
    async with stage(tmp_path, upstream={"forward_headers": ["X-Team"]}) as made, made.holding():
        async with await connect(made.gateway.port) as client:
            for _ in range(2):  # the second head is known
                await client.send(made.message("chat", "x", extra=sent))
                assert (await client.response()).status == 200
        for seen in made.engine.seen:
            assert seen.header("x-team") == "blue, green" and seen.head.lower().count(b"x-team") == 1
            assert b"x-other" not in seen.head and b"x_team" not in seen.head
        made.engine.clear()
        assert (await made.ask("chat", "x", extra=[("connection", "x-team"), ("x-team", "blue")])).status == 200
        assert made.engine.seen[-1].header("x-team") is None
        assert (await made.ask("chat", "x", extra=[("x-team", "bl\u00fc")])).status == 400
