"""Streams that come in many small reads are read less often: the loop rests for a moment, and what comes meanwhile is one
read. To wake up, ask what there is, and wake whoever gets it costs more than to relay a token; so network cards coalesce
their interrupts. (ADR 22 has what it gains, and where nothing.)
"""

import asyncio
from time import sleep, thread_time
from typing import Final

from gateway.clock import monotonic
from gateway.http.outbox import Outbox

HOT: Final = 2.0  # rests: what comes so soon after the read before it on the same stream could have come with it
MOST_BUSY: Final = 0.8  # part of the time in which the loop may have worked: more has come each time a busy one looks


class Coalescer:
    """Lets one event loop rest after a turn in which a stream was read again that soon."""

    __slots__ = ("_due", "_hot_s", "_looked_s", "_rest_s", "_worked_s", "outbox")

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self._due = False
        self._looked_s = self._worked_s = 0.0  # clock and processor time of this thread at the last look
        self._rest_s = self._hot_s = 0.0

    def change(self, rest_s: float) -> None:
        """The loop may rest for so long; 0: never."""
        self._rest_s, self._hot_s = rest_s, HOT * rest_s

    def read(self, last_s: float) -> float:
        """A stream was read, before that at `last_s`. Returns when that is now."""
        now = monotonic()
        if now - last_s < self._hot_s and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._rest)  # when all that this turn has read is written
        return now

    def _rest(self) -> None:
        self._due = False
        self.outbox.flush()
        now, worked_s = monotonic(), thread_time()
        idle = worked_s - self._worked_s < MOST_BUSY * (now - self._looked_s)
        self._looked_s, self._worked_s = now, worked_s
        if idle:
            sleep(self._rest_s)
