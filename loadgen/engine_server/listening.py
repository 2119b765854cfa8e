"""The listening side of an engine's port, and what can be wrong with it: refused, silent, slow or too many."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable

from loadgen import tasks
from loadgen.engine_server.faults import Faults
from loadgen.engine_server.http import Connection, Request

BACKLOG = 2048
WATCH_S = 0.05


class Listening:
    """One port. While the fault `refuse` is on, the socket is closed and connects are refused."""

    def __init__(self, host: str, port: int, handle: Callable[[Request], None], faults: Faults) -> None:
        self.host = host
        self.port = port
        self.keep_alive_s = 5.0
        self.connections: set[Connection] = set()
        self.malformed = 0  # connections that ended with bytes that are no request
        self._handle = handle
        self._faults = faults
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._opening = False

    async def open(self) -> None:
        """Bind and listen; the port is known afterwards. Raises OSError if it is taken, or said to be."""
        if self._faults.find("port_in_use") is not None:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        if not self._refusing():
            await self._serve(self._bind())
        else:
            self._bind().close()  # find the port, and refuse on it
        self._faults.on_change = self._obey
        self._watch = tasks.start(self._obey_windows(), "listening")

    async def close(self) -> None:
        """Stop listening, and close the connections that are left once they are written out."""
        self._faults.on_change = lambda: None
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self._stop_listening()
        for connection in list(self.connections):
            connection.close()

    @property
    def serving(self) -> bool:
        """The port is open."""
        return self._server is not None

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((self.host, self.port))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        return listener

    async def _serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_server(self._connection, sock=listener, backlog=BACKLOG)
        self._opening = False

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _refusing(self) -> bool:
        return self._faults.find("refuse") is not None

    def _obey(self) -> None:
        """Open or close the port as `refuse` wants it; connects are refused, or queued, from here on."""
        if self._refusing():
            self._stop_listening()
        elif self._server is None and not self._opening:
            self._opening = True
            tasks.start(self._serve(self._bind()), "listening again")

    async def _obey_windows(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._obey()

    def _connection(self) -> Connection:
        return _Tracked(self, self._handle, self._keep_alive)

    def _keep_alive(self) -> float:
        fault = self._faults.find("idle_close")
        return self.keep_alive_s if fault is None else fault.amount

    def accepted(self, connection: Connection) -> None:
        """A connection came: note it, and let the connect faults have it."""
        self.connections.add(connection)
        most = self._faults.find("max_conns")
        if most is not None and len(self.connections) > most.amount:
            connection.close()
        elif self._faults.find("accept_hang") is not None:
            connection.pause()
        elif (slow := self._faults.find("slow_accept")) is not None:
            connection.pause()
            asyncio.get_running_loop().call_later(slow.amount / 1e3, connection.resume)


class _Tracked(Connection):
    """A connection that its listener knows of while it is open."""

    def __init__(
        self, listening: Listening, handle: Callable[[Request], None], keep_alive_s: Callable[[], float]
    ) -> None:
        super().__init__(handle, keep_alive_s)
        self._listening = listening

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listening.accepted(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._listening.connections.discard(self)
        self._listening.malformed += self.malformed
        super().connection_lost(error)
