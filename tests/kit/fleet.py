"""Several replicas of a gateway over one Redis, with one scripted engine behind them all."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit import wire
from tests.kit.gateway import Gateway, Launch, config
from tests.kit.http_reader import Response
from tests.kit.processes import ROOT
from tests.kit.raw_client import Connection, connect
from tests.kit.redis import RedisServer
from tests.kit.script_engine import ScriptEngine
from tests.kit.tenants import bearer

PATIENT = {"timeout_s": 1.0, "connect_timeout_s": 1.0}  # a machine that is busy for a moment is no outage
QUICK = {"timeout_s": 0.05, "connect_timeout_s": 0.1}  # as when nothing is said of it
SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}


@dataclass(slots=True)
class Fleet:
    """`ask(n)` goes to the n-th replica, on a connection that is kept."""

    redis: RedisServer
    engine: ScriptEngine
    replicas: Sequence[Gateway]
    idle: dict[int, list[Connection]] = field(default_factory=dict)

    async def ask(
        self, replica: int, tenant: str = "acme", *, tokens: int = 10, timeout_s: float = 30.0, **more: Any
    ) -> Response:
        """A prompt of so many tokens exactly; the answer may have 30."""
        body = {"prompt": list(range(tokens)), "max_tokens": 30, **more}
        message = wire.request("/v1/completions", {"model": "m", **body}, extra=[bearer(tenant)])
        waiting = self.idle.setdefault(replica, [])
        while waiting and waiting[-1].left():  # not asked for a while, and closed for it
            waiting.pop().close()
        connection = waiting.pop() if waiting else await connect(self.replicas[replica].port)
        try:
            await connection.send(message)
            answer = await connection.response(timeout_s)
        except BaseException:
            connection.reset()
            raise
        if answer.header("connection") == "close":
            connection.close()
        else:
            waiting.append(connection)
        return answer

    async def sum(self, name: str, **labels: str) -> float:
        """Of all replicas that run."""
        running = [each for each in self.replicas if each.child is not None and not each.child.exited]
        return sum([(await each.metrics()).sum(name, **labels) for each in running])

    def leave(self, replica: int) -> None:
        """Close what is kept to it: while it drains, a kept connection has seconds to be used."""
        for connection in self.idle.pop(replica, ()):
            connection.close()

    def close(self) -> None:
        for replica in list(self.idle):
            self.leave(replica)


CLOCK = """\
import time

now, now_ns, fixed = time.time, time.time_ns, {seconds}
time.time = lambda: now() + fixed
time.time_ns = lambda: now_ns() + int(fixed * 1e9)
"""


def ahead(directory: Path, seconds: float) -> dict[str, str]:
    """The environment of a process whose wall clock is so far ahead; its monotonic one is not."""
    if not seconds:
        return {}
    folder = directory / f"ahead{seconds:+.0f}"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(CLOCK.format(seconds=seconds))  # Python imports it at its start
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


@asynccontextmanager
async def fleet(
    directory: Path,
    tenants: Sequence[Mapping[str, Any]],
    *,
    replicas: int = 2,
    redis: Any = None,
    clocks: Sequence[float] = (),
    **changes: Any,
) -> AsyncIterator[Fleet]:
    """`redis` is merged into that section. Timers are not scaled. `clocks`: seconds that replicas' clocks are ahead."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(RedisServer(directory))
        engine = await stack.enter_async_context(ScriptEngine())
        fixed = {
            "redis": {"url": server.url, "expected_replicas": replicas, **PATIENT, **(redis or {})},
            "isolation": SALT,
            "timeouts": {"scale": 1},
        }
        gateways = [
            Gateway(
                config([engine.url], **{**fixed, **changes}),
                directory,
                name=f"replica{at}",
                tenants=tenants,
                launch=Launch(env=ahead(directory, clocks[at] if at < len(clocks) else 0.0)),
            )
            for at in range(replicas)
        ]
        made = Fleet(server, engine, gateways)
        await asyncio.gather(*(stack.enter_async_context(each) for each in gateways))
        stack.callback(made.close)
        yield made
