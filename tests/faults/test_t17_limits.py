"""T17: whatever is too big, too deep or endless gets its 4xx within a second, and costs no memory (faults.md 4; C011, C096)."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.raw_client import connect, exchange
from tests.kit.sockets import rss_bytes
from tests.kit.stage import Stage, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

MIB = 1024 * 1024
PATH = "/v1/chat/completions"
RSS_MIB = 32
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: forebay\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("t17"), timeouts={"scale": 1}) as made:
        for _ in range(3):  # warm, so that the first buffers do not count as growth
            await made.ask("chat", "x" * (MIB // 2))
        yield made


def repeated(piece: bytes, times: int) -> Iterator[bytes]:
    for _ in range(times):
        yield piece


def endless_chunks() -> Iterator[bytes]:
    yield CHUNKED
    yield from repeated(wire.chunk(b"x" * 65536), 1000)


def tiny_chunks() -> Iterator[bytes]:
    yield CHUNKED
    yield from repeated(b"1\r\nx\r\n" * 8000, 400)


def endless_extension() -> Iterator[bytes]:
    yield CHUNKED + b"5;"
    yield from repeated(b"a" * 65536, 400)


def endless_size() -> Iterator[bytes]:
    yield CHUNKED
    yield from repeated(b"0" * 65536, 400)


def trailers() -> Iterator[bytes]:
    yield CHUNKED + wire.chunk(b"{}") + b"0\r\n"
    yield from repeated(b"x-trailer: 1\r\n" * 1000, 20)


def endless_trailer() -> Iterator[bytes]:
    yield CHUNKED + wire.chunk(b"{}") + b"0\r\nx: "
    yield from repeated(b"a" * 65536, 400)


def endless_field() -> Iterator[bytes]:
    yield HEAD + b"x: "
    yield from repeated(b"a" * 65536, 400)


def endless_fields() -> Iterator[bytes]:
    yield HEAD
    yield from repeated(b"x: 1\r\n" * 1000, 400)


def endless_target() -> Iterator[bytes]:
    yield b"POST /"
    yield from repeated(b"a" * 65536, 400)


def endless_method() -> Iterator[bytes]:
    yield from repeated(b"A" * 65536, 100)


def declared(size: int) -> Callable[[], Iterator[bytes]]:
    def parts() -> Iterator[bytes]:
        yield HEAD + b"content-length: %d\r\n\r\n" % size
        yield from repeated(b"x" * 65536, 40)

    parts.__name__ = f"declared_{size}"
    return parts


ENDLESS: list[tuple[Callable[[], Iterator[bytes]], int, str]] = [
    (declared(10 * 1024**3), 413, "body_too_large"),
    (declared(16 * MIB + 1), 413, "body_too_large"),
    (endless_chunks, 413, "body_too_large"),
    (tiny_chunks, 400, "chunk_overhead"),
    (endless_extension, 400, "chunk_overhead"),
    (endless_size, 400, "chunk_overhead"),
    (trailers, 431, "head_too_large"),
    (endless_trailer, 400, "chunk_overhead"),
    (endless_field, 431, "head_too_large"),
    (endless_fields, 431, "head_too_large"),
    (endless_target, 414, "target_too_long"),
    (endless_method, 400, "malformed_http"),
]


@pytest.mark.parametrize(("parts", "status", "reason"), ENDLESS, ids=[parts.__name__ for parts, _, _ in ENDLESS])
async def test_c096_an_endless_message_is_refused_as_soon_as_it_is_too_long(
    one: Stage, parts: Callable[[], Iterator[bytes]], status: int, reason: str
) -> None:
    before = rss_bytes(one.gateway.pid)
    async with one.holding(), await connect(one.gateway.port) as client:
        one.reset()
        sending = asyncio.create_task(send_all(client.send, parts()))
        response = await client.response(5)
        told_at = time.monotonic()
        assert (response.status, response.header("x-forebay-reason"), response.header("connection")) == (
            status,
            reason,
            "close",
        )
        await client.read_to_end(4)
        assert time.monotonic() - told_at < 3.5
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert rss_bytes(one.gateway.pid) - before <= RSS_MIB * MIB
        assert one.engine.seen == []


async def send_all(send: Callable[[bytes], object], parts: Iterator[bytes]) -> None:
    for part in parts:
        await send(part)  # type: ignore[misc]


@pytest.mark.parametrize(
    "parts", [endless_chunks, tiny_chunks, endless_field, endless_target], ids=lambda one: one.__name__
)
async def test_a_too_long_message_that_is_dripped_is_refused_all_the_same(
    one: Stage, parts: Callable[[], Iterator[bytes]]
) -> None:
    """Limits count wire bytes, not pieces: here they come in segments of 1,000 bytes (aiohttp CVE-2026-54277)."""
    data = b"".join(part for _, part in zip(range(8 if parts is not endless_chunks else 270), parts(), strict=False))

    async def drip() -> None:
        async with await connect(one.gateway.port) as client:
            sending = asyncio.create_task(
                client.send_slowly(data, step=1000 if parts is not endless_chunks else 60_000)
            )
            assert (await client.response(20)).status in (400, 413, 414, 431)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async with one.holding():
        await drip()


def deep(levels: int, inside: str = "") -> bytes:
    nested = "[" * levels + "]" * levels
    if inside == "tools":
        return b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":' + nested.encode() + b"}"
    return b'{"model":"m","messages":' + nested.encode() + b"}"


BODIES: list[tuple[str, bytes, int, str]] = [
    ("100k deep", deep(100_000), 400, "json_too_deep"),
    ("100k deep in tools", deep(100_000, "tools"), 400, "json_too_deep"),
    ("100k open brackets", b'{"model":"m","messages":' + b"[" * 100_000, 400, ""),
    ("100k deep objects", b'{"model":"m","x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, 400, "json_too_deep"),
    ("n huge", json.dumps(wire.request_body("chat", "x", n=100_000)).encode(), 400, "invalid_parameter"),
    ("n beyond 64 bit", b'{"model":"m","messages":[{"role":"user","content":"x"}],"n":' + b"9" * 5000 + b"}", 400, "invalid_parameter"),
    ("max_tokens beyond 64 bit", b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":' + b"9" * 5000 + b"}", 400, "invalid_parameter"),
    ("best_of huge", json.dumps(wire.request_body("completions", "x", best_of=9)).encode(), 400, "invalid_parameter"),
    ("top_logprobs huge", json.dumps(wire.request_body("chat", "x", top_logprobs=21)).encode(), 400, "invalid_parameter"),
    ("17 stops", json.dumps(wire.request_body("chat", "x", stop=["s"] * 17)).encode(), 400, "invalid_parameter"),
    ("logit_bias of 1,025", json.dumps(wire.request_body("chat", "x", logit_bias={str(at): 1 for at in range(1025)})).encode(), 400, "invalid_parameter"),
    ("tools of 300 KiB", json.dumps(wire.request_body("chat", "x", tools=[{"a": "x" * 300_000}])).encode(), 400, "invalid_parameter"),
    ("model of 257 letters", json.dumps(wire.request_body("chat", "x", model="m" * 257)).encode(), 400, "invalid_parameter"),
    ("model empty", json.dumps(wire.request_body("chat", "x", model="")).encode(), 400, "invalid_parameter"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "reason"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
async def test_a_body_beyond_its_limits_is_a_400_with_a_reason(
    one: Stage, body: bytes, status: int, reason: str
) -> None:
    before = rss_bytes(one.gateway.pid)
    path = "/v1/completions" if b"best_of" in body else PATH
    async with one.holding():
        one.reset()
        began = time.monotonic()
        response = await exchange(one.gateway.port, wire.request(path, body))
        assert time.monotonic() - began < 1
        assert response.status == status and response.header("x-forebay-reason") == (
            reason or response.header("x-forebay-reason")
        )
        assert json.loads(response.body)["error"]["type"] == "invalid_request_error"
        assert rss_bytes(one.gateway.pid) - before <= RSS_MIB * MIB and one.engine.seen == []


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip"])
async def test_c096_a_bomb_is_refused_unopened(one: Stage, coding: str) -> None:
    bomb = gzip.compress(bytes(8 * MIB))
    before = rss_bytes(one.gateway.pid)
    async with one.holding():
        one.reset()
        response = await exchange(one.gateway.port, wire.request(PATH, bomb, extra=[("content-encoding", coding)]))
        assert (response.status, response.header("x-forebay-reason")) == (415, "content_coding")
        assert rss_bytes(one.gateway.pid) - before <= RSS_MIB * MIB and one.engine.seen == []


async def test_a_large_prompt_within_the_limit_passes(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"m": {"context_tokens": 10_000_000}}
    directory = tmp_path_factory.mktemp("t17-large")
    async with stage(directory, models=models, timeouts={"scale": 1}) as large, large.holding():
        for size in (MIB, 8 * MIB, 15 * MIB):
            answer = await large.ask("chat", "x" * size, timeout_s=20)
            assert answer.status == 200
            assert len(wire.prompt_of(large.engine.seen[-1].json)) == size


async def test_the_gateway_serves_on_after_all_of_it(one: Stage) -> None:
    one.reset()
    async with one.holding():
        assert (await one.ask("chat", "well")).status == 200
