"""Error answers, error frames and model lists, as bytes and as the two official SDKs take them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from gateway.describe import client_request_id
from gateway.dialects.answers import error_answer, error_frame, model_answer, models_answer
from gateway.dialects.routes import ROUTES, Dialect, Route
from gateway.errors import LOG_ONLY, ROWS, GatewayError
from policies.decisions import Reason

BY_NAME: dict[str, Route] = {route.name: route for route in ROUTES}
ANSWERED = sorted(set(Reason) - LOG_ONLY)


def headers_of(error: GatewayError, dialect: Dialect = Dialect.OPENAI) -> dict[bytes, bytes]:
    return dict(error_answer(error, dialect, "req-1").headers)


@pytest.mark.parametrize("reason", ANSWERED)
def test_an_openai_error_has_its_four_fields(reason: Reason) -> None:
    answer = error_answer(GatewayError(reason, "no", param="model"), Dialect.OPENAI, "req-1")
    row = ROWS[reason]
    assert answer.status == row.status
    assert json.loads(answer.body) == {
        "error": {"message": "no", "type": row.type, "param": "model", "code": row.code or reason.value}
    }
    assert json.loads(error_answer(GatewayError(reason), Dialect.OPENAI, "r").body)["error"]["param"] is None


ANTHROPIC_TYPES = {
    **dict.fromkeys((400, 405, 408, 414, 415, 417, 421, 422, 431), "invalid_request_error"),
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error",
    **dict.fromkeys((500, 501, 502, 503, 505), "api_error"),
}  # fmt: skip


@pytest.mark.parametrize("reason", ANSWERED)
def test_an_anthropic_error_has_the_type_of_its_status(reason: Reason) -> None:
    answer = error_answer(GatewayError(reason, "no"), Dialect.ANTHROPIC, "req-1")
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": ANTHROPIC_TYPES[answer.status], "message": "no"},
        "request_id": "req-1",
    }
    assert answer.status == (ROWS[reason].anthropic_status or ROWS[reason].status)


@pytest.mark.parametrize("reason", ANSWERED)
@pytest.mark.parametrize("dialect", Dialect)
def test_every_error_says_who_it_is_why_and_whether_to_retry(reason: Reason, dialect: Dialect) -> None:
    headers = headers_of(GatewayError(reason), dialect)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == b"req-1"
    assert headers.get(b"request-id") == (b"req-1" if dialect is Dialect.ANTHROPIC else None)
    assert headers[b"x-forebay-reason"] == reason.value.encode()
    retry = ROWS[reason].retry is not None
    assert headers[b"x-should-retry"] == (b"true" if retry else b"false")
    assert (b"retry-after" in headers) is (b"retry-after-ms" in headers) is retry
    assert b"allow" not in headers


@pytest.mark.parametrize(
    ("reason", "wish", "seconds"),
    [
        (Reason.OVERLOADED, None, 1), (Reason.OVERLOADED, 0.2, 1), (Reason.OVERLOADED, 12.1, 13), (Reason.OVERLOADED, 999, 60),
        (Reason.QUEUE_TIMEOUT, 59.5, 60), (Reason.BACKEND_SATURATED, 45, 30), (Reason.NO_ENDPOINT, 45, 1), (Reason.DRAINING, None, 1),
        (Reason.OVERLOADED, float("inf"), 60), (Reason.OVERLOADED, float("nan"), 1), (Reason.OVERLOADED, -1, 1),
    ],
)  # fmt: skip
def test_retry_after_is_whole_seconds_in_the_bounds_of_the_row(
    reason: Reason, wish: float | None, seconds: int
) -> None:
    assert headers_of(GatewayError(reason, retry_after_s=wish))[b"retry-after"] == b"%d" % seconds


def test_retry_after_ms_is_spread_over_a_quarter_and_never_earlier() -> None:
    values = [int(headers_of(GatewayError(Reason.OVERLOADED, retry_after_s=4))[b"retry-after-ms"]) for _ in range(400)]
    assert min(values) >= 4000
    assert max(values) <= 5000
    assert max(values) - min(values) > 500


def test_the_wait_for_a_limit_is_told_exactly_and_beyond_a_minute_not_at_all() -> None:
    headers = headers_of(GatewayError(Reason.QUOTA_REQUESTS, retry_after_s=0.6))
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"1", b"600")
    headers = headers_of(GatewayError(Reason.QUOTA_TOKENS, retry_after_s=84.0))
    assert headers[b"x-should-retry"] == b"false"
    assert b"retry-after" not in headers


def test_a_reason_without_retry_ignores_a_wish() -> None:
    headers = headers_of(GatewayError(Reason.INTERNAL, retry_after_s=3))
    assert headers[b"x-should-retry"] == b"false"
    assert b"retry-after" not in headers


def test_405_names_the_method() -> None:
    assert headers_of(GatewayError(Reason.METHOD, allow="POST"))[b"allow"] == b"POST"


NASTY = [
    "".join(map(chr, range(256))),
    "a\r\nset-cookie: x",
    "\u2028\u2029",
    "\x00",
    '","code":"x"}',
    "\U0001f600",
    "</script>",
]


@pytest.mark.parametrize("name", NASTY)
def test_c097_a_clients_words_are_encoded_in_bodies_and_never_in_headers(name: str) -> None:
    error = GatewayError(Reason.MODEL_UNKNOWN, f"No model {name}.", param=name)
    for dialect in Dialect:
        answer = error_answer(error, dialect, "req-1")
        assert json.loads(answer.body)["error"]["message"] == f"No model {name}."
        assert all(0x20 <= byte <= 0x7E for key, value in answer.headers for byte in key + value)
        assert not any(byte < 0x20 for byte in answer.body)
    for route in ("chat", "responses", "messages"):
        frame = error_frame(BY_NAME[route], error, "req-1", 3)
        lines = frame.decode().split("\n")
        assert lines[-2:] == ["", ""]
        assert len(lines) == (3 if route == "chat" else 4)
        assert "\r" not in frame.decode() and "\x00" not in frame.decode()
    assert json.loads(models_answer(Dialect.OPENAI, [name]))["data"][0]["id"] == name
    assert json.loads(model_answer(Dialect.ANTHROPIC, name))["id"] == name


ALLOWED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"


@pytest.mark.parametrize("byte", range(256))
def test_c097_a_request_id_is_echoed_only_if_every_byte_is_harmless(byte: int) -> None:
    for sent in (b"a" + bytes([byte]) + b"z", bytes([byte]), b"a" + bytes([byte])):
        assert client_request_id(sent) == (sent.decode() if byte in ALLOWED else "")


@pytest.mark.parametrize("sent", [b"", b"a" * 129, b"a\n", b"a b", b"a,b"])
def test_any_other_request_id_is_ours(sent: bytes) -> None:
    assert client_request_id(sent) == ""
    assert client_request_id(b"a" * 128) == "a" * 128


def test_a_chat_frame_is_one_data_line() -> None:
    frame = error_frame(BY_NAME["chat"], GatewayError(Reason.BACKEND_STALL), "r", 0)
    assert frame.startswith(b"data: {") and frame.endswith(b"}\n\n")
    inner = {"message": "The engine stopped sending.", "type": "server_error", "param": None, "code": "backend_stall"}
    assert json.loads(frame[6:]) == {"error": inner}
    assert frame == error_frame(BY_NAME["completions"], GatewayError(Reason.BACKEND_STALL), "r", 0)


def test_a_responses_frame_says_it_twice_and_counts_on() -> None:
    frame = error_frame(BY_NAME["responses"], GatewayError(Reason.GATEWAY_SHUTDOWN), "r", 17)
    assert frame.startswith(b"event: error\ndata: {")
    data = json.loads(frame.split(b"data: ")[1])
    assert (data["type"], data["code"], data["param"], data["sequence_number"]) == (
        "error",
        "gateway_shutdown",
        None,
        17,
    )
    assert data["error"]["code"] == "gateway_shutdown" and data["message"] == data["error"]["message"]


def test_a_messages_frame_is_an_error_event_with_the_request_id() -> None:
    frame = error_frame(BY_NAME["messages"], GatewayError(Reason.OVERLOADED), "req-9", 0)
    assert frame.startswith(b"event: error\ndata: {")
    data = json.loads(frame.split(b"data: ")[1])
    assert data["error"] == {"type": "overloaded_error", "message": "The service is overloaded."}
    assert (data["type"], data["request_id"]) == ("error", "req-9")


# ---- the official SDKs, over real sockets


class Served:
    """A server that answers each request with the same bytes and closes, without tidying up."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.requests = 0
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        await reader.readexactly(length)
        self.requests += 1
        writer.write(self.raw)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(raw: bytes) -> AsyncIterator[Served]:
    served = Served(raw)
    server = await asyncio.start_server(served.handle, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        await server.wait_closed()


def answer_bytes(error: GatewayError, dialect: Dialect) -> bytes:
    answer = error_answer(error, dialect, "req-1")
    head = b"".join(b"%s: %s\r\n" % header for header in answer.headers)
    return b"HTTP/1.1 %d X\r\n%scontent-length: %d\r\n\r\n%s" % (answer.status, head, len(answer.body), answer.body)


def stream_bytes(*events: bytes, last_chunk: bool = False) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return head + chunks + (b"0\r\n\r\n" if last_chunk else b"")


def json_bytes(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


USER: list[Any] = [{"role": "user", "content": "hi"}]


async def read_chat(url: str, retries: int = 0) -> list[Any]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=retries) as client:
        return [event async for event in await client.chat.completions.create(model="m", messages=USER, stream=True)]


async def read_responses(url: str, retries: int = 0) -> list[Any]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=retries) as client:
        return [event async for event in await client.responses.create(model="m", input="hi", stream=True)]


async def read_messages(url: str, retries: int = 0) -> list[Any]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=retries) as client:
        return [
            event async for event in await client.messages.create(model="m", max_tokens=9, messages=USER, stream=True)
        ]


Reader = Callable[..., Any]
READERS: dict[str, Reader] = {"chat": read_chat, "responses": read_responses, "messages": read_messages}
GOOD: dict[str, bytes] = {
    "chat": b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
    "responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a","item_id":"i","output_index":0,"content_index":0,"sequence_number":1,"logprobs":[]}\n\n',
    "messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}\n\n',
}  # fmt: skip


@pytest.mark.parametrize(
    "reason", [Reason.BACKEND_STALL, Reason.STREAM_TIMEOUT, Reason.GATEWAY_SHUTDOWN, Reason.OVERLOADED]
)
@pytest.mark.parametrize("last_chunk", [False, True])
@pytest.mark.parametrize("route", READERS)
async def test_the_sdk_raises_at_a_frame(route: str, last_chunk: bool, reason: Reason) -> None:
    frame = error_frame(BY_NAME[route], GatewayError(reason), "req-1", 2)
    async with serving(stream_bytes(GOOD[route], frame, last_chunk=last_chunk)) as served:
        with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
            await READERS[route](served.url)
    assert ROWS[reason].message in str(caught.value)


@pytest.mark.parametrize("route", READERS)
async def test_the_sdk_does_not_raise_without_a_frame(route: str) -> None:
    async with serving(stream_bytes(GOOD[route], last_chunk=True)) as served:
        assert len(await READERS[route](served.url)) == 1


SDK_ERRORS: list[tuple[Reason, type[Exception], type[Exception]]] = [
    (Reason.INVALID_JSON, openai.BadRequestError, anthropic.BadRequestError),
    (Reason.BAD_KEY, openai.AuthenticationError, anthropic.AuthenticationError),
    (Reason.ROUTE_FORBIDDEN, openai.PermissionDeniedError, anthropic.PermissionDeniedError),
    (Reason.MODEL_UNKNOWN, openai.NotFoundError, anthropic.NotFoundError),
    (Reason.BODY_TOO_LARGE, openai.APIStatusError, anthropic.APIStatusError),
    (Reason.OVERLOADED, openai.InternalServerError, anthropic.InternalServerError),
    (Reason.INTERNAL, openai.InternalServerError, anthropic.InternalServerError),
    (Reason.DEADLINE_EXCEEDED, openai.InternalServerError, anthropic.InternalServerError),
]


@pytest.mark.parametrize(("reason", "of_openai", "of_anthropic"), SDK_ERRORS)
async def test_the_sdk_raises_its_own_type_for_an_answer(
    reason: Reason, of_openai: type[Exception], of_anthropic: type[Exception]
) -> None:
    for route, expected in (("chat", of_openai), ("responses", of_openai), ("messages", of_anthropic)):
        raw = answer_bytes(GatewayError(reason, "in words"), BY_NAME[route].dialect)
        async with serving(raw) as served:
            with pytest.raises(expected) as caught:
                await READERS[route](served.url)
        assert "in words" in str(caught.value)
        assert getattr(caught.value, "request_id", "req-1") == "req-1"


@pytest.mark.parametrize("route", ["chat", "messages"])
async def test_the_sdk_comes_back_after_the_time_it_was_told(route: str) -> None:
    async with serving(answer_bytes(GatewayError(Reason.OVERLOADED), BY_NAME[route].dialect)) as served:
        started = asyncio.get_running_loop().time()
        with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)):
            await READERS[route](served.url, 1)
        assert served.requests == 2
        assert 1.0 <= asyncio.get_running_loop().time() - started < 10


@pytest.mark.parametrize("route", ["chat", "messages"])
async def test_the_sdk_does_not_come_back_where_it_was_told_not_to(route: str) -> None:
    async with serving(answer_bytes(GatewayError(Reason.INTERNAL), BY_NAME[route].dialect)) as served:
        with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)):
            await READERS[route](served.url, 2)
        assert served.requests == 1


async def test_the_sdks_list_models() -> None:
    names = ["llama-70b", "org/model"]
    async with (
        serving(json_bytes(models_answer(Dialect.OPENAI, names))) as served,
        openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == names
    async with (
        serving(json_bytes(models_answer(Dialect.ANTHROPIC, names))) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client_,
    ):
        assert [model.id async for model in client_.models.list()] == names


async def test_the_sdks_retrieve_a_model() -> None:
    async with (
        serving(json_bytes(model_answer(Dialect.OPENAI, "org/m"))) as served,
        openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        assert (await client.models.retrieve("org/m")).id == "org/m"
    async with (
        serving(json_bytes(model_answer(Dialect.ANTHROPIC, "org/m"))) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client_,
    ):
        assert (await client_.models.retrieve("org/m")).created_at.year == 1970


def test_an_empty_list_of_models_is_a_list() -> None:
    assert json.loads(models_answer(Dialect.OPENAI, [])) == {"object": "list", "data": []}
    assert json.loads(models_answer(Dialect.ANTHROPIC, []))["first_id"] is None
