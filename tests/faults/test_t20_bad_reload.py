"""T20: broken files under load. Nothing is lost, nothing changes, and it is told until they are good again.

Every mutant is a file that the loader refuses: half-written, of the wrong shape, too large, or contradicting another.
"""

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.config import ConfigErrors, load_document
from tests.gateway.test_reload import SALT, reloaded
from tests.kit.gateway import Gateway
from tests.kit.raw_client import exchange
from tests.kit.stage import Stage, stage
from tests.kit.tenants import bearer, tenant

MUTANTS = 200
FLEET: dict[str, str] = {
    "unknown key": "\nspeed: 3\n",
    "key given twice": "\nversion: 1\n",
    "negative": "\nadmission: {max_queued: -1}\n",
    "out of range": "\nlimits: {body_bytes: 1TiB}\n",
    "wrong type": "\nretries: {max_attempts: many}\n",
    "alias bomb": "\nprompts: [&a [x, x, x, x], &b [*a, *a, *a, *a], &c [*b, *b, *b, *b], *c, *c, *c, *c]\n",
    "second document": "\n---\nversion: 1\n",
    "10 MB": "\n" + "# x\n" * 2_500_000,
    "deep": "\nx: " + "[" * 60 + "]" * 60 + "\n",
    "a tab": "\n\tx: 1\n",
    "unset variable": '\nredis: {url: "${NOT_THERE}"}\n',
    "needs a restart": "\nlength: {state_file: elsewhere.json}\n",
}
TENANT: dict[str, Callable[[str], str]] = {
    "another id": lambda text: text.replace("id: acme", "id: beta", 1),
    "unknown model": lambda text: text.replace("name: m", "name: mm", 1),
    "no models": lambda text: text.replace("models:", "modells:", 1),
    "weight 0": lambda text: text + "weight: 0\n",
    "partition that is not there": lambda text: text + "partition: finance\n",
    "class that is not there": lambda text: text + "class: urgent\n",
    "key without hash": lambda text: text.replace("sha256", "md5", 1),
}


class Files:
    """The two files of the gateway under test, and as many broken ones as are asked for."""

    def __init__(self, gateway: Gateway, seed: int) -> None:
        self.fleet, self.tenant = gateway.file, gateway.directory / "tenants.d" / "acme.yaml"
        self.good = {path: path.read_bytes() for path in (self.fleet, self.tenant)}
        self._random = random.Random(seed)

    def restore(self) -> None:
        for path, data in self.good.items():
            write(path, data)

    def mutants(self, count: int) -> Iterator[tuple[Path, bytes]]:
        """Every kind at least once, then cuts and flipped bytes."""
        named = [(self.fleet, self.good[self.fleet] + more.encode()) for more in FLEET.values()]
        named += [(self.tenant, change(self.good[self.tenant].decode()).encode()) for change in TENANT.values()]
        yield from named
        for _ in range(count - len(named)):
            yield self._broken()

    def _broken(self) -> tuple[Path, bytes]:
        while True:
            path = self._random.choice([self.fleet, self.tenant])
            data = bytearray(self.good[path])
            if self._random.random() < 0.5:
                del data[self._random.randrange(1, len(data) - 1) :]
            else:
                for _ in range(self._random.randrange(1, 4)):
                    data[self._random.randrange(len(data))] = self._random.choice(b"\x00\xff{}[]:,&*!'\"\n #-9z")
            if self._is_refused(path, bytes(data)):
                return path, bytes(data)

    def _is_refused(self, path: Path, data: bytes) -> bool:
        """Judged where nobody else looks."""
        aside = self.fleet.parent / "aside"
        (aside / "tenants.d").mkdir(parents=True, exist_ok=True)
        for each in (self.fleet, self.tenant):
            (aside / each.relative_to(self.fleet.parent)).write_bytes(data if each == path else self.good[each])
        try:
            load_document(aside / self.fleet.name, os.environ)
        except ConfigErrors:
            return True
        return False


def write(path: Path, data: bytes) -> None:
    """As editors do: a file beside it takes its name."""
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)


async def ask(made: Stage, text: str) -> int:
    message = made.message("chat", text, stream=True, extra=[bearer("acme")])
    return (await exchange(made.gateway.port, message)).status


@pytest.mark.timeout(90)
async def test_row_43_and_c085_broken_files_under_load_lose_no_request_and_change_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2, tenants=[tenant("acme")], isolation=SALT) as made, made.holding():
        files = Files(made.gateway, seed=int(os.environ.get("SEED", "20")))
        before = (await made.gateway.admin("/admin/v1/config"))["checksum"]
        statuses: list[int] = []
        going = True

        async def load() -> None:
            while going:
                statuses.append(await ask(made, f"n{len(statuses)}"))
                await asyncio.sleep(0.02)

        jobs = [asyncio.create_task(load()) for _ in range(4)]
        for path, data in files.mutants(MUTANTS):
            write(path, data)
            answer = await reloaded(made.gateway)
            assert answer.status == 422, data[-200:]
            assert json.loads(answer.body)["errors"][0]["message"]
            write(path, files.good[path])
        write(files.fleet, b"version: 2\n")
        assert (await reloaded(made.gateway)).status == 422
        metrics = await made.gateway.metrics()
        assert metrics.by("forebay_config_info", "checksum") == {before: 1.0}
        assert metrics.sum("forebay_config_reload_failed") == 1
        assert metrics.sum("forebay_config_reload_total", result="error") >= MUTANTS
        files.restore()
        assert (await reloaded(made.gateway)).status == 200
        assert (await made.gateway.metrics()).sum("forebay_config_reload_failed") == 0
        going = False
        await asyncio.gather(*jobs)
        assert len(statuses) > 100
        assert set(statuses) == {200}
