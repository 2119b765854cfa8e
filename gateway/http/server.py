"""A listener for clients: its connections, and what they share (http.md 3).

`client.py` is one connection, `message.py` finds requests in its bytes, `head.py` judges their heads; a `Handler`
decides what happens. Timers are a timestamp per connection, looked at by one sweep.
"""

import asyncio
import select
import ssl
import time
from typing import Final, cast

from gateway.http.client import ClientConnection
from gateway.http.shared import Shared, Timers

BACKLOG: Final = 4096


class Server:
    """All client connections of one listener."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._listener: asyncio.Server | None = None

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, *, shared_port: bool = False
    ) -> int:
        """Start to accept; returns the port. Raises OSError when the address cannot be had. `shared_port`: others
        listen on it too, and the kernel gives each its part of the connections."""
        loop = asyncio.get_running_loop()
        handshake_s = self.shared.timers.head_s if tls is not None else None
        self._listener = await loop.create_server(
            lambda: cast(asyncio.Protocol, ClientConnection(self.shared)),
            host,
            port,
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=handshake_s,
            reuse_port=shared_port or None,
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def see_off(self, timers: Timers) -> None:
        """From now on each answer is the last of its connection, and these timers hold."""
        self.shared.closing, self.shared.timers = True, timers
        deadline = time.monotonic() + timers.keepalive_idle_s
        for connection in self.shared.connections:
            connection.hurry(deadline)

    async def stop_accepting(self) -> None:
        """Close the listener, once nobody stands before it: who is not let in yet would be reset."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        door = select.poll()
        for each in listener.sockets:
            door.register(each.fileno(), select.POLLIN)
        for _ in range(BACKLOG):
            if not door.poll(0):
                break
            await asyncio.sleep(0)
        listener.close()

    def sweep(self, now: float) -> None:
        """Act on every connection whose time is up."""
        for connection in [c for c in self.shared.connections if c.deadline < now]:
            connection.expired(now)

    def abort(self) -> None:
        """Cut every connection."""
        for connection in list(self.shared.connections):
            connection.close(reset=True)
