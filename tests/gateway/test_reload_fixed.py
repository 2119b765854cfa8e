"""What only a restart can take over: every such field refuses a reload by its name, and keeps what it was."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel

from gateway.config import Config
from tests.gateway.test_reload import SALT, reloaded, rewrite
from tests.kit.stage import stage

NOBODY = {"url": "redis://127.0.0.1:1/0"}
OTHERS: dict[str, Any] = {
    "listen.host": "127.0.0.2",
    "listen.port": 1,
    "admin.host": "127.0.0.2",
    "admin.port": 1,
    "isolation.salt_secret": "another secret of thirty-two bytes",
    "affinity.block_tokens": 32,
    "length.state_file": "lengths.json",
    "timeouts.scale": 0.2,
    "telemetry.journal": "journal.jsonl",
    "telemetry.tenant_labels": 7,
    "redis.url": "redis://127.0.0.1:2/0",
    "redis.cluster": True,
    "redis.prefix": "other",
    "redis.sync_s": 0.5,
    "redis.lease_s": 60,
}


def restart_fields(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """All that say so themselves, in sections that may be left out too."""
    for name, field in section.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("x-restart"):
            yield f"{path}{name}"
        inside = field.annotation
        for each in get_args(inside) if isinstance(inside, UnionType) else (inside,):
            if isinstance(each, type) and issubclass(each, BaseModel):
                yield from restart_fields(each, f"{path}{name}.")


async def test_what_only_a_restart_can_take_over_is_refused_by_name_and_stays_what_it_was(tmp_path: Path) -> None:
    assert {*OTHERS, "redis", "listen.tls"} == set(restart_fields(Config))  # those two: below, and test_tls.py
    async with stage(tmp_path, isolation=SALT, redis=NOBODY) as made, made.holding():
        good, before = made.gateway.settings, await made.gateway.admin("/admin/v1/config")
        for path, value in OTHERS.items():
            section, name = path.split(".")
            rewrite(made.gateway, **{section: {name: value}}, limits={"body_bytes": "1KiB"})
            answer = await reloaded(made.gateway)
            assert (answer.status, [each["path"] for each in json.loads(answer.body)["errors"]]) == (422, [path])
            assert (await made.ask("chat", "x" * 3000)).status == 200  # and nothing else of that file is in force
            now = await made.gateway.admin("/admin/v1/config")
            assert (now["checksum"], now["config"]) == (before["checksum"], before["config"])
            made.gateway.settings = good


async def test_redis_that_comes_or_goes_needs_a_restart(tmp_path: Path) -> None:
    async with stage(tmp_path, isolation=SALT) as made, made.holding():
        rewrite(made.gateway, redis=NOBODY)
        answer = await reloaded(made.gateway)
        assert (answer.status, [each["path"] for each in json.loads(answer.body)["errors"]]) == (422, ["redis"])
