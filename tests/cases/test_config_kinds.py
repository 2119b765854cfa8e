"""All or nothing, nothing silently ignored, quick revocation: cases C085 to C089, beside T20 and row 45."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Config, ConfigErrors, read
from gateway.config.schema import Schema, inner, resolved, schema
from gateway.config.section import Section
from gateway.config.tenant import Tenant
from tests.gateway.test_config import GOOD
from tests.gateway.test_reload import Gate, save
from tests.kit.fleet import fleet
from tests.kit.gateway import Gateway
from tests.kit.processes import until, until_async
from tests.kit.redis import needs_redis
from tests.kit.stage import error_of, stage
from tests.kit.tenants import bearer, key, tenant

SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}
CROWD = [tenant(f"t{number:02}") for number in range(20)]


# -- C085: the old version stays whole


async def failed(gateway: Gateway) -> bool:
    return (await gateway.metrics()).sum("forebay_config_reload_failed") == 1


async def test_c085_one_bad_file_among_twenty_changes_nothing_of_the_others(tmp_path: Path) -> None:
    """Unreadable, half-written, or bad: noticed without being asked; a good one is in force within two seconds."""
    async with stage(tmp_path, tenants=CROWD, isolation=SALT, timeouts={"scale": 1}) as made, made.holding():
        before = (await made.gateway.admin("/admin/v1/config"))["checksum"]
        bad = tmp_path / "tenants.d" / "t07.yaml"
        good = bad.read_bytes()
        save(made, tenant("t08", weight=9))  # good, and not taken over alone
        statuses: list[int] = []
        going = True

        async def load() -> None:
            while going:
                answer = await made.ask("chat", "x", extra=[bearer(f"t{len(statuses) % 20:02}")])
                statuses.append(answer.status)
                await asyncio.sleep(0.02)

        beside = asyncio.create_task(load())
        bad.unlink()
        bad.symlink_to(bad)  # nobody can read it, root neither
        for data in (None, good[: len(good) // 2], good + b"limits: {rpm: -1}\n"):
            if data is not None:
                bad.unlink()
                bad.write_bytes(data)

            async def said() -> bool:
                told = await made.gateway.admin("/admin/v1/config")
                errors = (told["last_failure"] or {"errors": []})["errors"]
                return any("t07.yaml" in each["file"] for each in errors) and await failed(made.gateway)

            await until_async(said, 4.0, f"nobody says what is wrong with {data!r}")
            told = await made.gateway.admin("/admin/v1/config")
            assert told["checksum"] == before
            assert told["config"]["tenants"]["t08"]["weight"] == 1
        began_s = time.monotonic()
        bad.write_bytes(good)

        async def taken() -> bool:
            return not await failed(made.gateway)

        await until_async(taken, 2.0, "the good files are not in force")
        assert time.monotonic() - began_s < 2.0
        assert (await made.gateway.admin("/admin/v1/config"))["config"]["tenants"]["t08"]["weight"] == 9
        await until(lambda: len(statuses) > 50, 10.0, "hardly anybody has asked meanwhile")
        going = False
        await beside
        assert set(statuses) == {200}


# -- C086: a change is that change


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif before != after:
        yield path


async def test_c086_a_changed_weight_changes_nothing_else(tmp_path: Path) -> None:
    """Retries, affinity and others are set to what is no default; 20 streams run, and others come all the while."""
    facts: dict[str, Any] = {
        "retries": {"max_attempts": 3}, "affinity": {"ttl_s": 99, "max_load_ratio": 2}, "endpoint": {"max_seqs": 64},
        "admission": {"max_queued": 77, "ordering": "edf"}, "classes": {"standard": {"queue_timeout_s": 44}},
        "tenant_defaults": {"reserve": {"output_default": 7}}, "timeouts": {"scale": 1},
    }  # fmt: skip
    tenants = [tenant("acme", limits={"rpm": 6000, "tpd": 1_000_000}), tenant("beta")]
    async with stage(tmp_path, engines=2, tenants=tenants, isolation=SALT, **facts) as made, made.holding():
        gate = Gate()
        for engine in made.engines:
            engine.answer = gate.answer
        streams = [await made.begin("chat", f"{at}", stream=True, extra=[bearer("acme")]) for at in range(20)]
        for stream in streams:
            await stream.read_until(b"data:")
        before = await made.gateway.admin("/admin/v1/config")
        usage = await made.gateway.admin("/admin/v1/tenants/acme/usage")
        opened = sum(engine.connections for engine in made.engines)
        beside = [
            asyncio.create_task(made.ask("chat", f"beside {at}", stream=True, extra=[bearer("beta")]))
            for at in range(20)
        ]
        save(made, {**tenants[0], "weight": 3})

        async def changed() -> bool:
            return bool((await made.gateway.admin("/admin/v1/config"))["checksum"] != before["checksum"])

        await until_async(changed, 3.0, "the change is not taken over")
        after = await made.gateway.admin("/admin/v1/config")
        assert list(differences(before["config"], after["config"])) == ["tenants.acme.weight"]
        now = await made.gateway.admin("/admin/v1/tenants/acme/usage")
        for name in ("reserved", "held", "settled", "denied"):
            assert [each[name] for each in now["limits"] + now["budgets"]] == [
                each[name] for each in usage["limits"] + usage["budgets"]
            ]
        assert (await made.gateway.metrics()).sum("forebay_requests_inflight") == 40
        gate.open.set()
        assert {(await stream.response()).status for stream in streams} == {200}
        assert {answer.status for answer in await asyncio.gather(*beside)} == {200}
        assert sum(engine.connections for engine in made.engines) == opened + 20
        for stream in streams:
            stream.close()


# -- C087: nothing is accepted and ignored; the fields' own checks are tests/limits


def mappings() -> list[tuple[type[Section], tuple[str | int, ...]]]:
    """Every place of both kinds of files where fields may stand."""
    return [(root, path) for root in (Config, Tenant) for path in ((), *_below(schema(root), root, ()))]


def _below(node: Schema, root: type[Section], path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    for name, each in node.get("properties", {}).items():
        found = resolved(each, root)
        here: tuple[str | int, ...] = (*path, name)
        if "properties" not in found and (within := inner(found, root)).get("properties"):
            here = (*here, 0) if "items" in found or "anyOf" in found else (*here, "x")
            found = within
        if "properties" in found:
            yield here
            yield from _below(found, root, here)


def written(path: tuple[str | int, ...], inside: dict[str, Any]) -> Any:
    """A file in which nothing stands but that."""
    made: Any = inside
    for step in reversed(path):
        made = [made] if isinstance(step, int) else {step: made}
    return made


@pytest.mark.parametrize(
    ("root", "path"), mappings(), ids=lambda each: each.__name__ if isinstance(each, type) else ".".join(map(str, each))
)
def test_c087_a_misspelt_key_is_an_error_with_its_path_at_every_level(
    root: type[Section], path: tuple[str | int, ...]
) -> None:
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    text = yaml.safe_dump(written(path, {"maxx_tokenz": 5}))
    main, tenants = (text, None) if root is Config else (GOOD, {"tenants.d/acme.yaml": text})
    with pytest.raises(ConfigErrors) as caught:
        read(main, "forebay.yaml", {}, tenants)
    found = [error for error in caught.value.errors if error.path == f"{where}.maxx_tokenz".removeprefix(".")]
    assert [error.message.partition(";")[0] for error in found] == ["unknown key"], caught.value
    assert found[0].line > 0 and found[0].column > 0


def test_c087_there_are_as_many_levels_as_there_seem() -> None:
    assert {("models", "x", "limits"), ("admin", "tokens", 0), ("classes", "batch", "slo")} <= {
        path for root, path in mappings() if root is Config
    }
    assert {("keys", 0, "limits"), ("models", 0, "limits"), ("budgets", 0), ()} <= {
        path for root, path in mappings() if root is Tenant
    }


# -- C088: quick revocation, also with two gateways


REVOKED = {
    "blocked": (key("acme", state="blocked"), 401),
    "deleted": (key("another"), 401),
    "lowered": (key("acme", limits={"rpm": 1}), 429),
}


@needs_redis
@pytest.mark.parametrize("how", REVOKED)
async def test_c088_what_becomes_of_a_key_in_the_files_holds_on_every_gateway_within_two_seconds(
    tmp_path: Path, how: str
) -> None:
    record, status = REVOKED[how]
    acme = tenant("acme", key("acme"), key("other"))
    async with fleet(tmp_path, [acme]) as made:
        last = [0.0, 0.0]
        going = True

        async def load(replica: int) -> None:
            while going:
                if (await made.ask(replica)).status == 200:
                    last[replica] = time.monotonic()
                await asyncio.sleep(0.02)

        loads = [asyncio.create_task(load(replica)) for replica in (0, 1)]
        await asyncio.sleep(1.0)
        assert all(last)
        path = tmp_path / "tenants.d" / "acme.yaml"
        beside = path.with_suffix(".new")
        beside.write_text(yaml.safe_dump(tenant("acme", record, key("other"))))
        os.replace(beside, path)
        changed_s = time.monotonic()
        await asyncio.sleep(3.5)
        going = False
        await asyncio.gather(*loads)
        most = 2.0 + 0.25  # and what was under way
        allowed = [at - changed_s for at in last]
        assert max(allowed) <= most, allowed
        for replica in (0, 1):
            refused = await made.ask(replica)
            assert refused.status == status or error_of(refused)["code"] == "too_many_auth_failures"
        assert (await made.ask(0, "other")).status == 200


# -- C089: what is not said is not there


def test_c089_a_limit_of_requests_makes_none_of_tokens() -> None:
    text = yaml.safe_dump(tenant("acme", limits={"rpm": 10}))
    made = read(GOOD.replace("models:\n  m:", "models:\n  m:"), "f.yaml", {}, {"tenants.d/acme.yaml": text}).config
    limits = made.settings().tenants["acme"].limits
    assert (limits.rpm, limits.tpm, limits.itpm, limits.otpm) == (10, None, None, None)
    assert made.settings().tenants["acme"].budgets == ()


def defaults(root: type[Section]) -> Iterator[tuple[str, object, object]]:
    """By path: what the schema says stands there if nothing does, and what then does."""
    for name, each in root.model_fields.items():
        known = each.alias or name
        told = schema(root)["properties"][known]
        if "default" in told and not each.is_required():
            yield f"{root.__name__}.{known}", told["default"], json.loads(json.dumps(each.get_default(), default=str))


def test_c089_the_schema_says_the_defaults_that_hold() -> None:
    from gateway.config import process, scheduling, store

    sections = [each for module in (process, scheduling, store) for each in vars(module).values()
                if isinstance(each, type) and issubclass(each, Section)]  # fmt: skip
    found = [each for section in {*sections, Config, Tenant} for each in defaults(section)]
    assert len(found) > 60
    assert [each for each in found if each[1] != each[2] and not isinstance(each[1], dict)] == []
