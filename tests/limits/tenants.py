"""Limits of tenants, in their own files and in what all inherit, and those of their keys."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.kit import wire
from tests.kit.raw_client import exchange
from tests.kit.stage import error_of
from tests.kit.tenants import bearer, key, tenant
from tests.limits.given import Configured, limited, served, within
from tests.limits.table import holds

Made = Callable[..., Configured]


def of_tenant(field: str, instead: object = None) -> Callable[[Callable[[Made], None]], Callable[[Made], None]]:
    """The same limit, written in the tenant's file or inherited."""

    def register(check: Callable[[Made], None]) -> Callable[[Made], None]:
        for prefix, where in (("tenant.", "file"), ("tenant_defaults.", "defaults")):

            def run(_: Path, where: str = where) -> None:
                check(lambda fields, **more: Configured(**limited(where, fields, **more)))

            holds(prefix + field, instead=instead)(run)
        return check

    return register


RATES = {
    "limits.rpm": ({"limits": {"rpm": 2}}, "quota_requests"),
    "limits.tpm": ({"limits": {"tpm": 100}}, "quota_tokens"),
    "limits.itpm": ({"limits": {"itpm": 25}}, "quota_tokens"),
    "limits.otpm": ({"limits": {"otpm": 70}}, "quota_tokens"),
    "limits.tpd": ({"limits": {"tpd": 100}}, "budget"),
    "limits.burst_s": ({"limits": {"rpm": 60, "burst_s": 2}}, "quota_requests"),
    "limits.max_concurrency": ({"limits": {"max_concurrency": 2}}, "queued"),
    "models[].limits.rpm": ({"models": [{"name": "m", "limits": {"rpm": 2}}]}, "quota_requests"),
    "models[].limits.tpm": ({"models": [{"name": "m", "limits": {"tpm": 100}}]}, "quota_tokens"),
    "models[].limits.max_concurrency": ({"models": [{"name": "m", "limits": {"max_concurrency": 2}}]}, "queued"),
}
"""Each lets two requests of 10 + 30 tokens pass and has this for the third."""


def two_pass(fields: dict[str, Any], then: str, made: Made) -> None:
    assert made(fields).all_told(5) == ["ok", "ok", *[then] * 3]


for _field, (_fields, _then) in RATES.items():
    of_tenant(_field)(partial(two_pass, _fields, _then))


@of_tenant("budgets[].amount", instead=10**15)
def budget(made: Made) -> None:
    two_pass({"budgets": [{"id": "week", "amount": 100, "period": "week"}]}, "budget", made)


@of_tenant("budgets[].soft_ratio")
def soft_ratio(made: Made) -> None:
    world = made({"budgets": [{"id": "week", "amount": 100, "soft_ratio": 0.3}]})
    world.ask("r")
    standing = world.core.metering.standing(("acme", "", "m"), 0.0, apart=True)
    assert standing is not None and standing.budgets == ("week",)


@of_tenant("limits.max_queued")
def max_queued(made: Made) -> None:
    world = made({"limits": {"max_concurrency": 1, "max_queued": 1}})
    assert world.all_told(3) == ["ok", "queued", "queue_full"]


@of_tenant("limits.max_queued_bytes")
def max_queued_bytes(made: Made) -> None:
    world = made({"limits": {"max_concurrency": 1, "max_queued_bytes": "64KiB"}})
    assert world.all_told(3, body_bytes=40_000) == ["ok", "queued", "queue_full"]


@of_tenant("limits.queue_timeout_s")
def queue_timeout(made: Made) -> None:
    world = made({"limits": {"max_concurrency": 1, "queue_timeout_s": 5}})
    assert world.all_told(2) == ["ok", "queued"]
    assert world.tick(4.9) == []
    assert world.tick(5.0) == ["r1!queue_timeout"]


@of_tenant("reserve.output_default")
def output_default(made: Made) -> None:
    world = made({"limits": {"tpm": 10_000}, "reserve": {"output_default": 100}})
    world.ask("r", max_output=8192, names_most=False)
    assert world.used("tpm", 0.0) == 110


@of_tenant("reserve.media_tokens")
def media_tokens(made: Made) -> None:
    world = made({"limits": {"tpm": 10_000}, "reserve": {"media_tokens": 100}})
    world.ask("r", text_bytes=30 + 2 * 4096, media=2)
    assert world.used("tpm", 0.0) == 10 + 2 * 100 + 30


def weights(which: str, units: int, made: Made) -> None:
    world = made({"limits": {"tpm": 10_000}, "cost": {which: 3}})
    world.ask("r", tokens=100)
    world.end("r", 0.0, prompt_tokens=100, cached_tokens=60, output_tokens=7)
    assert world.used("tpm", 0.0) == units


for _which, _units in (("input", 3 * 40 + 60 + 7), ("cached", 40 + 3 * 60 + 7), ("output", 100 + 3 * 7)):
    of_tenant(f"cost.{_which}")(partial(weights, _which, _units))


@of_tenant("weight")
def weight(made: Made) -> None:
    """Four parts of five, beside a tenant of weight 1."""
    facts = {"others": [tenant("beta", weight=1)], "endpoint": {"max_seqs": 1}, "length": {"kind": "declared"}}
    world = made({"weight": 4}, **facts)
    world.ask("runs")
    for number in range(60):
        for name in ("acme", "beta"):
            world.ask(f"{name}{number}", tenant=name, tokens=4000, max_output=0)
    assert 30 <= sum(name.startswith("acme") for name in world.order(45)[5:]) <= 34


# -- keys: only in the tenant's own file -------------------------------------------------------------------------------

KEYS = {
    "rpm": ({"rpm": 2}, "quota_requests"),
    "tpm": ({"tpm": 100}, "quota_tokens"),
    "max_concurrency": ({"max_concurrency": 2}, "queued"),
}


def of_key(limits: dict[str, Any], then: str, _: Path) -> None:
    acme = tenant("acme", key("one", limits=limits), key("other"))
    world = Configured([acme])
    assert world.all_told(5, key=key("one")["id"]) == ["ok", "ok", *[then] * 3]
    assert world.told("free", key=key("other")["id"]) == "ok"


for _field, (_fields, _then) in KEYS.items():
    holds(f"tenant.keys[].limits.{_field}")(partial(of_key, _fields, _then))


# -- what the gateway itself looks at ----------------------------------------------------------------------------------


def most_output(where: str) -> Callable[[Path], Any]:
    async def check(directory: Path) -> None:
        made = limited(where, {"limits": {"max_output_tokens": 50}})
        async with served(directory, made.pop("tenants"), **made) as one:
            body = wire.request_body("chat", "x")
            assert (
                await exchange(one.port, wire.request("/v1/chat/completions", body, extra=[bearer("acme")]))
            ).status == 200
            assert one.engine.seen[0].json["max_tokens"] == 50
            more = wire.request("/v1/chat/completions", {**body, "max_tokens": 51}, extra=[bearer("acme")])
            refused = await within(5, exchange(one.port, more), "an answer")
            assert (refused.status, error_of(refused)["code"]) == (400, "max_tokens_above_limit")

    return check


holds("tenant.limits.max_output_tokens")(most_output("file"))
holds("tenant_defaults.limits.max_output_tokens")(most_output("defaults"))
