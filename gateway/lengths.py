"""What was learned about lengths, kept in a file over restarts (`length.state_file`).

Read once before the first request; what cannot be read, is broken or of another version is left aside with one line in
the event log, and learning begins anew. Written every `EVERY_S` and at the end: to a file beside it that then takes its
name, so that a crash leaves the old state or the new one; put together in pieces, between which the loop has its turns, and written in
a thread, so that neither its size nor a slow disk holds up anybody. It names
tenants and models and counts answers; it is for its owner's eyes only (mode 0600).
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from gateway import tasks
from gateway.config.files import read_bytes
from gateway.telemetry.log import EventLog

EVERY_S = 60.0  # scheduling.md 3
MOST_BYTES = 64 * 1024 * 1024  # four times what can be learned


class LengthFile:
    """One state file. `learned` gives out the state as pieces of text. `scale` multiplies the period (tests)."""

    def __init__(self, path: Path, learned: Callable[[], Iterable[str]], events: EventLog, scale: float = 1.0) -> None:
        self._path = path
        self._learned = learned
        self._events = events
        self._every_s = EVERY_S * scale
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def restore(self, take: Callable[[str], object]) -> None:
        """Hand what the file holds to `take`, which raises ValueError for what it does not understand."""
        try:
            data = read_bytes(self._path, MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise ValueError(f"larger than {MOST_BYTES} bytes")
            take(data.decode())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._events.warning("lengths begin anew", file=str(self._path), cause=str(error))

    def start(self) -> None:
        """Begin to write. Needs a running loop."""
        self._task = tasks.start(self._keep(), "lengths")

    async def close(self) -> None:
        """Write for the last time."""
        self._ending.set()
        if self._task is not None:
            await self._task

    async def _keep(self) -> None:
        """Never cancelled: two writers would take each other's file."""
        ending = False
        while not ending:
            with contextlib.suppress(TimeoutError):
                ending = await asyncio.wait_for(self._ending.wait(), self._every_s)
            await self._write()

    async def _write(self) -> None:
        pieces: list[str] = []
        for piece in self._learned():
            pieces.append(piece)
            await asyncio.sleep(0)
        try:
            await asyncio.to_thread(_replace, self._path, pieces)
        except OSError as error:
            self._events.warning("lengths cannot be written", file=str(self._path), cause=error.strerror or str(error))


def _replace(path: Path, pieces: list[str]) -> None:
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)  # whatever it was: what is opened below is new, and ours
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as out:
            out.writelines(piece.encode() for piece in pieces)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
