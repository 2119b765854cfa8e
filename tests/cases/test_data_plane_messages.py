"""Cases C009 to C011 and C013: what is in a message and how long it is, both ways, and answers that never mix."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.cases.streams import saying, stream_of
from tests.kit import wire
from tests.kit.processes import until
from tests.kit.raw_client import connect, exchange
from tests.kit.script_engine import FIN, Seen, Step
from tests.kit.sockets import rss_bytes
from tests.kit.stage import PATHS, Stage, error_of, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

MIB = 1024 * 1024
CHAT = PATHS["chat"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    models = {"m": {"context_tokens": 10_000_000}}
    endpoint = {"api_key": "engine-key", "max_seqs": 256, "max_prefill_tokens": 1_000_000}
    async with stage(
        tmp_path_factory.mktemp("messages"), models=models, endpoint=endpoint, timeouts={"scale": 1}
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def one(house: Stage) -> AsyncIterator[Stage]:
    house.reset()
    async with house.holding():
        yield house
        house.reset()


# C009

ALWAYS = {
    "host",
    "content-type",
    "content-length",
    "accept",
    "accept-encoding",
    "user-agent",
    "x-request-id",
    "traceparent",
    "authorization",
}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# What the client sends, and the names that reach the engine beside those it always gets.
REQUEST_ROWS: list[tuple[list[tuple[str, str]], set[str]]] = [
    ([("connection", "keep-alive, x-foo"), ("x-foo", "1")], set()), ([("connection", "close")], set()), ([("keep-alive", "timeout=5")], set()),
    ([("te", "trailers")], set()), ([("trailer", "x-sum")], set()), ([("proxy-authorization", "Basic x")], set()), ([("proxy-connection", "keep-alive")], set()),
    ([("authorization", "Bearer tenant-key")], set()), ([("x-api-key", "tenant-key")], set()), ([("api-key", "tenant-key")], set()),
    ([("authorization", "Bearer tenant-key"), ("x-api-key", "tenant-key")], set()), ([("cookie", "a=b")], set()), ([("set-cookie", "a=b")], set()),
    ([("x-forwarded-for", "1.2.3.4")], set()), ([("x-forwarded-host", "evil")], set()), ([("x-forwarded-proto", "https")], set()), ([("forwarded", "for=1.2.3.4")], set()),
    ([("x-real-ip", "1.2.3.4")], set()), ([("via", "1.1 proxy")], set()), ([("x-tenant-id", "other")], set()), ([("x-priority", "0")], set()),
    ([("x-forebay-priority", "critical")], set()), ([("x-forebay-session", "s1")], set()), ([("x-forebay-timeout-ms", "60000")], set()), ([("x-gateway-model", "x")], set()),
    ([("x-vllm-priority", "-5")], set()), ([("x-data-parallel-rank", "1")], set()), ([("x-session-id", "s")], set()), ([("endpoint-load-metrics-format", "TEXT")], set()),
    ([("x-request-id", "mine")], set()), ([("x_request_id", "mine")], set()), ([("traceparent", TRACE)], set()), ([("traceparent", "nonsense")], set()),
    ([("traceparent", TRACE), ("tracestate", "a=b")], {"tracestate"}), ([("tracestate", "a=b")], set()), ([("baggage", "a=b")], set()),
    ([("accept", "text/html")], set()), ([("accept-encoding", "gzip, br")], set()), ([("user-agent", "curl/8")], set()), ([("origin", "https://a")], set()), ([("referer", "https://a")], set()),
    ([("if-none-match", "*")], set()), ([("range", "bytes=0-1")], set()), ([("openai-organization", "org")], set()), ([("x-stainless-lang", "python"), ("x-stainless-retry-count", "1")], set()),
    ([("anthropic-version", "2023-06-01")], set()), ([("x-goog-api-key", "k")], set()), ([("x-amzn-trace-id", "r")], set()), ([("early-data", "1")], set()), ([("priority", "u=1")], set()),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_c009_the_engine_gets_exactly_the_headers_of_the_list(one: Stage, stream: bool) -> None:
    ids = set()
    for sent, more in REQUEST_ROWS:
        answer = await one.ask("chat", "x", stream=stream, extra=sent)
        assert answer.status == 200, sent
        seen = one.engine.seen[-1]
        names = Counter(name.lower().decode() for name, _ in seen.headers)
        assert names == Counter(ALWAYS | more), sent
        assert b"tenant-key" not in seen.head and seen.header("authorization") == "Bearer engine-key", sent
        assert (seen.header("host"), seen.header("accept-encoding")) == (f"127.0.0.1:{one.engine.port}", "identity"), (
            sent
        )
        assert (seen.header("content-type"), seen.header("accept")) == (
            "application/json",
            "application/json, text/event-stream",
        )
        ids.add(seen.header("x-request-id"))
    assert len(REQUEST_ROWS) >= 40 and len(ids) == len(REQUEST_ROWS) and {len(str(one)) for one in ids} == {26}


async def test_c009_anthropic_names_go_to_anthropic_routes_only(one: Stage) -> None:
    sent = [("anthropic-version", "2023-06-01"), ("anthropic-beta", "one,two"), ("x-api-key", "tenant-key")]
    await one.ask("messages", "x", extra=sent)
    names = {name.decode() for name, _ in one.engine.seen[-1].headers}
    assert names == ALWAYS | {"anthropic-version", "anthropic-beta"} and b"tenant-key" not in one.engine.seen[-1].head


@pytest.mark.parametrize(
    "name", ["authorization", "x-api-key", "content-length", "transfer-encoding", "host", "traceparent"]
)
async def test_c009_nominating_a_protected_name_is_refused(one: Stage, name: str) -> None:
    answer = await one.ask("chat", "x", extra=[("connection", f"keep-alive, {name}")])
    assert answer.status == 400 and one.engine.seen == []


GIVEN = {
    "content-type",
    "x-request-id",
    "x-forebay-request-id",
    "x-forebay-pool",
    "x-forebay-class",
    "x-forebay-queue-ms",
    "x-forebay-attempts",
    "cache-control",
}
RESPONSE_ROWS: list[list[tuple[str, str]]] = [
    [("keep-alive", "timeout=5")], [("connection", "keep-alive, x-foo"), ("x-foo", "1")], [("server", "a"), ("server", "b")], [("date", "now")], [("via", "1.1 x")], [("set-cookie", "a=b")],
    [("set-cookie2", "a=b")], [("alt-svc", "h3")], [("x-engine-host", "10.0.0.1")], [("x-request-id", "engine-id")], [("request-id", "engine-id")], [("cache-control", "public")], [("etag", "x")],
    [("location", "http://x/")], [("retry-after", "5")], [("www-authenticate", "Basic")], [("proxy-authenticate", "Basic")], [("trailer", "x-sum")], [("te", "x")], [("upgrade", "h2c")],
    [("access-control-allow-origin", "*")], [("strict-transport-security", "max-age=1")], [("content-disposition", "attachment")], [("content-language", "en")], [("content-location", "/x")],
    [("link", "</x>")], [("refresh", "1")], [("x-forebay-pool", "forged")], [("x-forebay-reason", "forged")], [("x-should-retry", "true")], [("x-ratelimit-limit-requests", "1")],
    [("openai-processing-ms", "1")], [("x-accel-buffering", "yes")], [("x-accel-redirect", "/etc/passwd")], [("transfer-encoding-x", "chunked")], [("vary", "*")], [("age", "1")], [("pragma", "x")],
    [("expires", "0")], [("x-powered-by", "uvicorn")], [("endpoint-load-metrics", "x")], [("traceparent", TRACE)],
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_c009_the_client_gets_exactly_the_headers_of_the_list(one: Stage, stream: bool) -> None:
    framing = {"transfer-encoding", "x-accel-buffering"} if stream else {"content-length"}
    for extra in RESPONSE_ROWS:
        if stream:
            one.engine.answer = saying([wire.stream_head(extra), *wire.stream(stream_of("chat", ["a"]))[1:]])
        else:
            one.engine.answer = saying([wire.json_answer(wire.body("chat", "a"), extra=extra)])
        answer = await one.ask("chat", "x", stream=stream)
        assert answer.clean and Counter(name.decode() for name, _ in answer.headers) == Counter(GIVEN | framing), extra
        assert answer.header("cache-control") == "no-store" and "forged" not in str(answer.headers), extra
    assert len(RESPONSE_ROWS) >= 40


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "text/plain", "application/x-ndjson"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_c009_the_content_type_is_the_engines(one: Stage, kind: str, stream: bool) -> None:
    """Also JSON on a stream, and a stream that nobody asked for: neither is relabelled."""
    body = json.dumps(wire.body("chat", "a")).encode()
    one.engine.answer = lambda seen: [wire.answer(body, content_type=kind)]
    answer = await one.ask("chat", "x", stream=stream)
    assert (answer.status, answer.header("content-type"), answer.body) == (200, kind, body)
    one.engine.answer = lambda seen: wire.stream(stream_of("chat", ["a"]))
    answer = await one.ask("chat", "x")
    assert answer.header("content-type") == "text/event-stream; charset=utf-8" and answer.clean


SIZES = [812, *(8192 + by for by in (-2, -1, 0, 1, 2)), *(65536 + by for by in (-2, -1, 0, 1, 2))]


def body_of(size: int, fill: str = "p") -> bytes:
    """A request of exactly that many bytes; the gateway adds and strips fields, so the engine's has another length."""
    empty = json.dumps({"model": "m", "messages": [{"role": "user", "content": ""}], "rid": "r", "unknown": 1})
    return empty.replace('"content": ""', f'"content": "{fill * (size - len(empty))}"').encode()


async def test_c009_a_body_in_three_segments_arrives_with_its_own_length(one: Stage) -> None:
    """1,000 times, half of them streamed answers, every third with `Expect: 100-continue`."""
    letters = "abcdefghij"

    async def client(number: int) -> list[bool]:
        good = []
        async with await connect(one.gateway.port) as connection:
            for at in range(100):
                size, expects = SIZES[(number + at) % len(SIZES)], at % 3 == 0
                body = body_of(size, letters[number])
                extra = [("expect", "100-continue")] if expects else []
                message = wire.request(CHAT, body, extra=extra)
                head = message[: -len(body)]
                await connection.send(head)
                if expects:
                    await connection.read_until(b"100 Continue\r\n\r\n")
                third = len(body) // 3
                for piece in (body[:third], body[third : 2 * third], body[2 * third :]):
                    await connection.send(piece)
                answer = await connection.response()
                sent = json.loads(body)["messages"][0]["content"]
                good.append(answer.status == 200 and answer.clean and sent.encode() in answer.body)
                connection.pieces.clear()
        return good

    found = await asyncio.gather(*(client(number) for number in range(10)))
    assert sum(map(sum, found)) == 1000
    for seen in one.engine.seen:
        assert seen.header("content-length") == str(len(seen.body)) and seen.header("expect") is None
        assert set(seen.json) == {"model", "messages", "cache_salt", "max_tokens"} and not seen.leftover


# C010: fuzzed bodies are T16, deep and huge ones also T17.

BAD_BODIES: dict[str, bytes] = {
    "list": b"[]", "text": b'"x"', "open": b"{", "null": b"null", "empty": b"", "number": b"1", "model is a number": b'{"model":1,"messages":[]}', "no messages": b'{"model":"m"}',
    "no model": b'{"messages":[]}', "messages is text": b'{"model":"m","messages":"x"}', "messages is null": b'{"model":"m","messages":null}', "bad UTF-8": b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
    "bad UTF-8 in a key": b'{"\xc3":1,"model":"m","messages":[]}', "bad UTF-8 in a skipped field": b'{"model":"m","messages":[],"user":"\xf0\x9f"}', "deep": b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "5,000 digits": b'{"model":"m","messages":[],"max_tokens":' + b"9" * 5000 + b"}", "NaN": b'{"model":"m","messages":[],"temperature":NaN}', "Infinity": b'{"model":"m","messages":[],"temperature":-Infinity}',
    "lone surrogate": b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', "lone surrogate as model": b'{"model":"\\udfff","messages":[]}', "BOM": b'\xef\xbb\xbf{"model":"m","messages":[]}',
    "trailing comma": b'{"model":"m","messages":[],}', "comment": b'{"model":"m"/*x*/,"messages":[]}', "two documents": b'{"model":"m","messages":[]}{}', "stream is text": b'{"model":"m","messages":[],"stream":"true"}',
    "stream is a number": b'{"model":"m","messages":[],"stream":1}', "n is a fraction": b'{"model":"m","messages":[],"n":1.5}', "n is true": b'{"model":"m","messages":[],"n":true}', "stream_options is a list": b'{"model":"m","messages":[],"stream":true,"stream_options":[]}',
    "control character": b'{"model":"m","messages":[{"role":"user","content":"a\nb"}]}', "leading zero": b'{"model":"m","messages":[],"seed":01}', "single quotes": b"{'model':'m','messages':[]}",
}  # fmt: skip


@pytest.mark.parametrize("route", ["chat", "messages"])
async def test_c010_a_bad_body_is_a_400_with_an_id_and_stops_nobody(one: Stage, route: str) -> None:
    for name, body in BAD_BODIES.items():
        began = time.monotonic()
        answer, probe = await asyncio.gather(
            exchange(one.gateway.port, wire.request(PATHS[route], body)), one.gateway.get("/livez")
        )
        assert (answer.status, probe.status) == (400, 200), name
        assert error_of(answer)["type"] == "invalid_request_error" and answer.header("x-request-id"), name
        assert time.monotonic() - began < 0.5, name  # of a client that shares its process with the engine
    assert one.engine.seen == []


async def test_c010_two_waves_of_good_requests_are_as_good_as_direct_ones(one: Stage) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("chat", wire.request_body("chat", "x")), ("chat", wire.request_body("chat", "x", stream=True)), ("completions", {"model": "m", "prompt": ["a", "b"]}), ("completions", {"model": "m", "prompt": [1, 2, 3]}),
        ("embeddings", {"model": "emb", "input": ["a", "b"]}), ("embeddings", {"model": "emb", "input": "a"}), ("embeddings", {"model": "emb", "input": [[1, 2], [3]]}), ("messages", wire.request_body("messages", "x")),
        ("chat", wire.request_body("chat", "x", n=None, max_tokens=None, stop=None) | {"stream": None}), ("chat", {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}),
    ]  # fmt: skip

    async def wave(number: int, port: int) -> list[int]:
        found = []
        async with await connect(port) as client:
            for at in range(50):
                route, body = bodies[(number + at) % len(bodies)]
                await client.send(wire.request(PATHS[route], body))
                found.append((await client.response()).status)
        return found

    for port in (one.gateway.port, one.gateway.port, one.engine.port):
        statuses = await asyncio.gather(*(wave(number, port) for number in range(10)))
        assert Counter(status for group in statuses for status in group) == {200: 500}
        if port == one.gateway.port:
            for body in list(BAD_BODIES.values())[:10]:
                await exchange(port, wire.request(CHAT, body))
    direct = 500
    one.engine.seen[-direct:] = []  # nobody's but ours: C2 is about the gateway


# C011: 8 MB prompts, 1-byte chunks and endless bodies are T17.


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("chunked", [False, True])
async def test_c011_the_cap_is_exact(one: Stage, chunked: bool, by: int) -> None:
    body = body_of(16 * MIB + by)
    before = rss_bytes(one.gateway.pid)
    message = wire.request(CHAT, body)
    if chunked:
        head = message[: -len(body)].replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
        pieces = (wire.chunk(body[at : at + MIB]) for at in range(0, len(body), MIB))
        message = head + b"".join(pieces) + wire.LAST_CHUNK
    async with await connect(one.gateway.port) as client:
        sending = asyncio.create_task(client.send(message))
        answer = await client.response(20)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    if by:
        assert (answer.status, error_of(answer)["code"], len(one.engine.seen)) == (413, "request_too_large", 0)
        assert rss_bytes(one.gateway.pid) - before < 32 * MIB
    else:
        assert answer.status == 200 and len(one.engine.seen[-1].body) > 16 * MIB - 100


@pytest.mark.parametrize("framing", ["length", "chunked", "closed"])
@pytest.mark.parametrize(("status", "told"), [(400, 400), (500, 500), (422, 422)])
async def test_c011_little_of_a_giant_error_is_read(one: Stage, status: int, told: int, framing: str) -> None:
    """114 MB of it, JSON: what is kept is bounded, the engine is hung up on, and probes are answered meanwhile."""
    piece, count = b'{"error":{"message":"' + b"x" * MIB, 114

    def giant(seen: Seen) -> Iterator[Step]:
        extra = {
            "length": [("content-length", str(len(piece) * count))],
            "chunked": [("transfer-encoding", "chunked")],
            "closed": [],
        }
        yield wire.head(status, extra=extra[framing])
        for _ in range(count):
            yield wire.chunk(piece) if framing == "chunked" else piece
        yield FIN

    one.engine.answer = giant
    before = rss_bytes(one.gateway.pid)
    began = time.monotonic()
    answer, probe = await asyncio.gather(one.ask("chat", "x", stream=True), one.gateway.get("/livez"))
    assert (answer.status, probe.status) == (told, 200) and time.monotonic() - began < 1.0
    assert len(answer.body) < 1000 and error_of(answer)["message"]
    assert rss_bytes(one.gateway.pid) - before < 32 * MIB
    await until(lambda: bool(one.engine.aborted()), 1, "the engine goes on")
    assert one.engine.seen[-1].written < 40 * MIB  # what the kernels' buffers took
