"""The connections to one endpoint, pooled: last in, first out, and given up before the engine would close them."""

import asyncio
import contextlib
import ssl
from functools import cache
from typing import cast

from gateway.clock import monotonic
from gateway.http.coalesce import Coalescer
from gateway.http.known import KnownHead, learn
from gateway.http.resolve import Address
from gateway.http.upstream import UpstreamConnection


@cache
def engine_tls() -> ssl.SSLContext:
    """The one context for engines over TLS. To read the certificates that this machine trusts takes 20 to 60 ms: `prepare` asks for
    it first, beside the loop."""
    return ssl.create_default_context()


class ConnectFailed(Exception):
    """No connection could be had: refused, unreachable, unresolved, or too slow."""


class EndpointConnections:
    """The connections to one endpoint: those that are idle, newest last, and how many are open."""

    def __init__(self, address: Address, coalescer: Coalescer, *, tls: bool = False) -> None:
        self.address = address
        self.coalescer = coalescer
        self.idle_s = 0.0  # how long an idle one is kept; 0: none is
        self._tls = engine_tls() if tls else None
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self.known: KnownHead[dict[bytes, bytes]] | None = None  # the head of this engine's last whole answer

    @property
    def open(self) -> int:
        """How many connections stand, idle ones included."""
        return len(self._all)

    @property
    def idle(self) -> int:
        """How many connections wait for work."""
        return len(self._idle)

    def learn(self, data: bytes, fields: dict[bytes, bytes], *, keep: bool) -> None:
        """Remember the head of a whole JSON answer that leaves its connection open."""
        if keep and fields.get(b"content-type", b"").startswith(b"application/json") and data[9:12] == b"200":
            self.known = learn(data, fields) if b"transfer-encoding" not in fields else None

    def take(self, now: float) -> UpstreamConnection | None:
        """A connection that has been used before and may be used again."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.quiet() and now - connection.idle_since_s < self.idle_s:
                connection.reused = True
                return connection
            connection.transport.abort()
        return None

    async def connect(self, timeout_s: float, tls_timeout_s: float) -> UpstreamConnection:
        """A fresh connection. Raises ConnectFailed."""
        limit = timeout_s + (tls_timeout_s if self._tls else 0.0)
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(limit):
                host = await self.address.resolve()
                await loop.create_connection(
                    lambda: cast(asyncio.Protocol, connection),
                    host,
                    self.address.port,
                    ssl=self._tls,
                    server_hostname=self.address.host if self._tls else None,
                )
        except BaseException as error:
            self.closed(connection)  # a connect given up half-way is closed, but uvloop does not tell its protocol
            if isinstance(error, OSError | TimeoutError):
                raise ConnectFailed from error
            raise
        return connection

    def opened(self, connection: UpstreamConnection) -> None:
        """Called by a connection once it stands."""
        self._all.add(connection)

    def closed(self, connection: UpstreamConnection) -> None:
        """Called by a connection once it is gone; twice does no harm."""
        self._all.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def release(self, connection: UpstreamConnection) -> None:
        """Called by a connection whose answer ended cleanly."""
        if self.idle_s > 0:
            connection.idle_since_s = monotonic()
            self._idle.append(connection)
        else:
            connection.transport.abort()

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long; the oldest stand first."""
        while self._idle and now - self._idle[0].idle_since_s >= self.idle_s:
            self._idle.pop(0).transport.abort()

    def retire(self) -> None:
        """Pool no connection any more: what is in use ends, what is idle is closed."""
        self.idle_s = 0.0
        while self._idle:
            self._idle.pop().transport.abort()

    def close(self) -> None:
        """Close every connection and pool none again."""
        self.idle_s = 0.0
        for connection in list(self._all):
            connection.transport.abort()
