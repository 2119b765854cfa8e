"""Limits, budgets and costs in the files: what they become, what is inherited, what is refused, what is warned of."""

import pytest

from policies import types
from tests.gateway.test_tenant_files import ACME, FLEET, KEY, config, errors_of, files, warnings_of

UNBOUND = "limits: {max_concurrency: null, max_queued: null, max_queued_bytes: null"


def described(text: str, fleet: str = FLEET) -> types.Tenant:
    return config(fleet, acme=text).settings().tenants["acme"]


def test_a_tenant_may_have_everything() -> None:
    text = f"""\
version: 1
id: acme
models: [{{name: m, limits: {{tpm: 400, max_concurrency: 48}}}}, {{name: n}}]
limits: {{rpm: 1200, tpm: 9000, itpm: 8000, otpm: 7000, tpd: 200000000, burst_s: 30, max_concurrency: 60, max_queued: 0, max_queued_bytes: 64KiB, queue_timeout_s: 20}}
reserve: {{output_default: 512, media_tokens: 0, oversize: clamp}}
cost: {{input: 1.0, cached: 0.1, output: 2.0}}
budgets: [{{id: month, amount: 3000000000, period: month, soft_ratio: 0.5}}]
mode: shadow
keys: [{KEY[:-1]}, limits: {{rpm: 300}}}}]
"""
    assert described(text) == types.Tenant(
        id="acme",
        limits=types.Limits(rpm=1200, tpm=9000, itpm=8000, otpm=7000, max_concurrency=60),
        burst_s=30.0,
        cost=types.Cost(input=1.0, cached=0.1, output=2.0),
        reserve=types.Reserve(output_default=512, media_tokens=0, oversize="clamp"),
        budgets=(
            types.Budget(id="tpd", amount=200_000_000),
            types.Budget(id="month", amount=3_000_000_000, period="month", soft_ratio=0.5),
        ),
        mode="shadow",
        models={"m": types.Limits(tpm=400, max_concurrency=48)},
        keys={"k3m9x2p7q1wz": types.Limits(rpm=300)},
        max_queued=0,
        max_queued_bytes=65_536,
        queue_timeout_s=20.0,
    )


def test_absent_inherits_null_is_no_limit_and_what_is_left_out_everywhere_is_a_default() -> None:
    fleet = FLEET + "tenant_defaults: {limits: {rpm: 60, tpm: 1000}, mode: shadow, cost: {output: 3}}\n"
    acme = described(ACME + "limits: {rpm: null, max_queued: 5}\n", fleet)
    assert acme.limits == types.Limits(tpm=1000, max_concurrency=64)
    assert (acme.max_queued, acme.max_queued_bytes, acme.mode, acme.cost.output) == (5, 64 << 20, "shadow", 3.0)


def test_who_lifts_all_bounds_is_not_limited_at_all() -> None:
    assert described(ACME + UNBOUND + "}\n") == types.Tenant(id="acme")


def test_without_tenant_files_only_what_is_written_limits_everybody() -> None:
    def everybody(more: str) -> object:
        from gateway.config import read

        return read(FLEET + "listen: {host: 127.0.0.1}\n" + more, "f.yaml", {"SALT": "s" * 32}, None).config.settings()

    assert everybody("").tenants == {}  # type: ignore[attr-defined]
    tenants = everybody("tenant_defaults: {limits: {rpm: 5}}\n").tenants  # type: ignore[attr-defined]
    assert tenants == {"default": types.Tenant(id="default", limits=types.Limits(rpm=5))}


def test_a_model_has_limits_for_all_together() -> None:
    fleet = FLEET.replace("m: {context_tokens: 4096}", "m: {context_tokens: 4096, limits: {rpm: 12, tpm: 600}}")
    models = config(fleet, acme=ACME).settings().models
    assert models["m"] == types.Model(name="m", context_tokens=4096, limits=types.Limits(rpm=12, tpm=600))
    assert models["n"].limits == types.Limits()


@pytest.mark.parametrize(
    ("more", "errors"),
    [
        ("limits: {rpm: 0}", ["5:15: limits.rpm: must be a whole number from 1 to 10000000, not 0"]),
        ("limits: {burst_s: 0.5}", ["5:19: limits.burst_s: must be a number of seconds from 1 to 600, not 0.5"]),
        ("cost: {input: 0, cached: 0, output: 0}", ["5:7: cost: every token is worth 0: no limit of tokens would ever be reached"]),
        ("limits: {otpm: 5}\ncost: {output: 0}", ["5:16: limits.otpm: counts nothing: what it counts is worth 0 (cost)"]),
        ("budgets: [{id: rpm, amount: 5}]", ["5:16: budgets[0].id: rpm is the name of a rate"]),
        ("budgets: [{id: a, amount: 5}, {id: a, amount: 6}]", ["5:36: budgets[1].id: another budget has this id"]),
        ("limits: {tpd: 5}\nbudgets: [{id: tpd, amount: 5}]", ["6:16: budgets[0].id: limits.tpd is that"]),
        ("budgets: [{id: a, amount: 5, period: year}]", ["5:38: budgets[0].period: must be 'day', 'week' or 'month', not 'year'"]),
        ("mode: off", ["5:7: mode: must be 'enforce' or 'shadow', not 'off'"]),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(more: str, errors: list[str]) -> None:
    found = errors_of(FLEET, files(acme=ACME + more + "\n"))
    assert found == [f"tenants.d/acme.yaml:{error}" for error in errors]


def test_what_will_hardly_be_meant_is_warned_of() -> None:
    keyed = ACME.replace(KEY, KEY[:-1] + ", limits: {rpm: 61}}")
    assert warnings_of(acme=keyed + "limits: {rpm: 60, tpm: 4000}\n") == [
        "tenants.d/acme.yaml:4:115: keys[0].limits.rpm: is above the tenant's 60, which holds",
        "tenants.d/acme.yaml:5:24: limits.tpm: holds less than one answer of 4096 tokens, the most of m:"
        " such a wish is refused",
    ]
    slots = ACME.replace(KEY, KEY[:-1] + ", limits: {max_concurrency: 65}}")  # the tenant has 64 where nothing is said
    assert warnings_of(acme=slots) == [
        "tenants.d/acme.yaml:4:127: keys[0].limits.max_concurrency: is above the tenant's 64, which holds"
    ]
    assert warnings_of(acme=slots + "limits: {max_concurrency: null}\n") == []
    assert warnings_of(acme=ACME + "mode: shadow\n") == [
        "tenants.d/acme.yaml:5:7: mode: shadow: there is no rate and no budget to try out"
    ]
