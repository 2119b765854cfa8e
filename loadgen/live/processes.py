"""Child processes, each in its own process group, each with its own log: started, watched, and surely stopped.

Its own group means that Ctrl-C in the terminal reaches the command alone, which then stops its children in order.
A child that ends before it is told to is an error at once, not a timeout later.
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from loadgen import tasks

T = TypeVar("T")

_LOWEST_PORT = 10_000
_POLL_S = 0.1
_STOP_S = 5.0  # from SIGTERM to SIGKILL
_TAIL_BYTES, _TAIL_LINES = 4000, 12


class LiveError(Exception):
    """A live run cannot go on; the message says why and what to do. `status` is the exit status."""

    def __init__(self, message: str, status: int = 4) -> None:
        """4: a part could not be started or reached; 2: the options cannot be used (loadgen.md 1.1)."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def runs(self) -> bool:
        return self.process.poll() is None


class Processes:
    """The children of one run."""

    def __init__(self, logs: Path) -> None:
        """`logs`: the folder for one log file per child."""
        self._logs = logs
        self._children: list[_Child] = []

    def start(self, name: str, argv: Sequence[str]) -> None:
        """Start one child; both its outputs go to `name`.log."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self._children.append(_Child(name, process, log))

    async def until(self, what: str, ready: Callable[[], Awaitable[bool]], within_s: float) -> None:
        """Poll `ready`; LiveError when a child ends meanwhile, or the time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not await ready():
            self._check()
            if loop.time() > deadline:
                raise LiveError(f"{what} did not become ready within {within_s:g} s. {self._last_words()}")
            await asyncio.sleep(_POLL_S)

    async def while_alive(self, work: asyncio.Task[T]) -> T:
        """The result of `work`; LiveError when a child ends first. Cancels `work` when left early."""
        watch = tasks.start(self._any_ended(), "watch over the children")
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._check()
            return await work
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.wait({work, watch})

    async def stop(self) -> None:
        """SIGTERM to every group, then SIGKILL to what is left of it; the children are reaped on return."""
        for child in self._children:
            _signal(child, signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                while any(child.runs for child in self._children):
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            pass
        finally:
            for child in self._children:
                _signal(child, signal.SIGKILL)
                child.process.wait()
            self._children.clear()

    async def _any_ended(self) -> None:
        while all(child.runs for child in self._children):
            await asyncio.sleep(_POLL_S)

    def _check(self) -> None:
        for child in self._children:
            if not child.runs:
                raise LiveError(f"{child.name} ended with status {child.process.returncode}. {_words_of(child)}")

    def _last_words(self) -> str:
        return " ".join(words for child in self._children if (words := _words_of(child)))


def free_ports(count: int) -> int:
    """The first of `count` consecutive loopback ports that are free now and that no outgoing connection is given."""
    while True:
        first = random.randrange(_LOWEST_PORT, _end_of_ports() - count)
        if all(is_free(port) for port in range(first, first + count)):
            return first


def _end_of_ports() -> int:
    """Where those begin that the system gives to outgoing connections: one of them could be gone a moment later."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 32768
    return first if first > 2 * _LOWEST_PORT else 65536


def is_free(port: int) -> bool:
    """Whether a loopback port can be listened on."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
            one.listen()
        except OSError:
            return False
    return True


def _signal(child: _Child, which: signal.Signals) -> None:
    try:
        os.killpg(child.process.pid, which)
    except ProcessLookupError:
        return


def _words_of(child: _Child) -> str:
    lines = child.log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").strip().splitlines()[-_TAIL_LINES:]
    return "\n".join([f"Its log {child.log} ends with:", *lines]) if lines else f"Its log {child.log} is empty."
