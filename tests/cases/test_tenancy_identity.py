"""Keys on real sockets: rows 23, 32 and 38 of the tenancy table, cases C100, C102 and C103 as far as keys go."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.http_reader import Response
from tests.kit.processes import until
from tests.kit.raw_client import connect, exchange
from tests.kit.stage import Stage, error_of, stage
from tests.kit.tenants import bearer, key, secret, tenant

SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}
TENANTS = [
    tenant(
        "acme",
        key("acme"),
        key("low", class_ceiling="standard"),
        key("blocked", state="blocked"),
        key("late", expires="2026-01-01T00:00:00Z"),
        models=[{"name": "m", "aliases": ["gpt-4o"]}],
        **{"class": "interactive", "class_ceiling": "critical"},
    ),
    tenant("beta", models=[{"name": "emb"}], allow={"routes": ["tokenize"], "parameters": []}),
    tenant("gone", state="disabled"),
    tenant("third"),
]
Fields = Sequence[tuple[str, str]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Addresses of clients are what `x-forwarded-for` says, so that each test has some of its own."""
    directory = tmp_path_factory.mktemp("keys")
    listen = {"trusted_proxies": ["127.0.0.0/8"]}
    async with stage(directory, tenants=TENANTS, isolation=SALT, listen=listen, timeouts={"scale": 1}) as one:
        yield one


pytestmark = pytest.mark.asyncio(loop_scope="module")
_addresses = iter(f"198.51.{high}.{low}" for high in range(256) for low in range(1, 255))


def somebody() -> tuple[str, str]:
    return "x-forwarded-for", next(_addresses)


async def send(made: Stage, fields: Fields, *, route: str = "chat", text: str = "hi", **more: Any) -> Response:
    if not any(name == "x-forwarded-for" for name, _ in fields):
        fields = [*fields, somebody()]
    return await made.ask(route, text, extra=fields, **more)


async def get(made: Stage, path: str, *fields: tuple[str, str]) -> Response:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*fields, somebody()))
    return await exchange(made.gateway.port, f"GET {path} HTTP/1.1\r\nhost: kit\r\n{lines}\r\n".encode())


def anonymised(response: Response) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """An answer without the ids in it."""
    ids = re.compile(rb"[0-9a-f]{26}")
    headers = [(name, ids.sub(b"ID", value)) for name, value in response.headers]
    return response.status, headers, ids.sub(b"ID", response.body)


BAD: dict[str, Fields] = {
    "missing": [],
    "malformed": [("authorization", f"Basic {secret('acme')}")],
    "unknown": [("x-api-key", "fbk-aaaaaaaaaaaa-" + "x" * 43)],
    "contradicting": [("authorization", f"Bearer {secret('acme')}"), ("x-api-key", secret("beta"))],
    "blocked": [bearer("blocked")],
    "expired": [bearer("late")],
    "disabled": [bearer("gone")],
}


async def test_row_38_every_bad_key_gets_the_same_401_and_only_the_metric_knows_why(made: Stage) -> None:
    before = await made.gateway.metrics()
    for route in ("chat", "messages"):
        answers = [anonymised(await send(made, fields, route=route)) for fields in BAD.values()]
        assert answers[0][0] == 401
        assert all(answer == answers[0] for answer in answers)
    listed = [anonymised(await get(made, "/v1/models", *fields)) for fields in BAD.values()]
    assert listed[0][0] == 401 and all(answer == listed[0] for answer in listed)
    after = await made.gateway.metrics()
    causes = after.by("forebay_auth_failures_total", "cause")
    assert {cause: n - before.by("forebay_auth_failures_total", "cause")[cause] for cause, n in causes.items()} == (
        dict.fromkeys(BAD, 3)
    )
    assert made.engine.seen == []
    plain = await send(made, [])
    assert plain.body == (
        b'{"error":{"message":"Invalid API key.","type":"authentication_error","param":null,"code":"invalid_api_key"}}'
    )
    assert (plain.header("x-should-retry"), plain.header("x-forebay-reason")) == ("false", "bad_key")


async def test_row_38_the_eleventh_failure_from_one_address_is_429_and_a_good_key_from_it_passes(made: Stage) -> None:
    address = somebody()
    kinds = list(BAD.values())
    for number in range(10):
        assert (await send(made, [*kinds[number % 7], address])).status == 401
    refused = await send(made, [*BAD["unknown"], address])
    assert (refused.status, error_of(refused)["code"]) == (429, "too_many_auth_failures")
    assert 1 <= int(refused.header("retry-after") or 0) <= 6
    assert (await send(made, [*BAD["missing"], address], route="messages")).status == 429
    assert (await send(made, [bearer("acme"), address])).status == 200
    assert (await send(made, BAD["unknown"])).status == 401  # another address


@pytest.mark.parametrize("cause", ["unknown", "blocked"])
async def test_a_bad_key_is_refused_before_the_body_is_read(made: Stage, cause: str) -> None:
    async with await connect(made.gateway.port) as connection:
        fields = "".join(f"{name}: {value}\r\n" for name, value in (*BAD[cause], somebody()))
        await connection.send(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: kit\r\n{fields}content-type: application/json\r\n"
            "expect: 100-continue\r\ncontent-length: 1000000\r\n\r\n".encode()
        )
        answer = await connection.response(3)
        assert (answer.status, answer.interim, answer.header("connection")) == (401, [], "close")


async def test_row_23_a_key_gets_no_class_above_its_ceiling(made: Stage) -> None:
    before = await made.gateway.metrics()
    wishes = {"critical": "standard", "batch": "batch", "urgent!": "standard"}
    for wish, given in wishes.items():
        answer = await send(made, [bearer("low"), ("x-forebay-priority", wish)])
        assert (answer.status, answer.header("x-forebay-class")) == (200, given), wish
    assert (await send(made, [bearer("low")])).header("x-forebay-class") == "standard"
    assert (await send(made, [bearer("acme")])).header("x-forebay-class") == "interactive"
    assert (await send(made, [bearer("acme"), ("x-forebay-priority", " Critical")])).header(
        "x-forebay-class"
    ) == "critical"
    after = await made.gateway.metrics()
    clamped, unknown = "forebay_class_clamped_total", "forebay_class_unknown_total"
    assert after.sum(clamped) - before.sum(clamped) == 1
    assert after.sum(clamped, **{"from": "critical", "to": "standard"}) == 1
    assert after.sum(unknown) - before.sum(unknown) == 1


async def test_a_wish_is_counted_for_each_request_of_a_connection(made: Stage) -> None:
    before = await made.gateway.metrics()
    message = made.message("chat", "x", extra=[bearer("low"), ("x-forebay-priority", "interactive"), somebody()])
    async with await connect(made.gateway.port) as connection:
        for _ in range(3):
            await connection.send(message)
            assert (await connection.response(3)).header("x-forebay-class") == "standard"
    after = await made.gateway.metrics()
    labels = {"from": "interactive", "to": "standard"}
    assert after.sum("forebay_class_clamped_total", **labels) - before.sum("forebay_class_clamped_total", **labels) == 3


SPELLINGS: list[Fields] = [
    [(name, "beta")]
    for name in (
        "x-tenant", "x-tenant-id", "X-Tenant-ID", "x_tenant_id", "x-forebay-tenant", "X-Forebay-Tenant-Id",
        "x-forebay-salt", "x-forebay-cache-salt", "x-forebay-class", "x-forebay-key", "x-priority", "x_forebay_priority",
        "x-request-priority", "x-gateway-inference-fairness-id", "x-llm-d-fairness-id", "user", "x-user",
        "cache-salt", "x-cache-salt", "x-vllm-cache-salt", "openai-organization", "openai-project", "x-forwarded-user",
    )
]  # fmt: skip
BODIES: list[dict[str, Any]] = [
    {"cache_salt": "x" * 43}, {"cache_salt": None}, {"cache_salt": ""}, {"extra_body": {"cache_salt": "x"}}, {"user": "beta"},
    {"priority": -9}, {"session_id": "beta"}, {"tenant": "beta"}, {"tenant_id": "beta"}, {"metadata": {"tenant": "beta"}},
]  # fmt: skip


async def test_row_32_and_c100_no_spelling_of_a_tenant_or_a_salt_changes_what_the_engine_is_sent(made: Stage) -> None:
    made.engine.clear()
    await send(made, [bearer("acme")])
    for fields in SPELLINGS:
        assert (await send(made, [bearer("acme"), *fields])).status == 200
        nominated = ("connection", ", ".join(name for name, _ in fields))
        assert (await send(made, [bearer("acme"), *fields, nominated])).status == 200
    for more in BODIES:
        assert (await send(made, [bearer("acme")], **more)).status == 200
    assert len(made.engine.seen) == 1 + 2 * len(SPELLINGS) + len(BODIES) and len(SPELLINGS) + len(BODIES) >= 30
    assert len({seen.json["cache_salt"] for seen in made.engine.seen}) == 1
    assert not any("priority" in seen.json or "session_id" in seen.json for seen in made.engine.seen)
    await send(made, [bearer("third")])
    assert made.engine.seen[-1].json["cache_salt"] != made.engine.seen[0].json["cache_salt"]
    await send(made, [bearer("low")])
    assert made.engine.seen[-1].json["cache_salt"] == made.engine.seen[0].json["cache_salt"]


async def test_c102_the_key_never_reaches_the_engine_and_the_model_is_judged_as_it_is_sent(made: Stage) -> None:
    made.engine.clear()
    answer = await send(made, [bearer("acme"), ("x-api-key", secret("acme"))], model="gpt-4o")
    assert answer.status == 200
    (seen,) = made.engine.seen
    assert seen.json["model"] == "m"
    assert secret("acme").encode() not in seen.head + seen.body
    told = [
        anonymised(await send(made, [bearer("acme")], model=model))
        for model in ("emb", "nothing", "M", "gpt-4o ", "x" * 256)
    ]
    assert told[0][0] == 404 and b"model_not_found" in told[0][2]
    assert all(one == told[0] for one in told)
    assert len(made.engine.seen) == 1


async def test_each_tenant_sees_its_models_only(made: Stage) -> None:
    async def names(who: str, *more: tuple[str, str]) -> list[str]:
        answer = await get(made, "/v1/models", bearer(who), *more)
        return [model["id"] for model in json.loads(answer.body)["data"]]

    assert await names("acme") == ["m", "gpt-4o"]
    assert await names("beta", ("anthropic-version", "2023-06-01")) == ["emb"]
    assert (await get(made, "/v1/models/gpt-4o", bearer("acme"))).status == 200
    assert (await get(made, "/v1/models/gpt-4o", bearer("beta"))).status == 404
    assert (await get(made, "/livez")).status == (await get(made, "/readyz")).status == 200


async def test_each_tenant_may_use_what_it_was_granted(made: Stage) -> None:
    body = wire.request("/tokenize", {"model": "m", "prompt": "x"}, extra=[bearer("acme"), somebody()])
    assert (await exchange(made.gateway.port, body)).status == 403
    made.engine.once = [[wire.json_answer({"tokens": [1]})]]
    body = wire.request("/tokenize", {"model": "emb", "prompt": "x"}, extra=[bearer("beta"), somebody()])
    assert (await exchange(made.gateway.port, body)).status == 200
    kwargs = {"chat_template_kwargs": {"thinking": True}}
    assert (await send(made, [bearer("acme")], **kwargs)).status == 200
    refused = await send(made, [bearer("beta")], model="emb", **kwargs)
    assert (refused.status, error_of(refused)["code"]) == (400, "parameter_not_allowed")


async def test_the_access_log_names_tenant_and_key_and_never_the_secret(made: Stage) -> None:
    answers = [
        await send(made, [bearer("low")]),
        await send(made, BAD["blocked"]),
        await send(made, [("authorization", 'Bearer canary-"quoted" %s \\ ' + "x" * 4000)]),
    ]
    ids = [answer.header("x-forebay-request-id") for answer in answers]
    await until(lambda: ids[-1] in {line["request_id"] for line in made.gateway.access()}, 3, "no line")
    lines = {line["request_id"]: line for line in made.gateway.access()}
    seen = [(lines[one]["tenant"], lines[one]["key"], lines[one]["status"]) for one in ids if one]
    assert seen == [("acme", key("low")["id"], 200), ("", "", 401), ("", "", 401)]
    metrics = await made.gateway.metrics()
    assert metrics.sum("forebay_requests_received_total", tenant="acme") > 0
    for canary in (secret("low"), secret("blocked"), "canary-", key("low")["sha256"]):
        assert canary.encode() not in made.gateway.output()
        assert canary not in metrics.text


async def test_a_key_that_expires_is_refused_on_the_connection_it_was_good_on(tmp_path: Path) -> None:
    end = datetime.now(UTC) + timedelta(seconds=4)
    soon = tenant("acme", key("acme", expires=end.isoformat(timespec="milliseconds")))
    async with stage(tmp_path, tenants=[soon], isolation=SALT) as one, await connect(one.gateway.port) as connection:
        message = one.message("chat", "x", extra=[bearer("acme")])
        statuses: list[int] = []
        while not statuses or (statuses[-1] == 200 and time.time() < end.timestamp() + 5):
            await connection.send(message)
            statuses.append((await connection.response(3)).status)
            await asyncio.sleep(0.05)
        assert statuses.count(200) >= 2 and statuses[-1] == 401
        assert abs(time.time() - end.timestamp()) < 1.5


async def test_more_tenants_than_labels_share_one(tmp_path: Path) -> None:
    several = [tenant(f"t{number}") for number in range(4)]
    async with stage(tmp_path, tenants=several, isolation=SALT, telemetry={"tenant_labels": 2}) as one:
        for number in range(4):
            assert (await one.ask("chat", "x", extra=[bearer(f"t{number}")])).status == 200
        found = (await one.gateway.metrics()).by("forebay_requests_received_total", "tenant")
        assert found == {"t0": 1, "t1": 1, "other": 2}


async def test_the_official_clients_work_with_a_key_and_tell_a_bad_one(made: Stage) -> None:
    base = made.gateway.url
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=secret("acme"), max_retries=0) as client:
        answer = await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hello"}])
        assert "hello" in (answer.choices[0].message.content or "")
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        assert "hello" in "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])
        assert [model.id async for model in client.models.list()] == ["m", "gpt-4o"]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="emb", messages=[{"role": "user", "content": "x"}])
    async with anthropic.AsyncAnthropic(base_url=base, api_key=secret("acme"), max_retries=0) as client_:
        message = await client_.messages.create(
            model="gpt-4o", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
        )
        assert "hello" in message.content[0].text  # type: ignore[union-attr]
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="nobody", max_retries=2) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert caught.value.code == "invalid_api_key"
    async with anthropic.AsyncAnthropic(base_url=base, auth_token="nobody", max_retries=2) as client_:
        with pytest.raises(anthropic.AuthenticationError):
            await client_.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}])
