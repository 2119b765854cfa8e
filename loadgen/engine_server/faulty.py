"""A stream that goes wrong: stands between an answer's events and the connection while stream faults are on.

Events come in whole and in order; each fault delays, changes, adds or breaks at its place. A break ends the stream.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from loadgen import tasks
from loadgen.engine_server.dying import DEATHS, die
from loadgen.engine_server.http import LAST_CHUNK, Connection
from loadgen.engine_server.shapes import DONE
from loadgen.faults import Fault

FLUSH_S = 0.002
DRIP_S = 0.05
BREAKS = ("reset", "fin", "half_chunk", "cut_json", "error_event", *DEATHS)
ADDS = ("garbage", "giant_line", "split_utf8", "stall")
HALVES = ("half_chunk", "cut_json")  # these cut inside an event unless a byte is named


class FaultyStream:
    """Takes `send(event)` for each event and `finish()` once; `ended(how)` is called when the stream is over.

    `on_first` is called before anything is written or broken, again and again.
    """

    def __init__(self, connection: Connection, faults: list[Fault], planned: int, ended: Callable[[str], None]) -> None:
        self.on_first: Callable[[], None] = lambda: None
        self._connection = connection
        self._planned = planned
        self._ended = ended
        self._queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
        self._by_name = {fault.name: fault for fault in faults}
        self._pending = [fault for fault in faults if fault.name in BREAKS + ADDS]
        self._began_s = time.monotonic()
        self._came_s = self._went_s = self._began_s
        self._events = 0
        self._sent = 0
        self._task = tasks.start(self._run(), "faulty stream")

    def send(self, event: bytes) -> None:
        """One event of the answer."""
        self._queue.put_nowait((time.monotonic(), event))

    def finish(self) -> None:
        """The answer is complete."""
        self._queue.put_nowait((time.monotonic(), None))

    def stop(self) -> None:
        """The client has left."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            came, event = await self._next()
            if event is None:
                break
            if event:
                await self._pace(came)
            self.on_first()
            for fault in self._due(event):
                self._pending.remove(fault)
                if fault.name in BREAKS:
                    await self._break(fault, event)
                    return self._ended(f"fault:{fault.name}")
                await self._add(fault)
            await self._pass(event)
            if self._connection.closed:
                return None
        self._connection.write(LAST_CHUNK)
        return self._ended("finished")

    async def _next(self) -> tuple[float, bytes | None]:
        """When the next event came, and the event: None at the end, or nothing (b"") when a fault falls due by time."""
        times = [fault.number("ms", 0.0) / 1e3 for fault in self._pending if "ms" in fault.keys]
        if not times:
            return await self._queue.get()
        left = max(0.0, self._began_s + min(times) - time.monotonic())
        try:
            return await asyncio.wait_for(self._queue.get(), left)
        except TimeoutError:
            return time.monotonic(), b""

    async def _pace(self, came: float) -> None:
        """Hold the event back as `slow_prefill`, `slow_decode` and `role_early` want it."""
        first = self._events == (1 if "role_early" in self._by_name else 0)
        slow = self._by_name.get("slow_prefill" if first else "slow_decode")
        due = came
        if slow is not None:
            due = self._went_s + slow.amount * (came - self._came_s)
        if first and "role_early" in self._by_name:
            due = max(due, self._went_s + self._by_name["role_early"].amount / 1e3)
        self._came_s = came
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        self._went_s = time.monotonic()

    def _due(self, event: bytes) -> list[Fault]:
        return [fault for fault in self._pending if self._offset(fault, event) is not None]

    def _offset(self, fault: Fault, event: bytes) -> int | None:
        """Where in this event the fault strikes, or None if not here."""
        if "byte" in fault.keys:
            offset = int(fault.number("byte", 0)) - self._sent
            return offset if 0 <= offset < len(event) else None
        if "ms" in fault.keys:
            here = time.monotonic() - self._began_s >= fault.number("ms", 0) / 1e3
        elif not event:
            here = False
        elif "fraction" in fault.keys:
            here = self._events >= fault.number("fraction", 0) * self._planned
        else:
            here = self._events >= fault.number("chunk", 1)
        if not here:
            return None
        return len(event) // 2 if fault.name in HALVES else 0

    async def _break(self, fault: Fault, event: bytes) -> None:
        part = event[: self._offset(fault, event) or 0]
        connection = self._connection
        if fault.name == "half_chunk":
            connection.write(b"%x\r\n%b" % (max(1, len(event)), part))
        elif fault.name == "error_event":
            self._error_event(fault)
        elif part:
            connection.chunk(part)
        await self._flush()
        if fault.name in DEATHS:
            die(fault)
        elif fault.name == "reset":
            connection.reset()
        elif fault.name in ("cut_json", "error_event"):
            connection.write(LAST_CHUNK)
        else:
            connection.close()

    def _error_event(self, fault: Fault) -> None:
        code = int(fault.number("code", 500))
        kind = {503: "ServiceUnavailableError", 429: "RateLimitError"}.get(code, "InternalServerError")
        error = {"message": "simulated failure", "type": kind, "param": None, "code": code}
        self._connection.chunk(b"data: %b\n\n" % msgspec.json.encode({"error": error}))
        if fault.number("done", 1):
            self._connection.chunk(DONE)

    async def _add(self, fault: Fault) -> None:
        if fault.name == "stall":
            await asyncio.sleep(fault.amount / 1e3)
        elif fault.name == "garbage":
            self._write(b'data: {"id": \xff\xfe garbage\n\n')
        elif fault.name == "giant_line":
            self._write(_content(b"x" * int(fault.amount)))
        else:
            event = _content("é".encode())
            cut = event.index("é".encode()) + 1
            self._write(event[:cut])
            await self._flush()
            self._write(event[cut:])

    async def _pass(self, event: bytes) -> None:
        """The event itself, with what always goes around it."""
        if not event:
            return
        if "comment_pings" in self._by_name:
            self._write(b": ping\n\n")
        if event == DONE and "no_done" in self._by_name:
            return
        if "drip" in self._by_name:
            await self._drip(event, self._by_name["drip"].amount)
        else:
            self._write(event)
        if event == DONE and "double_done" in self._by_name:
            self._write(event)
        self._events += 1

    async def _drip(self, event: bytes, per_s: float) -> None:
        size = max(1, int(per_s * DRIP_S))
        for start in range(0, len(event), size):
            self._write(event[start : start + size])
            await asyncio.sleep(DRIP_S)

    def _write(self, data: bytes) -> None:
        self._connection.chunk(data)
        self._sent += len(data)

    async def _flush(self) -> None:
        """Let the kernel take what was written, and the reader see it as a read of its own."""
        await asyncio.sleep(FLUSH_S)
        while self._connection.unsent and not self._connection.closed:
            await asyncio.sleep(FLUSH_S)


def _content(text: bytes) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text
