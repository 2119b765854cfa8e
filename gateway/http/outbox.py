"""What a turn of the loop writes: gathered while it reads, written at its end, all to one engine together and to clients last.

To write to a process that sleeps wakes it, and that costs several times the write. One that is written to a second time
while it still reads the first is awake. (ADR 26 has what it gains.)
"""

import asyncio
from operator import itemgetter
from typing import Final, Protocol

TO_CLIENTS: Final = 1 << 60  # written last: engines take longer
MOST: Final = 16  # so many at most wait for the others: each has taken some fifty microseconds
LARGE_BYTES: Final = (
    16384  # more does not wait: a turn may read a stream many times, and only a write tells that its client is slow
)

_whose: Final = itemgetter(0)


class Writer(Protocol):
    """A connection that writes through an outbox. What it writes to its transport by itself overtakes what waits here."""

    transport: asyncio.Transport
    waiting: bool  # something of it does


class Outbox:
    """Of one event loop."""

    __slots__ = ("_due", "_waiting")

    def __init__(self) -> None:
        self._due = False
        self._waiting: list[tuple[int, Writer, bytes]] = []

    def write(self, whose: int, writer: Writer, data: bytes) -> None:
        """Write at the end of this turn, next to what else goes to the same process: `whose`, any number, says to which."""
        writer.waiting = True
        waiting = self._waiting
        waiting.append((whose, writer, data))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._end_of_turn)
        if len(waiting) >= MOST or len(data) > LARGE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits now: before something that takes long, or that must not overtake it."""
        waiting = self._waiting
        if not waiting:
            return
        self._waiting = []
        if len(waiting) > 1:
            waiting.sort(key=_whose)
        for _, writer, data in waiting:
            writer.waiting = False
            if not writer.transport.is_closing():
                writer.transport.write(data)

    def _end_of_turn(self) -> None:
        self._due = False
        self.flush()
