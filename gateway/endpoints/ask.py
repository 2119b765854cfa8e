"""One GET after another to an engine, on a connection of the data plane's kind that is kept in between.

A scrape with a general HTTP client takes 1 to 2 ms of a processor when it comes once a second, as everything it needs has left
the caches; the relay's own client, which every request runs through, takes a fraction.
"""

import asyncio
from collections.abc import Callable

from gateway.clock import monotonic
from gateway.http.coalesce import Coalescer
from gateway.http.outbox import Outbox
from gateway.http.pool import ConnectFailed, EndpointConnections
from gateway.http.resolve import Address
from gateway.http.upstream import Sink

KEPT_S = 4.0  # uvicorn, on which engines stand, closes what is idle for 5 s
OK = 200


class NoAnswer(Exception):
    """Not connected, cut short, or no HTTP."""


class Asker:
    """Asks one engine; `authority` is what it is called. `api_key` is the endpoint's own, None for none."""

    def __init__(self, address: Address, authority: str, *, tls: bool, api_key: str | None) -> None:
        self._connections = EndpointConnections(address, Coalescer(Outbox()), tls=tls)
        self._connections.idle_s = KEPT_S
        # vLLM compresses its metrics for whoever takes that.
        lines = f"host: {authority}\r\naccept: */*\r\naccept-encoding: identity\r\n"
        if api_key:
            lines += f"authorization: Bearer {api_key}\r\n"
        self._lines = f" HTTP/1.1\r\n{lines}\r\n".encode()

    async def get(self, path: str, take: Callable[[bytes], None], timeout_s: float) -> int:
        """Ask, and give `take` the body of a 200 as it comes; returns the status. Raises NoAnswer, TimeoutError, and what `take` does."""
        connections = self._connections
        async with asyncio.timeout(timeout_s):
            connection = connections.take(monotonic())
            if connection is None:
                try:
                    connection = await connections.connect(timeout_s, timeout_s)
                except ConnectFailed as error:
                    raise NoAnswer from error
            answer = _Answer(take)
            connection.send(b"GET " + path.encode() + self._lines, b"", answer, monotonic())
            try:
                return await answer.status
            finally:
                if connection.sink is answer:
                    connection.abort()

    def close(self) -> None:
        """Close what is kept."""
        self._connections.close()


class _Answer:
    """Takes one answer; `status` is there when all of it is."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._take = take
        self._told = 0

    def on_head(self, status: int, fields: dict[bytes, bytes]) -> Sink:
        """What comes is its body."""
        self._told = status
        return self

    def on_whole(self, fields: dict[bytes, bytes], body: bytes) -> None:
        """All at once."""
        self._told = OK
        self.on_data([body])
        self.on_end(by_close=False)

    def on_data(self, pieces: list[bytes]) -> None:
        """More of it; what `take` raises, the one who waits is told."""
        if self._told != OK or self.status.done():
            return
        try:
            self._take(b"".join(pieces))
        except Exception as error:
            self.status.set_exception(error)

    def on_end(self, *, by_close: bool) -> None:
        """That was all."""
        if not self.status.done():
            self.status.set_result(self._told)

    def on_lost(self, *, malformed: bool) -> None:
        """There will be no more."""
        if not self.status.done():
            self.status.set_exception(NoAnswer())
