"""What operators are told of tenants and keys, and of when these were last used: over the admin API and by the command."""

import asyncio
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway.workers import merge
from tests.kit.gateway import ADMIN_TOKEN
from tests.kit.processes import ROOT
from tests.kit.stage import Stage, error_of, stage
from tests.kit.tenants import bearer, key, tenant

SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}
TENANTS = [
    tenant("acme", key("acme"), key("idle"), key("late", expires="2026-01-01T00:00:00Z"), key("old", state="blocked")),
    tenant("gone", state="disabled"),
]


async def told(made: Stage) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in (await made.gateway.admin("/admin/v1/keys"))["keys"]}


def close(moment: str) -> bool:
    return abs(datetime.now(UTC) - datetime.fromisoformat(moment)) < timedelta(seconds=30)


async def test_every_key_is_told_with_its_state_and_its_last_use_and_nothing_secret(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=TENANTS, isolation=SALT) as made, made.holding():
        for who, status in (("acme", 200), ("late", 401), ("old", 401), ("gone", 401)):
            assert (await made.ask("chat", "x", extra=[bearer(who)])).status == status
        found = await told(made)
        states = {each["name"]: each["state"] for each in found.values()}
        assert states == {"acme": "active", "idle": "active", "late": "expired", "old": "blocked", "gone": "disabled"}
        used = {each["name"]: each["last_use"] for each in found.values() if each["last_use"]}
        assert list(used) == ["acme"] and close(used["acme"])
        assert found[key("late")["id"]] == {
            "id": key("late")["id"], "tenant": "acme", "name": "late", "state": "expired", "blocked_by": None,
            "expires": "2026-01-01T00:00:00.000Z", "last_use": None,
        }  # fmt: skip
        path = f"/admin/v1/keys/{key('idle')['id']}/block"
        await made.gateway.admin(path, method="POST")
        shut = {each["name"]: each["blocked_by"] for each in (await told(made)).values() if each["state"] == "blocked"}
        assert shut == {"idle": "operator", "old": "file"}
        states = [line.split()[2:4] for line in (await listed(made, ADMIN_TOKEN)).splitlines()]
        assert [line for line in states if line[0] == "blocked"] == [["blocked", "now"], ["blocked", "-"]]
        refused = await made.gateway.get("/admin/v1/keys", port=made.gateway.admin_port)
        assert refused.status == 401


async def test_tenants_are_told_and_what_is_in_force_for_one_and_what_all_have_used(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=TENANTS, isolation=SALT, tenant_defaults={"weight": 3}) as made:
        await made.ask("chat", "x", extra=[bearer("acme")])
        tenants = (await made.gateway.admin("/admin/v1/tenants"))["tenants"]
        assert [(each["id"], each["state"], each["weight"]) for each in tenants] == [
            ("acme", "active", 3), ("gone", "disabled", 3),
        ]  # fmt: skip
        one = await made.gateway.admin("/admin/v1/tenants/acme")
        assert one["keys"] == tenants[0]["keys"] == [key(name)["id"] for name in ("acme", "idle", "late", "old")]
        assert (one["limits"]["max_concurrency"], one["cost"]["output"], one["weight"]) == (64, 1, 3)
        usages = (await made.gateway.admin("/admin/v1/usage"))["tenants"]
        assert usages == [await made.gateway.admin(f"/admin/v1/tenants/{name}/usage") for name in ("acme", "gone")]
        assert usages[0]["concurrency"] == [{"scope": "tenant", "limit": 64, "used": 0}]
        unknown = await made.gateway.get("/admin/v1/tenants/x", port=made.gateway.admin_port, token=ADMIN_TOKEN)
        assert (unknown.status, error_of(unknown)["code"]) == (404, "unknown_tenant")
        assert key("acme")["sha256"] not in json.dumps([one, tenants, usages])


async def test_the_command_lists_last_uses_where_the_gateway_answers(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=TENANTS, isolation=SALT) as made:
        await made.ask("chat", "x", extra=[bearer("acme")])
        rows = json.loads(await listed(made, ADMIN_TOKEN, "--json"))
        uses = {row["name"]: row["last_use"] for row in rows}
        assert close(uses.pop("acme")) and set(uses.values()) == {None}
        assert (await listed(made, ADMIN_TOKEN)).splitlines()[0].split()[-2:] == ["last_use", "name"]
        assert "last_use" not in await listed(made, "wrong")


async def listed(made: Stage, token: str, *more: str) -> str:
    """What `forebay keys list` says."""
    argv = ["-m", "gateway", "keys", "list", "--config", str(made.gateway.file), *more]
    environ = {**os.environ, "FOREBAY_ADMIN_TOKEN": token, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    return out.decode()


def test_of_several_workers_the_last_use_is_told() -> None:
    def body(used: str | None, other: str | None) -> dict[str, Any]:
        return {"keys": [{"id": "a", "last_use": used}, {"id": "b", "last_use": other}]}

    assert merge.keys(
        [body(None, None), body("2026-11-29T12:00:00.000Z", None), body("2026-11-28T12:00:00.000Z", None)]
    ) == (body("2026-11-29T12:00:00.000Z", None))


def test_usage_of_each_tenant_is_added_up_over_workers() -> None:
    def body(queued: int) -> dict[str, Any]:
        queue = {"queued": queued, "queued_bytes": queued, "max_queued": 9, "max_queued_bytes": 9, "classes": {}}
        none: dict[str, Any] = {"limits": [], "budgets": [], "concurrency": [], "shares": []}
        told = {"tenant": "acme", "degraded": False, "replicas": {"here": 1, "live": 2}, **none, "queue": queue}
        return {"tenants": [told, {**told, "tenant": "beta"}]}

    joined = merge.usages([body(1), body(2)])["tenants"]
    assert [(each["tenant"], each["queue"]["queued"]) for each in joined] == [("acme", 3), ("beta", 3)]
