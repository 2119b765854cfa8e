"""A gateway with scripted engines behind it, and the few calls every fault test makes against it."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.kit import wire
from tests.kit.gateway import Gateway, Launch, config
from tests.kit.http_reader import Response
from tests.kit.invariants import Invariants, holding
from tests.kit.raw_client import Connection, connect, exchange
from tests.kit.script_engine import ScriptEngine

T = TypeVar("T")
PATHS = {
    **{name: path.decode() for name, path in wire.ROUTES.items()},
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "score": "/v1/score",
}

EVERY_PLACE = {name: {"reserved": 0, "ceiling": 1} for name in ("critical", "interactive", "standard")}
"""Classes that may hold every place of a pool."""


@dataclass(slots=True)
class Stage:
    """One gateway, its engines in the order of its endpoints (`e0`, `e1` ...)."""

    gateway: Gateway
    engines: Sequence[ScriptEngine]
    calls: int = field(default=0)

    @property
    def engine(self) -> ScriptEngine:
        return self.engines[0]

    def holding(self) -> Any:
        """The invariants around the body of a test."""
        return holding(self.gateway, *self.engines)

    def reset(self) -> None:
        """Engines as new: healthy, echoing, nothing seen."""
        for engine in self.engines:
            engine.answer, engine.once, engine.healthy = wire.echo, [], True
            engine.clear()

    def message(
        self, route: str, text: str, *, stream: bool = False, extra: Sequence[tuple[str, str]] = (), **more: Any
    ) -> bytes:
        model = "m" if route in wire.ROUTES else "emb"
        return wire.request(
            PATHS[route], wire.request_body(route, text, stream=stream, **{"model": model, **more}), extra=extra
        )

    async def ask(
        self, route: str, text: str, *, stream: bool = False, timeout_s: float = 15.0, **more: Any
    ) -> Response:
        """One request on a connection of its own."""
        return await exchange(self.gateway.port, self.message(route, text, stream=stream, **more), timeout_s=timeout_s)

    async def begin(self, route: str, text: str, *, stream: bool = False, **more: Any) -> Connection:
        """A connection on which that request has been sent."""
        connection = await connect(self.gateway.port)
        await connection.send(self.message(route, text, stream=stream, **more))
        return connection


@asynccontextmanager
async def stage(
    directory: Path,
    *,
    engines: int = 1,
    launch: Launch | None = None,
    name: str = "gateway",
    tenants: Sequence[Mapping[str, Any]] | None = None,
    **changes: Any,
) -> AsyncIterator[Stage]:
    """`async with stage(tmp_path, engines=3, timeouts={...}) as stage:`; the log must be quiet at the end."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(ScriptEngine()) for _ in range(engines)]
        gateway = Gateway(
            config([one.url for one in made], **changes), directory, launch=launch, name=name, tenants=tenants
        )
        yield Stage(await stack.enter_async_context(gateway), made)


def error_of(response: Response) -> dict[str, Any]:
    """The `error` object of an answer of either dialect."""
    return dict(json.loads(response.body)["error"])


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value with at least that share of all values at or below it."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


async def gathered(jobs: Sequence[Awaitable[T]], *, at_once: int) -> list[T]:
    """All results in order, at most so many under way."""
    room = asyncio.Semaphore(at_once)

    async def one(job: Awaitable[T]) -> T:
        async with room:
            return await job

    return await asyncio.gather(*(one(job) for job in jobs))


async def paced(rate_per_s: float, seconds: float) -> AsyncIterator[int]:
    """Numbers at that rate by the clock: late ones come at once, none is left out."""
    began = time.monotonic()
    for at in range(round(rate_per_s * seconds)):
        await asyncio.sleep(max(0.0, began + at / rate_per_s - time.monotonic()))
        yield at


__all__ = ["PATHS", "Invariants", "Stage", "error_of", "gathered", "paced", "quantile", "stage"]
