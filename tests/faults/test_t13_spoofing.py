"""T13: nobody says who they are, how urgent or in whose cache, however it is spelled (faults.md 4; C100, C102).

Sixty ways to try it on three routes; then whether a tenant can see by its own requests what another has asked.
"""

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.journeys.served import ENGINE
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.raw_client import exchange
from tests.kit.sizes import patience, sized
from tests.kit.stage import Stage, stage
from tests.kit.tenants import bearer, secret, tenant

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(patience(120, 300))]

SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}
ROUTES = ("chat", "completions", "messages")
TENANTS = [tenant("acme", **{"class": "batch"}), tenant("beta", **{"class": "critical"})]
Case = tuple[Sequence[tuple[str, str]], dict[str, Any]]

HEADERS = (
    "x-tenant", "X-Tenant-ID", "x_tenant_id", "x-tenant-name", "x-forebay-tenant", "X-Forebay-Tenant-Id", "x_forebay_tenant",
    "x-forebay-salt", "x-forebay-cache-salt", "x-forebay-class", "x-forebay-key", "x-forebay-partition", "x-forebay-reason",
    "x-forebay-pool", "x-forebay-limits", "x-priority", "x_forebay_priority", "x-request-priority", "priority",
    "x-gateway-inference-fairness-id", "x-gateway-inference-objective", "x-llm-d-fairness-id", "x-envoy-upstream-rq-timeout-ms",
    "user", "x-user", "x-user-id", "x-forwarded-user", "x-remote-user", "x-auth-request-user", "x-consumer-username",
    "openai-organization", "openai-project", "x-litellm-tags", "x-litellm-api-key", "target-pod", "x-target-pod", "x-session-id",
    "cache-salt", "x-cache-salt", "x-vllm-cache-salt", "x-data-parallel-rank", "x-prefiller-url", "x-kv-transfer-params",
)  # fmt: skip
BODIES: tuple[dict[str, Any], ...] = (
    {"cache_salt": "x" * 43}, {"cache_salt": None}, {"cache_salt": ""}, {"extra_body": {"cache_salt": "x"}}, {"user": "beta"},
    {"priority": -9}, {"priority": 0}, {"session_id": "beta"}, {"tenant": "beta"}, {"tenant_id": "beta"}, {"organization": "beta"},
    {"metadata": {"tenant": "beta"}}, {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.1"}},
    {"data_parallel_rank": 1}, {"lora_path": "/models/beta"}, {"bootstrap_host": "10.0.0.1"}, {"rid": "beta-1"},
    {"request_id": "beta-1"}, {"return_hidden_states": True},
)  # fmt: skip
CASES: list[Case] = [([(name, "beta")], {}) for name in HEADERS] + [([], body) for body in BODIES]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("t13"), tenants=TENANTS, isolation=SALT) as one:
        yield one


@pytest.mark.parametrize("route", ROUTES)
async def test_c099_and_c100_whatever_is_claimed_the_engine_is_told_what_the_key_says(made: Stage, route: str) -> None:
    assert len(CASES) >= 60
    made.engine.clear()
    served = 0
    plain = await made.ask(route, "hi", extra=[bearer("acme")])
    (usual,) = made.engine.seen
    for fields, more in CASES:
        seen_before = len(made.engine.seen)
        nominated = [("connection", ", ".join(name for name, _ in fields))] if fields else []
        for extra in (fields, [*fields, *nominated]):
            answer = await made.ask(route, "hi", extra=[bearer("acme"), *extra], **more)
            assert answer.status in (200, 400), (fields, more, answer.status)
            if answer.status == 200:
                served += 1
                assert answer.header("x-forebay-class") == plain.header("x-forebay-class") == "batch"
        for seen in made.engine.seen[seen_before:]:
            told = {key: value for key, value in seen.json.items() if key not in more or key in usual.json}
            assert told == usual.json, (fields, more)
            assert not set(more) & {"cache_salt", "priority", "kv_transfer_params"} & (set(seen.json) - set(usual.json))
            assert {name for name, _ in seen.headers} == {name for name, _ in usual.headers}, fields
            assert b"beta" not in seen.head
    assert served >= 2 * len(HEADERS)
    salts = {seen.json["cache_salt"] for seen in made.engine.seen}
    assert len(salts) == 1
    assert (await made.ask(route, "hi", extra=[bearer("beta")])).header("x-forebay-class") == "critical"
    assert made.engine.seen[-1].json["cache_salt"] not in salts
    assert secret("acme").encode() not in b"".join(seen.head + seen.body for seen in made.engine.seen)


# -- what the cache tells ----------------------------------------------------------------------------------------------


@pytest.fixture
def prompts(seed: int) -> list[str]:
    return [
        f"{random.Random(seed + at).random()} " + "a secret that begins alike " * 60 for at in range(sized(24, 200))
    ]


async def test_c101_a_tenant_cannot_tell_what_another_has_asked_and_can_tell_its_own(
    tmp_path: Path, prompts: list[str]
) -> None:
    """What its engine tells of the cache, of prompts that the victim had asked before and of others."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(tmp_path, arguments=ENGINE))
        fleet = config([engine.url], isolation=SALT)
        gateway = await stack.enter_async_context(Gateway(fleet, tmp_path, tenants=TENANTS))

        async def cached(who: str, prompt: str) -> int:
            body = wire.request_body("chat", prompt, max_tokens=1)
            answer = await exchange(gateway.port, wire.request("/v1/chat/completions", body, extra=[bearer(who)]))
            details = json.loads(answer.body)["usage"].get("prompt_tokens_details") or {}
            return int(details.get("cached_tokens") or 0)

        asked, others = prompts[::2], prompts[1::2]
        for prompt in asked:
            await cached("beta", prompt)
        across = [await cached("acme", prompt) for prompt in asked], [await cached("acme", one) for one in others]
        own = [await cached("beta", prompt) for prompt in asked], [await cached("beta", one) for one in others]
    assert min(own[0]) > 0
    assert auc(*own) == 1.0
    assert 0.45 <= auc(*across) <= 0.55


def auc(hits: Sequence[int], misses: Sequence[int]) -> float:
    """How well the figure tells the first from the second: 0.5 not at all, 1.0 always."""
    pairs = [(hit > miss) + 0.5 * (hit == miss) for hit in hits for miss in misses]
    return sum(pairs) / len(pairs)
