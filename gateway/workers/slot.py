"""The place of one worker: a process, and when that ends another one, until the place is given up.

A worker leads a session of its own, so that Ctrl-C in a terminal reaches the supervisor alone, which passes it on once.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gateway.replica import Replica
from gateway.telemetry.log import EventLog
from gateway.workers.backoff import Backoff

State = Literal["down", "starting", "serving", "draining"]
_TOLD: Mapping[bytes, State] = {b"serving": "serving", b"draining": "draining"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What all places have in common. `command` runs a worker, `ended` hears of every end of one; `fixed` is a checksum of
    what no worker may be started with otherwise."""

    command: Sequence[str]
    count: int
    fixed: str
    folder: Path
    events: EventLog
    ended: Callable[["Slot"], None]


class Slot:
    """Place number `index`. `pid` is 0 while no process runs there; `status` is how the last one ended, `has_served`
    whether any ever came to serve."""

    def __init__(self, index: int, orders: Orders) -> None:
        self.index = index
        self.state: State = "down"
        self.pid = 0
        self.restarts = 0
        self.status = 0
        self.has_served = False
        self._orders = orders
        self._events = orders.events
        self._backoff = Backoff()
        self._given_up = asyncio.Event()

    @property
    def address(self) -> Path:
        """Where the admin application of its process listens."""
        return self._orders.folder / f"{self.index}.sock"

    async def keep(self) -> None:
        """Have a process run here until the place is given up and the process has ended."""
        while not self._given_up.is_set():
            began_s = time.monotonic()
            self.status = await self._run()
            lived_s = time.monotonic() - began_s
            self._orders.ended(self)
            if self._given_up.is_set():
                return
            wait_s = self._backoff.after(lived_s)
            self._tell_end(lived_s, wait_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._given_up.wait(), wait_s)
                return
            self.restarts += 1

    def runs(self, pid: int) -> bool:
        """Whether that process runs here, and is not about to end."""
        return self.pid == pid and self.state != "down"

    def give_up(self) -> None:
        """Start no other process here. The one that runs goes on."""
        self._given_up.set()

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on. Before a worker serves it knows none but the deadly ones."""
        ready = self.state in ("serving", "draining")
        if self.pid and (ready or number == signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _tell_end(self, lived_s: float, wait_s: float) -> None:
        facts = {"worker": self.index, "status": self.status, "lived_s": round(lived_s, 3)}
        self._events.write("info" if self.status == 0 else "error", "worker ended", **facts, restart_in_s=wait_s)

    async def _run(self) -> int:
        """One process, from its start to its end; its exit status."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            process = await self._start(theirs)
            self.pid, self.state = process.pid, "starting"
            loop.add_reader(ours, self._hear, ours)
            if self._given_up.is_set():  # while it was being started
                self.signal(signal.SIGTERM)
            return await process.wait()
        except OSError as error:
            self._events.error("worker cannot be started", worker=self.index, cause=error.strerror or str(error))
            return 1
        finally:
            self.pid, self.state = 0, "down"
            loop.remove_reader(ours)
            ours.close()
            theirs.close()

    async def _start(self, line: socket.socket) -> asyncio.subprocess.Process:
        orders = self._orders
        replica = Replica(self.index, orders.count, line.fileno(), orders.fixed, orders.folder)
        process = await asyncio.create_subprocess_exec(
            *orders.command,
            "--worker",
            str(replica),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(line.fileno(),),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        line.close()  # its end is then the end of the process
        self._events.info("worker started", worker=self.index, pid=process.pid)
        return process

    def _hear(self, line: socket.socket) -> None:
        try:
            words = line.recv(4096).split()
        except OSError:
            words = []
        if not words:
            self.state = "down"  # it has hung up: it answers nobody any more, and is about to end
            asyncio.get_running_loop().remove_reader(line)
        for word in words:
            self.state = _TOLD.get(word, self.state)
            self.has_served |= self.state == "serving"
