"""Limits on real sockets: rows 1, 5, 11, 12, 14, 16, 19, 21 and 44 of the tenancy table, cases C043 to C051."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.kit import wire
from tests.kit.http_reader import Response
from tests.kit.processes import until_async
from tests.kit.raw_client import exchange
from tests.kit.script_engine import HANG, RST, Seen, Step, Wait
from tests.kit.stage import Stage, error_of, stage
from tests.kit.tenants import bearer, key, secret, tenant

SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}
TEN = list(range(10))  # a prompt of ten token ids: nothing is estimated
ROUTES = ("chat", "completions", "messages", "responses", "embeddings", "rerank", "score")


def acme(*keys: dict[str, Any], name: str = "acme", **fields: Any) -> dict[str, Any]:
    return tenant(name, *keys, models=[{"name": "m"}, {"name": "emb"}], **fields)


async def ask(made: Stage, name: str = "acme", route: str = "completions", **more: Any) -> Response:
    """Ten tokens in, thirty at most out, unless told otherwise."""
    if route == "completions":
        more = {"prompt": TEN, "max_tokens": 30, **more}
    return await made.ask(route, "hi", extra=[bearer(name)], **more)


async def used(made: Stage, metric: str, name: str = "acme") -> float:
    told = await made.gateway.admin(f"/admin/v1/tenants/{name}/usage")
    return next(each["settled"] for each in told["limits"] if each["scope"] == f"tenant.{metric}")


async def held(made: Stage) -> float:
    return (await made.gateway.metrics()).sum("forebay_quota_held_units")


def holding_on(seen: Seen) -> Iterator[Step]:
    yield HANG


def some_tokens(count: int, end: Step) -> Callable[[Seen], Iterator[Step]]:
    """A stream of so many tokens that then does not go on."""

    def answer(seen: Seen) -> Iterator[Step]:
        yield wire.stream_head()
        for one in wire.events("completions", [f"w{number} " for number in range(count + 1)])[:count]:
            yield wire.chunk(one)
        yield Wait(0.05)
        yield end

    return answer


async def test_row_1_refusals_say_which_limit_how_much_is_missing_and_when_to_come_again(tmp_path: Path) -> None:
    limits = {"tpm": 100, "rpm": 600}
    async with stage(tmp_path, tenants=[acme(limits=limits)], isolation=SALT) as made, made.holding():
        made.engine.answer = lambda seen: [Wait(0.3), *wire.echo(seen)]
        answers = await asyncio.gather(*(ask(made) for _ in range(5)))
        assert sorted(answer.status for answer in answers) == [200, 200, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status == 429)
        assert 11 <= int(refused.header("retry-after") or 0) <= 12
        assert 11_000 < int(refused.header("retry-after-ms") or 0) <= 12_000
        told = {name.decode(): value.decode() for name, value in refused.headers}
        assert (told["x-ratelimit-limit-tokens"], told["x-ratelimit-remaining-tokens"]) == ("100", "20")
        assert (told["x-ratelimit-limit-requests"], told["x-ratelimit-remaining-requests"]) == ("600", "598")
        assert told["x-forebay-ratelimit-scope"] == "tenant.tpm"
        assert (told["x-should-retry"], told["x-forebay-reason"]) == ("true", "quota_tokens")
        error = error_of(refused)
        assert (error["type"], error["param"], error["code"]) == (
            "rate_limit_error",
            "tenant.tpm",
            "rate_limit_exceeded",
        )
        assert error["message"].startswith("Token limit: 40 needed, 2")
        served = next(answer for answer in answers if answer.status == 200)
        assert served.header("x-ratelimit-limit-tokens") == "100"


async def test_row_44_both_dialects_never_say_less_than_nothing_and_their_resets_can_be_read(tmp_path: Path) -> None:
    """An engine that tells more than was reserved makes a debt."""
    limits = {"tpm": 200, "itpm": 500}
    async with stage(tmp_path, tenants=[acme(limits=limits)], isolation=SALT) as made, made.holding():
        made.engine.answer = lambda seen: [wire.json_answer(wire.body("completions", "x", prompt=300, output=9))]
        assert (await ask(made)).status == 200
        refused = await ask(made)
        assert (refused.status, refused.header("x-ratelimit-remaining-tokens")) == (429, "0")
        assert (refused.header("x-ratelimit-reset-tokens") or "").startswith("1m3")  # 309 of 200 a minute
        assert refused.header("retry-after") in ("44", "45")
        refused = await ask(made, route="messages", max_tokens=30)
        assert (refused.status, refused.header("anthropic-ratelimit-tokens-remaining")) == (429, "0")
        assert refused.header("anthropic-ratelimit-input-tokens-limit") == "500"
        reset = datetime.fromisoformat(refused.header("anthropic-ratelimit-tokens-reset") or "")
        assert 80 < (reset - datetime.now(UTC)).total_seconds() < 95
        assert json.loads(refused.body)["error"]["type"] == "rate_limit_error"


async def test_row_44_the_official_clients_wait_as_long_as_they_are_told(tmp_path: Path) -> None:
    tenants = [acme(limits={"rpm": 60, "burst_s": 1}), acme(name="beta", limits={"rpm": 60, "burst_s": 1})]
    async with stage(tmp_path, tenants=tenants, isolation=SALT, listen={"host": "127.0.0.1"}) as made:
        async with openai.AsyncOpenAI(base_url=f"{made.gateway.url}/v1", api_key=secret("acme"), max_retries=2) as one:
            began = time.monotonic()
            for _ in range(2):
                await one.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            assert 0.9 < time.monotonic() - began < 3.0
        async with anthropic.AsyncAnthropic(base_url=made.gateway.url, api_key=secret("beta"), max_retries=2) as two:
            began = time.monotonic()
            for _ in range(2):
                await two.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
            assert 0.9 < time.monotonic() - began < 3.0
        async with openai.AsyncOpenAI(base_url=f"{made.gateway.url}/v1", api_key=secret("acme"), max_retries=0) as one:
            with pytest.raises(openai.RateLimitError) as refused:
                for _ in range(2):
                    await one.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            assert refused.value.code == "rate_limit_exceeded"


async def test_row_8_what_never_fits_is_400_and_says_what_would(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[acme(limits={"tpm": 100})], isolation=SALT) as made, made.holding():
        refused = await ask(made, max_tokens=91)
        assert (refused.status, error_of(refused)["code"]) == (400, "request_exceeds_limit")
        assert (refused.header("x-should-retry"), refused.header("retry-after")) == ("false", None)
        assert "max_tokens of at most 90" in error_of(refused)["message"]
        assert (await ask(made, max_tokens=90)).status == 200


@pytest.mark.parametrize("source", ["tenant", "defaults", "model"])
async def test_c050_every_route_to_an_engine_counts_whatever_says_the_limit(tmp_path: Path, source: str) -> None:
    changes: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    if source == "tenant":
        fields = {"limits": {"tpm": 1_000_000, "rpm": 1000}}
    elif source == "defaults":
        changes = {"tenant_defaults": {"limits": {"tpm": 1_000_000, "rpm": 1000}}}
    else:
        changes = {"models": {name: {"limits": {"tpm": 1_000_000, "rpm": 1000}} for name in ("m", "emb")}}
    async with stage(tmp_path, tenants=[acme(**fields)], isolation=SALT, **changes) as made, made.holding():
        units, requests = 0, 0
        for route in ROUTES:
            more = {"max_tokens": 5} if route == "messages" else {"prompt": "hi"} if route == "completions" else {}
            for stream in (False, True) if route in wire.ROUTES else (False,):
                answer = await made.ask(route, "hi", stream=stream, extra=[bearer("acme")], **more)
                assert answer.status == 200, (route, stream, answer.body)
                units, requests = units + (10 if route in wire.ROUTES else 7), requests + 1
        scope = "model" if source == "model" else "tenant"
        metrics = await made.gateway.metrics()
        assert metrics.sum("forebay_quota_settled_units_total", scope=scope, metric="rpm") == requests
        settled = metrics.sum("forebay_quota_settled_units_total", scope=scope, metric="tpm")
        assert abs(settled - units) <= requests  # a stream of the kit's is one token a word
        assert metrics.sum("forebay_quota_held_units") == 0


async def test_row_11_who_leaves_in_the_middle_pays_for_what_came_and_frees_the_slot(tmp_path: Path) -> None:
    limits = {"tpm": 100_000, "max_concurrency": 1}
    async with (
        stage(tmp_path, tenants=[acme(limits=limits)], isolation=SALT, timeouts={"scale": 1}) as made,
        made.holding(),
    ):
        made.engine.answer = some_tokens(50, HANG)
        more = {"prompt": TEN, "max_tokens": 1000}
        async with await made.begin("completions", "x", stream=True, extra=[bearer("acme")], **more) as connection:
            await connection.read_until(b"w49 ")
        made.engine.answer = wire.echo
        began = time.monotonic()
        assert (await ask(made)).status == 200
        assert time.monotonic() - began < 1.0
        first = await used(made, "tpm")
        assert 60 <= first - 10 <= 61  # the second one: 7 + 3
        assert await held(made) == 0


async def test_row_11_who_leaves_when_the_engine_has_counted_the_prompt_pays_for_that(tmp_path: Path) -> None:
    """Anthropic's streams begin with the count."""
    async with stage(tmp_path, tenants=[acme(limits={"tpm": 100_000})], isolation=SALT) as made, made.holding():
        told = [wire.chunk(each) for each in wire.events("messages", ["w0 ", "w1 ", "w2 "], prompt=77)]
        made.engine.answer = lambda seen: [wire.stream_head(), *told[:5], HANG]
        async with await made.begin("messages", "x" * 3000, stream=True, extra=[bearer("acme")]) as connection:
            await connection.read_until(b"w2 ")

        async def settled() -> bool:
            return await used(made, "tpm") == 77 + 3

        await until_async(settled, 5.0, "it has paid for something else")
        assert await held(made) == 0


async def test_rows_12_and_14_a_dead_engine_is_paid_for_what_came_and_one_that_never_answers_is_not(
    tmp_path: Path,
) -> None:
    limits = {"tpm": 100_000, "rpm": 1000}
    async with stage(tmp_path, tenants=[acme(limits=limits)], isolation=SALT) as made, made.holding():
        made.engine.answer = some_tokens(10, RST)
        await ask(made, stream=True, max_tokens=1000)
        assert await used(made, "tpm") in (20, 21)
        made.engine.answer = lambda seen: [wire.json_answer({"error": {"message": "no"}}, status=500)]
        failed = await ask(made)
        assert (failed.status, error_of(failed)["code"]) == (500, "backend_error")
        assert await used(made, "tpm") in (20, 21)
        assert await used(made, "rpm") == 1
        made.engine.answer = lambda seen: [wire.json_answer({"error": {"message": "no"}}, status=400)]
        assert (await ask(made)).status == 400
        assert (await used(made, "rpm"), await held(made)) == (2, 0)


async def test_row_16_a_shadow_refuses_nobody_and_counts_whom_it_would_have(tmp_path: Path) -> None:
    shadow = acme(limits={"rpm": 60, "burst_s": 10}, mode="shadow")
    async with stage(tmp_path, tenants=[shadow], isolation=SALT) as made, made.holding():
        answers = await asyncio.gather(*(ask(made) for _ in range(15)))
        assert {answer.status for answer in answers} == {200}
        metrics = await made.gateway.metrics()
        assert metrics.sum("forebay_quota_denied_total", mode="shadow") == 5
        assert metrics.sum("forebay_quota_denied_total", mode="enforce") == 0


@pytest.mark.parametrize(
    ("max_queued", "passes", "code"), [(100, 50, ""), (10, 15, "queue_full"), (0, 5, "concurrency_exceeded")]
)
async def test_row_19_no_more_run_than_may_and_no_more_wait(
    tmp_path: Path, max_queued: int, passes: int, code: str
) -> None:
    limits = {"max_concurrency": 5, "max_queued": max_queued}
    async with (
        stage(tmp_path, tenants=[acme(limits=limits)], isolation=SALT, timeouts={"scale": 1}) as made,
        made.holding(),
    ):
        came = asyncio.Event()

        def answer(seen: Seen) -> Iterator[Step]:
            while not came.is_set():
                yield Wait(0.01)
            yield Wait(0.1)
            yield from wire.echo(seen)

        async def all_came() -> bool:
            return (await made.gateway.metrics()).sum("forebay_requests_received_total") == 50

        made.engine.answer = answer
        asked = [asyncio.create_task(ask(made)) for _ in range(50)]
        await until_async(all_came, 10, "not all have come")
        came.set()
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers].count(200) == passes
        refused = [answer for answer in answers if answer.status != 200]
        assert {error_of(answer)["code"] for answer in refused} == ({code} if code else set())
        assert {answer.status for answer in refused} <= {429}
        assert all(1 <= int(answer.header("retry-after") or 0) <= 60 for answer in refused)
        assert made.engine.peak <= 5


def _endings() -> dict[str, Callable[[Seen], Iterator[Step] | list[Step]]]:
    return {
        "timeout": lambda seen: [HANG],
        "502": lambda seen: [wire.json_answer({"error": {"message": "no"}}, status=502)],
        "reset": lambda seen: [RST],
        "malformed": lambda seen: [b"nonsense\r\n\r\n"],
        "aborted stream": some_tokens(3, RST),
        "not found": lambda seen: [wire.json_answer({"error": {"message": "no"}}, status=404)],
    }


async def test_row_21_and_c051_a_slot_is_freed_by_every_end(tmp_path: Path) -> None:
    limits = {"max_concurrency": 1, "max_queued": 0, "tpm": 1_000_000}
    timers = {"scale": 0.1, "first_byte_s": 0.3}
    async with stage(tmp_path, tenants=[acme(limits=limits)], isolation=SALT, timeouts=timers) as made, made.holding():
        for name, answer in _endings().items():
            made.engine.answer = answer
            for _ in range(50):
                assert (await ask(made, stream=True)).status != 429, name
        made.engine.answer = some_tokens(3, HANG)
        for number in range(50):  # at each place of its way: sent, dispatched, in the middle of its answer
            async with await made.begin("completions", "x", stream=True, extra=[bearer("acme")]) as connection:
                await (connection.read_until(b"w2 ") if number % 3 == 2 else asyncio.sleep(0.02 * (number % 3)))

            async def free() -> bool:
                told = await made.gateway.admin("/admin/v1/tenants/acme/usage")
                return bool(told["concurrency"][0]["used"] == 0)

            await until_async(free, 1.0, "the slot is not free")
        made.engine.answer = wire.echo
        await made.gateway.wait_up(1)
        assert (await ask(made)).status == 200
        assert await held(made) == 0


async def test_a_key_has_limits_of_its_own_and_the_tenant_sees_only_its_own_use(tmp_path: Path) -> None:
    keys = [key("small", limits={"rpm": 60}), key("other", limits={"rpm": 600})]
    month = [{"id": "month", "amount": 50, "period": "month", "soft_ratio": 0.3}]
    fields = {"limits": {"tpm": 1000}, "budgets": month}
    async with stage(tmp_path, tenants=[acme(*keys, **fields)], isolation=SALT) as made, made.holding():
        assert (await ask(made, "small")).status == 200
        assert (await made.gateway.metrics()).by("forebay_quota_soft", "metric") == {"month": 0.0}
        answer = await ask(made, "small", prompt=TEN * 3, max_tokens=1)
        assert (answer.status, answer.header("x-forebay-budget-soft")) == (200, "month")
        assert (await made.gateway.metrics()).by("forebay_quota_soft", "metric") == {"month": 1.0}
        spent = await ask(made, "small")
        assert (spent.status, error_of(spent)["code"]) == (429, "insufficient_quota")
        assert (spent.header("x-should-retry"), spent.header("retry-after")) == ("false", None)
        assert spent.header("x-forebay-ratelimit-scope") == "tenant.month"

        async def usage(name: str) -> Response:
            head = f"GET /v1/usage HTTP/1.1\r\nhost: kit\r\nauthorization: Bearer {secret(name)}\r\n\r\n"
            return await exchange(made.gateway.port, head.encode())

        told = json.loads((await usage("small")).body)
        assert (told["tenant"], {limit["scope"] for limit in told["limits"]}) == ("acme", {"tenant.tpm", "key.rpm"})
        [budget] = told["budgets"]
        assert (budget["scope"], budget["limit"], budget["period"]) == ("tenant.month", 50, "month")
        assert secret("other")[4:16] not in json.dumps(told)
        assert told["concurrency"] == [{"scope": "tenant", "limit": 64, "used": 0}]
        assert (await usage("small")).status == 429
        assert (await usage("other")).status == 200
        whole = await made.gateway.admin("/admin/v1/tenants/acme/usage")
        assert {limit.get("of") for limit in whole["limits"]} == {None, secret("small")[4:16], secret("other")[4:16]}
        assert (await made.gateway.get("/v1/usage")).status == 401


async def test_a_tenants_most_tokens_are_written_and_more_are_refused(tmp_path: Path) -> None:
    async with (
        stage(tmp_path, tenants=[acme(limits={"max_output_tokens": 50})], isolation=SALT) as made,
        made.holding(),
    ):
        refused = await ask(made, max_tokens=51)
        assert (refused.status, error_of(refused)["code"]) == (400, "max_tokens_above_limit")
        assert error_of(refused)["param"] == "max_tokens"
        assert (await ask(made, max_tokens=None)).status == 200
        assert made.engine.seen[-1].json["max_tokens"] == 50


async def test_every_answer_tells_the_limits_once_it_is_known_who_asks(tmp_path: Path) -> None:
    """Good ones and refusals, of engines and of the gateway alone; nobody else is told anything."""
    async with stage(tmp_path, tenants=[acme(limits={"rpm": 600})], isolation=SALT) as made, made.holding():

        async def get(path: str, who: str = "acme") -> Response:
            head = f"GET {path} HTTP/1.1\r\nhost: kit\r\nauthorization: Bearer {secret(who)}\r\n\r\n"
            return await exchange(made.gateway.port, head.encode())

        known = [await ask(made), await ask(made, stream=True), await ask(made, model="none"), await ask(made, n=99)]
        known += [await get(path) for path in ("/v1/models", "/v1/models/none", "/v1/usage", "/v1/usage")]
        assert [answer.status for answer in known] == [200, 200, 404, 400, 200, 404, 200, 429]
        assert {answer.header("x-ratelimit-limit-requests") for answer in known} == {"600"}
        nobody = [await get("/v1/models", "nobody"), await ask(made, "nobody"), await made.gateway.get("/livez")]
        assert [answer.status for answer in nobody] == [401, 401, 200]
        assert {answer.header("x-ratelimit-limit-requests") for answer in nobody} == {None}


async def test_the_usage_of_a_tenant_says_what_waits_in_each_class(tmp_path: Path) -> None:
    tenants = [acme(limits={"max_concurrency": 1}, class_ceiling="standard"), acme(name="beta")]
    async with stage(tmp_path, tenants=tenants, isolation=SALT, timeouts={"scale": 1}) as made, made.holding():
        made.engine.answer = lambda seen: [HANG]
        wishes = ["standard", "standard", "batch", "batch", "batch"]
        begun = [await made.begin("chat", "x", extra=[bearer("acme"), ("x-forebay-priority", wish)]) for wish in wishes]

        async def waiting() -> dict[str, int]:
            told = (await made.gateway.admin("/admin/v1/tenants/acme/usage"))["queue"]
            assert told["queued"] == sum(each["queued"] for each in told["classes"].values())
            assert told["queued_bytes"] == sum(each["queued_bytes"] for each in told["classes"].values())
            return {name: each["queued"] for name, each in told["classes"].items()}

        async def all_wait() -> bool:
            return sum((await waiting()).values()) == 4

        await until_async(all_wait, 5.0, "not all wait")
        assert await waiting() in ({"standard": 1, "batch": 3}, {"standard": 2, "batch": 2})
        told = await made.gateway.admin("/admin/v1/usage")
        queues = {each["tenant"]: each["queue"]["classes"] for each in told["tenants"]}
        assert sum(each["queued"] for each in queues["acme"].values()) == 4 and queues["beta"] == {}
        assert {each["degraded"] for each in told["tenants"]} == {False}
        for each in begun:
            each.reset()
