"""What can wait until no read is waiting: small pieces of work between two looks at the sockets."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

BUDGET_S = 0.001  # of work between two looks


class Idle:
    """Work in the order it was added; must be made where a loop runs."""

    def __init__(self) -> None:
        """No work yet."""
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Callable[[], None]] = deque()
        self._called = False

    def add(self, work: Callable[[], None]) -> None:
        """Do it soon, after the reads that are at hand now."""
        self._queue.append(work)
        self._call()

    def finish(self) -> None:
        """Do all of it now."""
        while self._queue:
            self._queue.popleft()()

    def _call(self) -> None:
        if self._queue and not self._called:
            self._called = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        self._called = False
        end_s = time.monotonic() + BUDGET_S
        try:
            while self._queue:
                self._queue.popleft()()
                if time.monotonic() > end_s:
                    return
        finally:
            self._call()
