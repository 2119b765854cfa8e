"""Names of endpoints to addresses: off the loop, remembered for 30 s, and the last good one kept when DNS fails."""

import asyncio
import ipaddress
import socket
import time

CACHE_S = 30.0


class Address:
    """Where an endpoint is. A literal address is never looked up."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._known: str | None = host if _is_literal(host) else None
        self._fresh_until_s = float("inf") if self._known else 0.0
        self._lookup: asyncio.Future[str] | None = None

    async def resolve(self) -> str:
        """An address. Raises OSError when there has never been one."""
        if time.monotonic() < self._fresh_until_s and self._known is not None:
            return self._known
        if self._known is not None:
            self._refresh()  # for the next one: this one goes to the last good address and waits for nobody
            return self._known
        return await asyncio.shield(self._refresh())

    def _refresh(self) -> "asyncio.Future[str]":
        if self._lookup is None:
            loop = asyncio.get_running_loop()
            self._lookup = loop.run_in_executor(None, _look_up, self.host, self.port)
            self._lookup.add_done_callback(self._looked_up)
        return self._lookup

    def _looked_up(self, lookup: "asyncio.Future[str]") -> None:
        self._lookup = None
        if lookup.cancelled() or lookup.exception() is not None:
            return
        self._known = lookup.result()
        self._fresh_until_s = time.monotonic() + CACHE_S


def _look_up(host: str, port: int) -> str:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
