"""Ctrl-C: the first one stops sending and gives what is open some seconds, the second ends the run at once.

Whatever comes, what was measured until then is written.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Protocol

GRACE_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stoppable(Protocol):
    """A client that sends."""

    def stop(self, grace_s: float) -> None:
        """Send nothing more, and end within `grace_s`."""


class Stop:
    """How often the user asked to stop, and what is stopped by it. Before anything is sent the whole command is."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = 0
        self.first_s = 0.0  # time.monotonic() of the first
        self._say = say
        self._clients: list[Stoppable] = []
        self._work: asyncio.Task[object] | None = None

    def install(self) -> None:
        """From here on signals come here; the running task is what the first one cancels while nothing is sent."""
        loop = asyncio.get_running_loop()
        self._work = asyncio.current_task()
        for which in SIGNALS:
            loop.add_signal_handler(which, self.ask)

    def sending(self, *clients: Stoppable) -> None:
        """What is to be stopped from now on; nothing: the command itself."""
        self._clients = list(clients)
        if self.asked:
            self._pass_on()

    def ask(self) -> None:
        """One more Ctrl-C."""
        self.asked += 1
        if self.asked == 1:
            self.first_s = time.monotonic()
        if self._clients:
            if self.asked == 1:
                self._say(f"stopping: open requests have {GRACE_S:g} s; Ctrl-C again ends at once")
            self._pass_on()
        elif self._work is not None and self.asked == 1:
            self._work.cancel()

    def _pass_on(self) -> None:
        for client in self._clients:
            client.stop(GRACE_S if self.asked == 1 else 0.0)
