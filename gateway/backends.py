"""What requests are sent to: the models by name, and for every endpoint its pooled connections and constant heads."""

import asyncio
import ssl
from collections.abc import Callable, Mapping

from gateway import tasks
from gateway.callers import ServedModel
from gateway.compose import EngineHead
from gateway.config import Config, Timers
from gateway.describe import takes
from gateway.dialects.routes import ROUTES, Route
from gateway.engines import ENGINES
from gateway.errors import GatewayError
from gateway.http.pool import ConnectFailed, EndpointConnections
from gateway.http.resolve import Address
from gateway.http.upstream import UpstreamConnection
from policies.decisions import Reason

MARGIN_S = 2.0  # a pooled connection is given up so long before its engine would close it (http.md 10)
FLOOR_S, CEILING_S = 1.0, 60.0
Connected = Callable[[UpstreamConnection | None], None]


class Backend:
    """One endpoint as the data plane sees it. `hide`: what of it no client may read."""

    def __init__(self, config: Config, index: int, version: str, suspect: Callable[[str], None]) -> None:
        endpoint = config.endpoints[index]
        self.name = endpoint.name
        self.engine = ENGINES[endpoint.engine]
        self.hide = (endpoint.host.encode(), endpoint.authority.encode(), endpoint.name.encode())
        scale = config.timeouts.scale
        self.connections = EndpointConnections(
            Address(endpoint.host, endpoint.port),
            idle_s=_idle_s(self.engine.keepalive_s, config.timeouts.upstream_keepalive_s) * scale,
            tls=ssl.create_default_context() if endpoint.tls else None,
        )
        self._endpoint = endpoint
        self._version = version
        self._suspect = suspect
        self._heads: dict[str, EngineHead] = {}
        self.text_runs: set[object] = set()  # requests on routes that run on its API process

    def head(self, route: Route) -> EngineHead:
        """The constant part of a request's head. Raises GatewayError where the engine has no such route."""
        head = self._heads.get(route.name)
        if head is None:
            head = EngineHead(self._path(route), self._endpoint.authority, self._endpoint.api_key, self._version)
            head.salted = route.name in self.engine.salted_routes
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
    """All of them, and what they serve."""

    def __init__(self, config: Config, version: str, suspect: Callable[[str], None]) -> None:
        backends = [Backend(config, index, version, suspect) for index in range(len(config.endpoints))]
        self.by_name: Mapping[str, Backend] = {backend.name: backend for backend in backends}
        self.models: Mapping[str, ServedModel] = {
            name: ServedModel(
                name=name,
                served_as=model.served_as,
                routes=frozenset(route.name for route in ROUTES if takes(model.kind, route)),
                context_tokens=model.context_tokens,
                max_output_tokens=model.max_output_tokens,
                block_tokens=config.affinity.block_tokens,
            )
            for name, model in config.models.items()
        }

    def sweep(self, now: float) -> None:
        """Close connections that have been idle for too long."""
        for backend in self.by_name.values():
            backend.connections.sweep(now)

    def close(self) -> None:
        """Close every connection."""
        for backend in self.by_name.values():
            backend.connections.close()

    def counts(self) -> tuple[int, int]:
        """Open and idle connections to engines."""
        pools = [backend.connections for backend in self.by_name.values()]
        return sum(pool.open for pool in pools), sum(pool.idle for pool in pools)


def _idle_s(engine_s: float | None, unknown_s: float) -> float:
    if engine_s is None:
        return unknown_s
    return min(max(engine_s - MARGIN_S, FLOOR_S), CEILING_S)
