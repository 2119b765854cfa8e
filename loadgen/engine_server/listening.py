"""The listening side of an engine's port, and what can be wrong with it: refused, silent, slow or too many."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from loadgen import tasks
from loadgen.engine_server.faults import Faults
from loadgen.engine_server.http import Connection, Request

BACKLOG = 2048
WATCH_S = 0.02


class Listening:
    """One port. While the fault `refuse` is on, the socket is closed and connects are refused."""

    def __init__(self, host: str, port: int, handle: Callable[[Request], None], faults: Faults) -> None:
        self.host = host
        self.port = port
        self.keep_alive_s = 5.0
        self.connections: set[Connection] = set()
        self._handle = handle
        self._faults = faults
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Bind and listen; the port is known afterwards. Raises OSError if it is taken."""
        await self._listen()
        self._watch = tasks.start(self._obey_refuse(), "listening")

    async def close(self) -> None:
        """Stop listening, and close the connections that are left once they are written out."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self._stop_listening()
        for connection in list(self.connections):
            connection.close()

    async def _listen(self) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((self.host, self.port))
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=listener, backlog=BACKLOG)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _obey_refuse(self) -> None:
        while True:
            refusing = self._faults.find("refuse") is not None
            if refusing and self._server is not None:
                self._stop_listening()
            elif not refusing and self._server is None:
                await self._listen()
            await asyncio.sleep(WATCH_S)

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
        super().connection_lost(error)
