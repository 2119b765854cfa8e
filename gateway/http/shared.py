"""What all connections of a listener share, and what they ask of whoever handles their requests."""

from dataclasses import dataclass, field
from typing import Protocol

from gateway.errors import GatewayError
from gateway.http.exchange import Exchange
from gateway.http.head import Head, Limits
from gateway.http.outbox import Outbox


class Handler(Protocol):
    """What a server does with requests. All of it is synchronous; long work goes into a task."""

    def opened(self, exchange: Exchange, head: Head) -> None:
        """A head is complete and well-formed. Raises GatewayError to refuse it before its body is read."""

    def received(self, exchange: Exchange) -> None:
        """The body is complete. Must not raise."""

    def refuse(self, exchange: Exchange, error: GatewayError, *, close: bool) -> None:
        """Answer a request with an error. `exchange.head` is None when it was not even a well-formed head."""

    def vanished(self, exchange: Exchange, *, stalled: bool) -> None:
        """The client left, or reads nothing, before its answer was complete."""


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


class Bounds(Protocol):
    """How much a server may hold at a time."""

    @property
    def max_connections(self) -> int: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...


class Connection(Protocol):
    """A connection as its listener sees it."""

    deadline: float  # when `expired` is to be called, on time.monotonic()

    def expired(self, now: float) -> None:
        """Its time is up, or may be."""

    def hurry(self, deadline: float) -> None:
        """Be closed by then if it is between two requests and nothing comes."""

    def forget_heads(self) -> None:
        """What was concluded from heads that came before holds no longer."""

    def close(self, *, reset: bool = False) -> None:
        """Close it after what was written; `reset`: so that the peer cannot take it for a proper end."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """Of one listener."""

    handler: Handler
    limits: Limits
    timers: Timers
    bounds: Bounds
    outbox: Outbox
    high_water_bytes: int  # held for a slow reader before its engine is paused
    connections: set[Connection] = field(default_factory=set)
    held_bytes: int = 0  # of request bodies in memory
    closing: bool = False  # every answer from now on closes its connection

    def change(self, limits: Limits, timers: Timers, bounds: Bounds, high_water_bytes: int) -> None:
        """These hold from the next head on. This is the one place where known heads stop being known: with a head goes
        who sent it, what it may do and what it asked for."""
        self.limits, self.timers, self.bounds, self.high_water_bytes = limits, timers, bounds, high_water_bytes
        for connection in self.connections:
            connection.forget_heads()
