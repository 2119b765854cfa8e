"""What requests are sent to: for every endpoint its pooled connections and constant heads; and the models by name."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from gateway import tasks
from gateway.callers import ServedModel
from gateway.compose import EngineHead, Priority
from gateway.config import Config, Timers
from gateway.config.fleet import Endpoint
from gateway.config.process import Timeouts
from gateway.config.tenant import CLASSES
from gateway.describe import SPARSEST_BYTES_PER_TOKEN, takes
from gateway.dialects.routes import ROUTES, Kind, Route
from gateway.engines import ENGINES, Engine
from gateway.errors import GatewayError
from gateway.http.coalesce import Coalescer
from gateway.http.outbox import Outbox
from gateway.http.pool import ConnectFailed, EndpointConnections
from gateway.http.resolve import Address
from gateway.http.upstream import UpstreamConnection
from policies.decisions import Reason

MARGIN_S: Final = 2.0  # a pooled connection is given up so long before its engine would close it (http.md 10)
FLOOR_S: Final = 1.0
CEILING_S: Final = 60.0
Connected = Callable[[UpstreamConnection | None], None]


class CrossedPartition(Exception):
    """A request was given an endpoint of another partition than its tenant's: a bug, caught before a byte is sent."""


class Backend:
    """One endpoint as the data plane sees it. `hide`: what of it no client may read."""

    def __init__(self, endpoint: Endpoint, version: str, suspect: Callable[[str], None], coalescer: Coalescer) -> None:
        self.name = endpoint.name
        self.partition = endpoint.partition
        self.engine = ENGINES[endpoint.engine]
        self.hide = (endpoint.host.encode(), endpoint.authority.encode(), endpoint.name.encode())
        self.connections = EndpointConnections(
            Address(endpoint.host, endpoint.port),
            coalescer,
            tls=endpoint.tls,
        )
        self.must_not_abort = endpoint.drain_on_abort
        self._endpoint = endpoint
        self._version = version
        self._suspect = suspect
        self._heads: dict[str, EngineHead] = {}
        self.text_runs: set[object] = set()  # requests on routes that run on its API process

    def stands_for(self, endpoint: Endpoint) -> bool:
        """Whether it is what the configuration now has under its name."""
        known = self._endpoint
        return (known.identity, known.api_key) == (endpoint.identity, endpoint.api_key)

    def change(self, endpoint: Endpoint, timeouts: Timeouts) -> None:
        """Fields and timers are these now."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self._heads.clear()
            self.must_not_abort = endpoint.drain_on_abort
        self.connections.idle_s = _idle_s(self.engine.keepalive_s, timeouts.upstream_keepalive_s) * timeouts.scale

    def head(self, route: Route) -> EngineHead:
        """The constant part of a request's head. Raises GatewayError where the engine has no such route."""
        head = self._heads.get(route.name)
        if head is None:
            head = EngineHead(self._path(route), self._endpoint.authority, self._endpoint.api_key, self._version)
            head.salted = route.name in self.engine.salted_routes
            if self._endpoint.priority_field and route.kind is not Kind.TEXT:
                head.priorities = _priorities(self.engine, route)
            self._heads[route.name] = head
        return head

    def connect(self, timers: Timers, then: Connected) -> asyncio.Task[None]:
        """Open a fresh connection; `then` gets it, or None. Cancel the task to give it up."""
        return tasks.start(self._connect(timers, then), "connect")

    async def _connect(self, timers: Timers, then: Connected) -> None:
        try:
            connection = await self.connections.connect(timers.connect_s, timers.tls_s)
        except ConnectFailed:
            then(None)
        else:
            then(connection)

    def suspect(self) -> None:
        """It could not be connected to: have its health looked at."""
        self._suspect(self.name)

    def _path(self, route: Route) -> bytes:
        if route.name == "tokenize":
            path = self.engine.tokenize_path
        elif route.name == "detokenize":
            path = self.engine.detokenize_path
        else:
            return route.upstream_path
        if path is None:
            raise GatewayError(Reason.BACKEND_ROUTE)
        return path.encode()


class Backends:
    """All of them."""

    def __init__(self, config: Config, version: str, suspect: Callable[[str], None]) -> None:
        self._version = version
        self._suspect = suspect
        self.outbox = Outbox()
        self._coalescer = Coalescer(self.outbox)
        self._retired: list[Backend] = []  # requests are still on their way there
        self.by_name: Mapping[str, Backend] = {}
        self.change(config)

    def change(self, config: Config) -> None:
        """These are the endpoints now. What runs on one that is gone ends there."""
        self._coalescer.change(config.upstream.coalesce_s)
        before = self.by_name
        self.by_name = {each.name: self._backend(each, before.get(each.name)) for each in config.endpoints}
        for name, backend in before.items():
            if self.by_name.get(name) is not backend:
                backend.connections.retire()
                self._retired.append(backend)
        for each in config.endpoints:
            self.by_name[each.name].change(each, config.timeouts)

    def _backend(self, endpoint: Endpoint, known: Backend | None) -> Backend:
        if known is not None and known.stands_for(endpoint):
            return known
        return Backend(endpoint, self._version, self._suspect, self._coalescer)

    def sweep(self, now: float) -> None:
        """Close connections that have been idle for too long."""
        for backend in self.by_name.values():
            backend.connections.sweep(now)
        if self._retired:
            self._retired = [backend for backend in self._retired if backend.connections.open]

    def close(self) -> None:
        """Close every connection."""
        for backend in (*self.by_name.values(), *self._retired):
            backend.connections.close()

    def counts(self) -> tuple[int, int]:
        """Open and idle connections to engines."""
        pools = [backend.connections for backend in (*self.by_name.values(), *self._retired)]
        return sum(pool.open for pool in pools), sum(pool.idle for pool in pools)


def served_models(config: Config) -> Mapping[str, ServedModel]:
    """The models of a configuration, by name."""
    return {
        name: ServedModel(
            name=name,
            served_as=model.served_as,
            routes=frozenset(route.name for route in ROUTES if takes(model.kind, route)),
            context_tokens=model.context_tokens,
            most_prompt_bytes=model.context_tokens * SPARSEST_BYTES_PER_TOKEN,
            max_output_tokens=model.max_output_tokens,
            block_tokens=config.affinity.block_tokens,
        )
        for name, model in config.models.items()
    }


def _priorities(engine: Engine, route: Route) -> Mapping[str, Priority]:
    """How an engine is told of each class that it comes before those of higher rank."""
    told = {name: engine.priority * rank for rank, name in enumerate(CLASSES)}
    if route.name == "messages" and engine.messages_priority is not None:
        header = engine.messages_priority.encode()
        return {name: (None, b"%b: %d\r\n" % (header, number)) for name, number in told.items()}
    return {name: (number, b"") for name, number in told.items()}


def _idle_s(engine_s: float | None, unknown_s: float) -> float:
    if engine_s is None:
        return unknown_s
    return min(max(engine_s - MARGIN_S, FLOOR_S), CEILING_S)
