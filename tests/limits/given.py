"""Configurations as operators write them, read by the loader, and the core or the gateway that they make."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gateway.app import Gateway
from gateway.config import Loaded, load_document, read
from tests.kit.gateway import config, merged
from tests.kit.http_reader import Response
from tests.kit.processes import free_ports, until
from tests.kit.raw_client import exchange
from tests.kit.script_engine import ScriptEngine
from tests.kit.tenants import tenant
from tests.policies.given import World
from tests.policies.tenants import Quotas

T = TypeVar("T")
SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}
NOWHERE = "http://127.0.0.1:1"
PLAIN: dict[str, Any] = {
    "isolation": SALT,
    "timeouts": {"scale": 1},
    "pools": {"main": {"lanes": "off"}},
    "classes": {
        name: {"on_late": "queue", "min_share": 0} for name in ("critical", "interactive", "standard", "batch")
    },
}


def fleet(
    urls: Sequence[str] = (NOWHERE,), *, endpoint: Mapping[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """forebay.yaml with few surprises: no lanes, no class refuses what is late or has a share."""
    wide = {"max_seqs": 500, "max_prefill_tokens": 1_000_000}
    return merged(config(urls, endpoint={**wide, **(endpoint or {})}), merged(PLAIN, changes))


def loaded(tenants: Sequence[Mapping[str, Any]] | None = None, **changes: Any) -> Loaded:
    """Of a fleet with these tenants' files; None: there are none."""
    files = None if tenants is None else {f"tenants.d/{each['id']}.yaml": yaml.safe_dump(each) for each in tenants}
    return read(yaml.safe_dump(fleet(**changes)), "forebay.yaml", {}, files)


class Configured(Quotas):
    """A core with everything that a configuration tells it. `facts` are what endpoints turn out to be."""

    def __init__(
        self,
        tenants: Sequence[Mapping[str, Any]] | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        made = loaded(tenants, **changes).config
        endpoints = [replace(each.described(), **(facts or {})) for each in made.endpoints]
        World.__init__(self, *endpoints, settings=made.settings())

    def ask(self, name: str, at: float = 0.0, **facts: Any) -> Any:
        return super().ask(name, at, **{"model": "m", **facts})

    def all_told(self, count: int, **facts: Any) -> list[str]:
        """What becomes of so many at once."""
        return [self.told(f"r{number}", **facts) for number in range(count)]

    def order(self, times: int, at: float = 0.0, step_s: float = 0.0) -> list[str]:
        """Who goes, one after the other, when what runs first ends so often; `running` began it."""
        running, gone = list(self.running), []
        for number in range(times):
            names = [text.partition(">")[0] for text in self.finish(running.pop(0), at + number * step_s)]
            running += names
            gone += names
        self.running = running
        return gone

    running: Sequence[str] = ("runs",)


# -- a gateway on sockets, in this process -----------------------------------------------------------------------------


class Served:
    """A gateway that serves, and the engine behind it."""

    def __init__(self, gateway: Gateway, engine: ScriptEngine, port: int, admin_port: int) -> None:
        self.gateway, self.engine, self.port, self.admin_port = gateway, engine, port, admin_port

    async def get(self, path: str, *, admin: bool = False) -> Response:
        message = f"GET {path} HTTP/1.1\r\nhost: kit\r\nconnection: close\r\n\r\n"
        return await exchange(self.admin_port if admin else self.port, message.encode())

    def drain(self) -> None:
        self.gateway.start_drain("a check")


@asynccontextmanager
async def served(
    directory: Path, tenants: Sequence[Mapping[str, Any]] | None = None, **changes: Any
) -> AsyncIterator[Served]:
    """It has the files of an operator, sockets and timers of its own. It ends in a quarter of a second."""
    async with ScriptEngine() as engine:
        port, admin_port = free_ports(2)
        ports: dict[str, Any] = {"listen": {"port": port}, "admin": {"port": admin_port, "tokens": []}}
        file = directory / "forebay.yaml"
        file.write_text(yaml.safe_dump(merged(fleet([engine.url], **changes), ports)))
        for each in tenants or ():
            (directory / "tenants.d").mkdir(exist_ok=True)
            (directory / "tenants.d" / f"{each['id']}.yaml").write_text(yaml.safe_dump(each))
        gateway = Gateway(load_document(file, {}))
        task = asyncio.create_task(gateway.run())
        try:
            await until(lambda: gateway.phase() == "serving" or task.done(), 10, "it does not serve")
            await until(
                lambda: any(standing.up for _, standing in gateway.standings()) or task.done(), 10, "no engine is up"
            )
            yield Served(gateway, engine, port, admin_port)
        finally:
            gateway.start_drain("the end of the check")
            gateway._now.set()
            await task


async def within(seconds: float, wanted: Awaitable[T], what: str) -> T:
    """It must come in time: AssertionError if it does not."""
    try:
        async with asyncio.timeout(seconds):
            return await wanted
    except TimeoutError:
        raise AssertionError(f"{what}: not within {seconds} s") from None


def limited(
    where: str, fields: Mapping[str, Any], *, others: Sequence[Mapping[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    """What says so of the tenant `acme`: its own file, or `tenant_defaults` of forebay.yaml."""
    if where == "file":
        return {"tenants": [tenant("acme", **fields), *others], **more}
    bare = tenant("acme")
    models = bare.pop("models")
    return {"tenants": [bare, *others], "tenant_defaults": {"models": models, **fields}, **more}
