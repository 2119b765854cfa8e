"""A listener for clients: its connections, and what they share (http.md 3).

`client.py` is one connection, `message.py` finds requests in its bytes, `head.py` judges their heads; a `Handler`
decides what happens. Timers are a timestamp per connection, looked at by one sweep.
"""

import asyncio
from typing import Protocol

from gateway.errors import GatewayError
from gateway.http import head as heads
from gateway.http.client import ClientConnection, State
from gateway.http.exchange import Exchange


class Handler(Protocol):
    """What a server does with requests. All of it is synchronous; long work goes into a task."""

    def opened(self, exchange: Exchange) -> None:
        """A head is complete and well-formed. Raises GatewayError to refuse it before its body is read."""

    def received(self, exchange: Exchange) -> None:
        """The body is complete. Must not raise."""

    def refuse(self, exchange: Exchange, error: GatewayError, *, close: bool) -> None:
        """Answer a request with an error. `exchange.head` is None when it was not even a well-formed head."""

    def vanished(self, exchange: Exchange) -> None:
        """The client left before its request was complete."""


class Timers(Protocol):
    """The client-side timers, in seconds (http.md 3.5); `gateway.config.Timers` has them."""

    @property
    def first_byte_of_connection_s(self) -> float: ...
    @property
    def head_s(self) -> float: ...
    @property
    def keepalive_idle_s(self) -> float: ...
    @property
    def body_gap_s(self) -> float: ...
    @property
    def body_rate_after_s(self) -> float: ...
    @property
    def body_total_s(self) -> float: ...
    @property
    def client_stall_s(self) -> float: ...
    @property
    def lingering_s(self) -> float: ...


class Server:
    """All client connections of one listener, and what they share."""

    def __init__(
        self, handler: Handler, limits: heads.Limits, timers: Timers, bounds: "Bounds", *, high_water_bytes: int
    ) -> None:
        self.handler = handler
        self.high_water_bytes = high_water_bytes  # bytes held for a slow reader before its engine is paused
        self.limits = limits
        self.timers = timers
        self.bounds = bounds
        self.connections: set[ClientConnection] = set()
        self.held_bytes = 0  # of request bodies in memory
        self.closing = False  # every answer from now on closes its connection
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start to accept; returns the port. Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: ClientConnection(self), host, port, backlog=4096)
        return int(self._listener.sockets[0].getsockname()[1])

    def stop_accepting(self) -> None:
        """Close the listener and every connection that is between requests."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.connections):
            if connection.state == State.IDLE:
                connection.close()

    def sweep(self, now: float) -> None:
        """Act on every connection whose time is up."""
        for connection in [c for c in self.connections if c.deadline < now]:
            connection.expired(now)

    def abort(self) -> None:
        """Cut every connection."""
        for connection in list(self.connections):
            connection.close(reset=True)


class Bounds(Protocol):
    """How much a server may hold at a time."""

    @property
    def max_connections(self) -> int: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...
