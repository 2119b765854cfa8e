"""Heads and habits of clients that are allowed, or not, and seldom seen."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.http_reader import Response
from tests.kit.raw_client import connect, exchange
from tests.kit.script_engine import Wait
from tests.kit.stage import PATHS, Stage, error_of, stage
from tests.kit.tenants import bearer, secret, tenant

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    models = {"m": {"max_output_tokens": 100}}
    async with stage(tmp_path_factory.mktemp("odd"), tenants=[tenant("acme")], models=models) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def one(house: Stage) -> AsyncIterator[Stage]:
    house.reset()
    async with house.holding():
        yield house
        house.reset()


KEY = f"x-api-key: {secret('acme')}"


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", "host: kit", *fields, "", "")).encode()


async def ask(one: Stage, line: str, *fields: str, body: bytes = b"") -> Response:
    return await exchange(one.gateway.port, head(line, *fields) + body)


async def chat(one: Stage, *fields: str, kind: str = "content-type: application/json") -> Response:
    """A good request with these header fields."""
    body = json.dumps(wire.request_body("chat", "x")).encode()
    given = (kind, f"content-length: {len(body)}", *fields, *(() if "x-api-key" in "".join(fields) else (KEY,)))
    return await ask(one, f"POST {PATHS['chat']}", *given, body=body)


async def test_what_comes_while_a_stream_runs_makes_it_the_last_answer_of_its_connection(one: Stage) -> None:
    first, *others = wire.stream(wire.events("chat", ("one", "two")))
    one.engine.answer = lambda seen: [first, others[0], Wait(0.2), *others[1:]]
    async with await one.begin("chat", "x", stream=True, extra=[bearer("acme")]) as client:
        await client.head()
        await client.send(one.message("chat", "thrown away", extra=[bearer("acme")]))
        assert (await client.response()).end == "chunked"
        await client.read_to_end(1.0)  # 7.5 s is how long a connection may be idle
        assert (client.end, len(client.reader.done), len(one.engine.seen)) == ("fin", 1, 1)


@pytest.mark.parametrize("behind", [" ", "\t", " \t "])
async def test_space_behind_a_value_is_not_of_it(one: Stage, behind: str) -> None:
    told = await chat(one, f"x-request-id: mine{behind}", f"{KEY}{behind}", f"content-encoding: identity{behind}")
    assert (told.status, told.header("x-request-id")) == (200, "mine")
    assert (await chat(one, kind=f"content-type: application/json{behind}")).status == 200
    told = await chat(one, f"expect: 100-continue{behind}")
    assert (told.status, told.interim) == (200, [100])
    one.engine.answer = lambda seen: [Wait(5)]
    assert error_of(await chat(one, f"x-forebay-timeout-ms: 100{behind}"))["code"] == "deadline_exceeded"


async def test_a_second_coding_counts_too(one: Stage) -> None:
    told = await chat(one, "content-encoding: identity", "content-encoding: gzip")
    assert (told.status, error_of(told)["code"]) == (415, "unsupported_encoding")


async def test_a_get_whose_head_is_known_carries_no_body_either(one: Stage) -> None:
    async with await connect(one.gateway.port) as client:
        for length, status in ((0, 200), (0, 200), (5, 400)):
            await client.send(head("GET /v1/models", KEY, f"content-length: {length}") + b"x" * length)
            assert (await client.response()).status == status


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /nowhere", 404),
        ("GET /v1/messages", 405),
        ("POST /v1/models", 405),
        ("GET /livez", 200),
        ("GET /readyz", 200),
    ],
)
async def test_every_answer_has_the_id_that_the_client_gave(one: Stage, line: str, status: int) -> None:
    told = await ask(one, line, "x-request-id: mine")
    assert (told.status, told.header("x-request-id")) == (status, "mine")
    told = await ask(one, line)
    assert told.header("x-request-id") == told.header("x-forebay-request-id") != ""


@pytest.mark.parametrize(
    ("path", "key", "status", "kind"),
    [("", "x-api-key: nobody", 401, "authentication_error"), ("/nobody", KEY, 404, "not_found_error")],
)
async def test_a_refusal_about_models_is_told_in_the_dialect_of_the_list(
    one: Stage, path: str, key: str, status: int, kind: str
) -> None:
    told = await ask(one, f"GET /v1/models{path}", key, "anthropic-version: 2023-06-01", "x-request-id: mine")
    assert (told.status, told.header("request-id")) == (status, "mine")
    answer = json.loads(told.body)
    assert (answer["type"], answer["error"]["type"], answer["request_id"]) == ("error", kind, "mine")
    openai = await ask(one, f"GET /v1/models{path}", key)
    assert (openai.header("request-id"), error_of(openai)["type"]) == (None, kind)


@pytest.mark.parametrize("trace", [f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01"])
async def test_a_trace_of_zeros_is_none(one: Stage, trace: str) -> None:
    assert (await chat(one, f"traceparent: {trace}", "tracestate: a=b")).status == 200
    sent = one.engine.seen[-1]
    assert sent.header("tracestate") is None
    assert str(sent.header("traceparent"))[3:35] not in ("0" * 32, "a" * 32)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_completion_tokens": 500, "max_tokens": 50, "nobody_knows": 1}, "nobody_knows,max_completion_tokens"),
        ({"max_tokens": 100}, None),
        ({}, None),
    ],
)
async def test_a_client_hears_that_its_cap_was_lowered(one: Stage, asked: dict[str, int], told: str | None) -> None:
    for stream in (False, True):
        answer = await one.ask("chat", "x", stream=stream, extra=[bearer("acme")], **asked)
        assert (answer.status, answer.header("x-forebay-stripped")) == (200, told)
        sent = one.engine.seen[-1].json
        assert max(sent.get(name, 0) for name in ("max_tokens", "max_completion_tokens")) == 100
