"""A key that an operator has blocked: what takes that back, in one gateway and in all that share a Redis, and who is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.test_reload import SALT, take_over
from tests.kit.gateway import Gateway, config
from tests.kit.processes import until_async
from tests.kit.redis import RedisServer
from tests.kit.script_engine import ScriptEngine
from tests.kit.stage import Stage, stage
from tests.kit.tenants import bearer, key, tenant

ID = key("acme")["id"]
ACME = tenant("acme", key("acme"))
SHUT = tenant("acme", key("acme", state="blocked"))


async def status(made: Stage) -> int:
    return (await made.ask("chat", "x", extra=[bearer("acme")])).status


async def block(made: Stage) -> None:
    await made.gateway.admin(f"/admin/v1/keys/{ID}/block", method="POST")


async def becomes(made: Stage, wanted: int) -> None:
    async def is_so() -> bool:
        return await status(made) == wanted

    await until_async(is_so, 5.0, f"never {wanted}")


def said(gateway: Gateway) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in gateway.stderr().splitlines() if b'"key"' in line]
    return [(line["event"], line["by"]) for line in lines]


async def test_the_file_has_the_last_word_once_it_has_blocked_the_key_itself(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[ACME], isolation=SALT) as made, made.holding():
        await block(made)
        assert await status(made) == 401
        await take_over(made, {**ACME, "weight": 3})  # whoever changes something else means something else
        assert await status(made) == 401
        await take_over(made, SHUT)
        assert await status(made) == 401
        await take_over(made, ACME)
        assert await status(made) == 200
        await block(made)
        assert await status(made) == 401

        async def told() -> bool:
            return said(made.gateway) == [
                ("key blocked", "kit"),
                ("key no longer blocked by an operator", "its file"),
                ("key blocked", "kit"),
            ]

        await until_async(told, 5.0, "not in the log")


async def replica(engine: ScriptEngine, redis: RedisServer, directory: Path) -> Gateway:
    directory.mkdir()
    settings: dict[str, Any] = {"isolation": SALT, "redis": {"url": redis.url}}
    return Gateway(config([engine.url], **settings), directory, tenants=[ACME])


@pytest.mark.timeout(60)
async def test_what_one_replica_reads_in_its_file_opens_the_key_in_all(tmp_path: Path) -> None:
    async with (
        RedisServer(tmp_path) as redis,
        ScriptEngine() as engine,
        await replica(engine, redis, tmp_path / "a") as one,
        await replica(engine, redis, tmp_path / "b") as two,
    ):
        first, second = Stage(one, [engine]), Stage(two, [engine])
        await block(first)
        await becomes(second, 401)
        await take_over(first, SHUT)
        await take_over(first, ACME)
        await becomes(first, 200)
        await becomes(second, 200)  # whose file has said nothing
        async with await replica(engine, redis, tmp_path / "c") as three:
            third = Stage(three, [engine])
            await becomes(third, 200)
            await block(third)  # at once again: what is newer holds
            for each in (first, second, third):
                await becomes(each, 401)
        assert ("key blocked", "another replica") in said(two)
