"""Connections to one server: kept ones are used again, and as many new ones opened as are needed. Nothing ever waits."""

import asyncio
import errno
import socket
import ssl
import time
from collections import Counter

from loadgen.client.connection import Connection

IDLE_S = 3.0  # engines close idle connections after 5 s: never reuse one that is about to be closed
_LOCAL = frozenset((errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM))
Address = tuple[socket.AddressFamily, str]


class Pool:
    """The connections to `host`:`port`, with TLS or without."""

    def __init__(self, host: str, port: int, *, tls: bool, connect_s: float) -> None:
        """`connect_s` bounds each attempt to open one, the search for the address included."""
        self._host, self._port = host, port
        self._connect_s = connect_s
        self._tls = ssl.create_default_context() if tls else None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._addresses: list[Address] = []
        self.local_failures: Counter[str] = Counter()  # what this machine refused, by name of the error

    def take(self) -> Connection | None:
        """A kept connection that was in use not long ago, or None."""
        while self._idle:
            connection = self._idle.pop()
            if time.monotonic() - connection.idle_since_s > IDLE_S:  # and so were all the others, or longer
                self._close_idle(connection)
                return None
            if not connection.transport.is_closing():
                return connection
        return None

    async def open(self) -> Connection:
        """A new connection. OSError with words for a person, also when there is none in time."""
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._connect()
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            if error.errno in _LOCAL:
                self.local_failures[errno.errorcode[error.errno]] += 1
            raise

    def close(self) -> None:
        """Close every connection, in use or not; nobody is told."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()

    def _close_idle(self, first: Connection) -> None:
        idle, self._idle = self._idle, []
        for connection in (first, *idle):
            connection.close()

    async def _connect(self) -> Connection:
        if not self._addresses:
            self._addresses = await self._resolved()
        failed: OSError | None = None
        for address in tuple(self._addresses):  # others may put one first meanwhile
            try:
                connection = await self._connected(*address)
            except OSError as error:
                failed = failed or error
                continue
            if address != self._addresses[0]:  # `localhost` is two addresses, and often only one of them listens
                self._addresses.remove(address)
                self._addresses.insert(0, address)
            return connection
        raise failed or OSError(errno.EHOSTUNREACH, f"{self._host} has no address")

    async def _resolved(self) -> list[Address]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found))

    async def _connected(self, family: socket.AddressFamily, address: str) -> Connection:
        name = self._host if self._tls is not None else None
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._idle.append, self._all.discard),
            address,
            self._port,
            ssl=self._tls,
            server_hostname=name,
            family=family,
        )
        self._all.add(connection)
        return connection
