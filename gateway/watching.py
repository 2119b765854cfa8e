"""When the files of the configuration have changed: they are looked at each second while they are few, and of many only after
the kernel has told of something in their folders.

To look at a thousand files asks the kernel a thousand times, and each time the thread that does it takes the interpreter
from the loop. What the kernel does not tell of (a change of a file to which a link leads, or made by another machine) is
found by a look that comes anyway: each ten seconds for a thousand files. (ADR 27)
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.config.files import FOLDER, Stamp, stamp

POLL_S = 1.0  # tenancy.md 11
SETTLE_S = 0.2
SETTLES = 50  # looks at files that go on changing; then they are taken as they are
FEW = 100  # files: of more not each second


class Watch:
    """Of the configuration at `path`, and of what `besides` names, with what was seen of them at `seen`. `scale`: a second takes
    so much longer. Needs uvloop to be told: on another loop it looks each second."""

    def __init__(self, path: Path, besides: Callable[[], Sequence[Path]], seen: Stamp | None, scale: float) -> None:
        self._path, self._besides = path, besides
        self._scale = scale
        self._seen = self._look() if seen is None else seen
        self._news = asyncio.Event()
        self._handles: list[asyncio.Handle] = []

    async def change(self) -> None:
        """Return when something has changed, and then not for a moment."""
        self.close()
        if len(self._seen) > FEW:
            self._follow()
        now = self._seen
        while now == self._seen:
            await asyncio.sleep(POLL_S * self._scale)
            await self._hear(len(now))
            now = await asyncio.to_thread(self._look)
        self._seen = await self._settled(now)

    async def _hear(self, files: int) -> None:
        if self._handles:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), (files / FEW - 1) * POLL_S * self._scale)
        self._news.clear()

    def _follow(self) -> None:
        """Hear of these folders as they are now: what has their names may have become something else."""
        self._news.set()  # of what has changed since the last look nobody has told
        watch: Any = getattr(asyncio.get_running_loop(), "_monitor_fs", None)
        beside = self._path.parent / FOLDER
        folders = {each.parent for each in (self._path, *self._besides())} | ({beside} if beside.is_dir() else set())
        try:
            for folder in folders if watch is not None else ():
                self._handles.append(watch(str(folder), self._heard))
        except OSError:  # more of them than the kernel allows, or one has just gone
            self.close()

    def _heard(self, *what: Any) -> None:
        self._news.set()

    def _look(self) -> Stamp:
        return stamp(self._path, self._besides())

    async def _settled(self, seen: Stamp) -> Stamp:
        """The stamp of the files once they have not changed for a moment."""
        for _ in range(SETTLES):
            before = seen
            await asyncio.sleep(SETTLE_S * self._scale)
            seen = await asyncio.to_thread(self._look)
            if seen == before:
                break
        return seen

    def close(self) -> None:
        """Hear no more."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()
