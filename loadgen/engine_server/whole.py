"""An answer with a body of known length, and the ways in which it can go wrong."""

import asyncio
from collections.abc import Callable

from loadgen import tasks
from loadgen.engine_server.dying import DEATHS, die
from loadgen.engine_server.http import Connection, Headers
from loadgen.faults import Fault

FLUSH_S = 0.002
CUTS = ("reset", "fin", "half_chunk", "cut_json", *DEATHS)


class WholeAnswer:
    """Sends one answer; `ended(how)` is called when it is over. Of the stream faults, cuts and stalls apply."""

    def __init__(self, connection: Connection, faults: list[Fault], ended: Callable[[str], None]) -> None:
        self._connection = connection
        self._faults = {fault.name: fault for fault in faults}
        self._ended = ended

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Write it, now or, with a fault, as the fault wants."""
        cut = next((fault for name, fault in self._faults.items() if name in CUTS), None)
        if cut is not None or "stall" in self._faults:
            tasks.start(self._slowly(status, headers, body, cut), "faulty answer")
        elif "wrong_content_length" in self._faults:
            self._lie(status, headers, body, int(self._faults["wrong_content_length"].number("by", 10)))
        else:
            self._plainly(status, headers, body)

    def _plainly(self, status: int, headers: Headers, body: bytes) -> None:
        if "interim" in self._faults:
            self._connection.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * int(self._faults["interim"].amount))
        extra = [(b"bad header", b"\x00")] if "bad_header" in self._faults else []
        self._connection.head(status, [*headers, *extra, (b"content-length", b"%d" % len(body))])
        self._connection.write(body)
        if "second_response" in self._faults:
            self._connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        self._ended("finished")

    def _lie(self, status: int, headers: Headers, body: bytes, by: int) -> None:
        self._connection.head(status, [*headers, (b"content-length", b"%d" % max(0, len(body) + by))])
        self._connection.write(body)
        self._connection.close()
        self._ended("fault:wrong_content_length")

    async def _slowly(self, status: int, headers: Headers, body: bytes, cut: Fault | None) -> None:
        self._connection.head(status, [*headers, (b"content-length", b"%d" % len(body))])
        at = len(body) // 2 if cut is None else min(int(cut.number("byte", len(body) // 2)), len(body))
        self._connection.write(body[:at])
        await asyncio.sleep(FLUSH_S)
        if "stall" in self._faults:
            await asyncio.sleep(self._faults["stall"].amount / 1e3)
        if cut is None:
            self._connection.write(body[at:])
            return self._ended("finished")
        if cut.name in DEATHS:
            die(cut)
        elif cut.name == "reset":
            self._connection.reset()
        else:
            self._connection.close()
        return self._ended(f"fault:{cut.name}")
