"""Limits of models, pools, endpoints and the whole gateway, as far as the core keeps them."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from policies.decisions import Fail
from policies.events import Arrived, Cancelled
from tests.kit.tenants import tenant
from tests.limits.given import NOWHERE, Configured
from tests.limits.table import holds
from tests.policies.given import request

MODEL = {
    "rpm": ({"rpm": 2}, "quota_requests"),
    "tpm": ({"tpm": 100}, "quota_tokens"),
    "max_concurrency": ({"max_concurrency": 2}, "queued"),
}


def of_model(limits: dict[str, Any], then: str, _: Path) -> None:
    """All tenants together."""
    world = Configured([tenant("acme"), tenant("beta")], models={"m": {"limits": limits}})
    told = [world.told(f"r{number}", tenant=("acme", "beta")[number % 2]) for number in range(5)]
    assert told == ["ok", "ok", *[then] * 3]


for _field, (_limits, _then) in MODEL.items():
    holds(f"models.NAME.limits.{_field}")(partial(of_model, _limits, _then))


@holds("models.NAME.context_tokens", instead=10_000_000)
def context_tokens(_: Path) -> None:
    """An answer is held to what the prompt leaves of it."""
    world = Configured([tenant("acme", limits={"tpm": 100_000})], models={"m": {"context_tokens": 1000}})
    world.ask("r", tokens=900, max_output=4096)
    assert world.used("tpm", 0.0) == 1000


@holds("pools.NAME.max_total_tokens")
def max_total_tokens(_: Path) -> None:
    pools = {"main": {"max_total_tokens": 2000}, "large": {"model": "m"}, "emb": {"model": "emb"}}
    endpoints = [
        {"name": "e0", "url": NOWHERE, "pools": ["main", "emb"]},
        {"name": "e1", "url": "http://127.0.0.1:2", "pools": ["large"]},
    ]
    world = Configured(None, pools=pools, endpoints=endpoints, length={"kind": "declared"})
    assert world.ask("short", tokens=100, max_output=100).endpoint == "e0"
    assert world.ask("long", tokens=1500, max_output=1000).endpoint == "e1"


@holds("pools.NAME.long_prompt_tokens")
def long_prompt_tokens(_: Path) -> None:
    world = Configured(None, pools={"main": {"lanes": "auto", "long_prompt_tokens": 2048}})
    assert world.why("a", tokens=2048, model="m").lane == "short"
    assert world.why("b", tokens=2049, model="m").lane == "long"


@holds("endpoints[].long_lanes")
def long_lanes(_: Path) -> None:
    lanes = {"lanes": "fixed", "long_prompt_tokens": 2048}
    world = Configured(None, pools={"main": lanes}, endpoint={"long_lanes": 2, "long_prefill_cap": 512})
    assert world.all_told(4, tokens=5000) == ["ok", "ok", "queued", "queued"]


@holds("endpoints[].long_prefill_cap")
def long_prefill_cap(_: Path) -> None:
    """With it the engine has room for others beside a long prompt."""
    lanes = {"lanes": "auto", "long_prompt_tokens": 2048}
    world = Configured(None, pools={"main": lanes}, endpoint={"long_prefill_cap": 512})
    assert world.told("long", tokens=5000) == "ok"
    assert world.told("short") == "ok"


@holds("endpoints[].max_seqs")
def max_seqs(_: Path) -> None:
    assert Configured(None, endpoint={"max_seqs": 2}).all_told(4) == ["ok", "ok", "queued", "queued"]


@holds("endpoints[].max_prefill_tokens")
def max_prefill_tokens(_: Path) -> None:
    assert Configured(None, endpoint={"max_prefill_tokens": 1000}).all_told(5, tokens=400) == [
        *["ok"] * 3,
        "queued",
        "queued",
    ]


@holds("retries.max_attempts")
def max_attempts(_: Path) -> None:
    world = Configured(None, urls=(NOWHERE, "http://127.0.0.1:2"), retries={"max_attempts": 1})
    world.ask("r")
    [failed] = world.come_back("r", 0.0)
    assert isinstance(failed, Fail)


@holds("timeouts.scale")
def scale(_: Path) -> None:
    """It shortens every time of waiting too."""
    world = Configured(None, endpoint={"max_seqs": 1}, timeouts={"scale": 0.05})
    assert world.all_told(2) == ["ok", "queued"]
    assert world.tick(3.0) == ["r1!queue_timeout"]


# -- what may wait, and how tenants share ------------------------------------------------------------------------------


@holds("admission.max_queued")
def max_queued(_: Path) -> None:
    world = Configured(None, endpoint={"max_seqs": 1}, admission={"max_queued": 2})
    assert world.all_told(5) == ["ok", "queued", "queued", "overloaded", "overloaded"]


@holds("admission.max_queued_bytes")
def max_queued_bytes(_: Path) -> None:
    world = Configured(None, endpoint={"max_seqs": 1}, admission={"max_queued_bytes": "1MiB"})
    assert world.all_told(4, body_bytes=500_000) == ["ok", "queued", "queued", "overloaded"]


def two_tenants(fairness: dict[str, Any], *, a: dict[str, Any], b: dict[str, Any], times: int = 60) -> Counter[str]:
    """How often each of two tenants is served that wait all the time for one place."""
    world = Configured(
        [tenant("acme"), tenant("beta")],
        endpoint={"max_seqs": 1},
        length={"kind": "declared"},
        admission={"fairness": fairness},
    )
    cached(world, 0.0)
    world.ask("runs", tenant="beta", tokens=1, max_output=0)
    for number in range(70):
        world.ask(f"acme{number}", tenant="acme", **a)
        world.ask(f"beta{number}", tenant="beta", **b)
    return Counter(name[:4] for name in world.order(times))


@holds("admission.fairness.quantum")
def quantum(_: Path) -> None:
    """A small one makes them alternate: with the default each would have eighty in a row."""
    served = two_tenants(
        {"quantum": 256}, a={"tokens": 100, "max_output": 0}, b={"tokens": 100, "max_output": 0}, times=40
    )
    assert served["acme"] >= 15 and served["beta"] >= 15


PROMPTS, ANSWERS = {"tokens": 2000, "max_output": 0}, {"tokens": 1, "max_output": 1000}  # of the same cost


@holds("admission.fairness.input")
def input_cost(_: Path) -> None:
    served = two_tenants({"input": 0.1}, a=PROMPTS, b=ANSWERS)
    assert served["acme"] >= 6 * served["beta"]


@holds("admission.fairness.output")
def output_cost(_: Path) -> None:
    served = two_tenants({"output": 0.2}, a=PROMPTS, b=ANSWERS)
    assert served["beta"] >= 4 * served["acme"]


@holds("admission.fairness.cached")
def cached_cost(_: Path) -> None:
    """A prompt that is cached costs as one that is not."""
    known = {"tokens": 4097, "max_output": 0, "prefix": _prefix(1)}
    served = two_tenants({"cached": 1}, a=known, b={"tokens": 4097, "max_output": 0})
    assert abs(served["acme"] - served["beta"]) <= 8


# -- prefixes ----------------------------------------------------------------------------------------------------------


def _prefix(family: int) -> tuple[int, ...]:
    """Blocks of 4,096 tokens: 16 of 64 and 12 of 256 (policies/fingerprint.py)."""
    return tuple(range(family * 1000, family * 1000 + 28))


def cached(world: Configured, at: float, family: int = 1) -> int:
    """Of a prompt of 4,096 tokens and a few more, that then ends."""
    name = f"p{family}-{at}"
    prefix = _prefix(family)
    tokens = world.why(name, at, tokens=4200, prefix=prefix, model="m", max_output=0).cached_tokens
    world.first_token(name, at)
    world.finish(name, at)
    return tokens


@holds("affinity.block_tokens")
def block_tokens(_: Path) -> None:
    world = Configured(None, affinity={"block_tokens": 16})
    assert [cached(world, 0.0), cached(world, 1.0)] == [0, 1024]  # the same blocks are a fourth as large


@holds("affinity.ttl_s")
def ttl(_: Path) -> None:
    world = Configured(None, affinity={"ttl_s": 20})
    assert [cached(world, 0.0), cached(world, 15.0), cached(world, 40.0)] == [0, 4096, 0]


@holds("affinity.index_bytes")
def index_bytes(_: Path) -> None:
    world = Configured(None, affinity={"index_bytes": "1MiB"})
    for family in range(1, 3000):
        prefix = _prefix(family)
        asked = request(f"f{family}", model="m", tokens=4200, prefix=prefix)
        world.core.handle(Arrived(request=asked), 0.0)
        world.core.handle(Cancelled(request_id=asked.id), 0.0)
    prefixes = world.core._books.prefixes
    assert prefixes is not None and prefixes.used_bytes <= 1 << 20


@holds("affinity.kv_tiers")
def kv_tiers(_: Path) -> None:
    """With a tenth of the engine's cache a prompt is pushed out by the next few."""
    world = Configured(None, facts={"kv_tokens": 40_000}, affinity={"kv_tiers": 0.1})
    assert cached(world, 0.0) == 0
    for family in range(2, 5):
        cached(world, 1.0, family)
    assert cached(world, 2.0) < 4096


@holds("affinity.max_load_ratio", instead=4)
def max_load_ratio(_: Path) -> None:
    """Though one endpoint knows the prompt, none gets more than its part of a burst of it."""
    slow = {"prefill_tokens_per_s": 1000.0}
    world = Configured(None, urls=(NOWHERE, "http://127.0.0.1:2"), facts=slow, affinity={"max_load_ratio": 1})
    cached(world, 0.0)
    prefix, places = _prefix(1), Counter[str]()
    for number in range(100):
        places[world.ask(f"r{number}", 1.0, tokens=4097, prefix=prefix, max_output=0).endpoint] += 1
        world.first_token(f"r{number}", 1.0)
    assert max(places.values()) <= 55
