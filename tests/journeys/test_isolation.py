"""Who shares a prefix cache: row 33 of the tenancy table, in the engine and in the gateway's own index of it."""

import json
from pathlib import Path
from typing import Any

from tests.journeys.served import ENGINE
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.raw_client import exchange
from tests.kit.tenants import bearer, key, tenant

GROUP = {"cache": {"isolation": "group", "group": "research"}}
TENANTS = [
    tenant("a", key("a"), key("a2")),
    tenant("b"),
    tenant("c", key("c"), key("c2"), cache={"isolation": "key"}),
    tenant("d", **GROUP),
    tenant("e", **GROUP),
]
ISOLATION = {"salt_secret": "0123456789abcdef0123456789abcdef", "groups": {"research": ["d", "e"]}}


async def cached(gateway: Gateway, who: str, prompt: str) -> tuple[int, int]:
    """Of a request's prompt: the tokens the engine had in its cache, and those the gateway took to be there."""
    body = wire.request_body("chat", prompt, max_tokens=4)
    answer = await exchange(gateway.port, wire.request("/v1/chat/completions", body, extra=[bearer(who)]))
    assert answer.status == 200, answer.body
    details = json.loads(answer.body)["usage"].get("prompt_tokens_details") or {}
    told: Any = await gateway.admin(f"/admin/v1/explain/{answer.header('x-forebay-request-id')}")
    (why,) = [step["why"] for step in told["steps"] if step["what"] == "dispatch"]
    return details.get("cached_tokens", 0), why["cached_tokens"]


PAIRS = {
    ("a", "a"): True,
    ("a", "a2"): True,
    ("a", "b"): False,
    ("c", "c"): True,
    ("c", "c2"): False,
    ("d", "e"): True,
    ("a", "d"): False,
}


async def test_row_33_a_prompt_is_cached_for_whom_it_was_meant(tmp_path: Path) -> None:
    async with Engine(tmp_path, arguments=ENGINE) as engine:
        fleet = config([engine.url], isolation=ISOLATION)
        async with Gateway(fleet, tmp_path, tenants=TENANTS) as gateway:
            for (first, second), shares in PAIRS.items():
                prompt = f"{first} and {second}: " + "a long text that begins alike " * 200
                assert await cached(gateway, first, prompt) == (0, 0)
                in_engine, in_index = await cached(gateway, second, prompt)
                assert (in_engine > 500, in_index > 500) == (shares, shares), (first, second, in_engine, in_index)
                assert shares or (in_engine, in_index) == (0, 0)
