"""Which of several processes on one port this one is (`forebay serve --workers`), and its line to their supervisor.

Files that one process alone may write have its number in their names, so that N of them never share one. The line is
one end of a pair of sockets: a word goes up when the phase changes, nothing comes down, and its end means that the
supervisor is gone.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from policies.types import Settings


@dataclass(frozen=True, slots=True)
class Replica:
    """Number `index` of `count`. `folder` holds the sockets of their admin applications, `line` is a descriptor, `fixed`
    the checksum of what must be the same for all of them (`gateway.config.changes.fixed_checksum`)."""

    index: int
    count: int
    line: int
    fixed: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.index}:{self.count}:{self.line}:{self.fixed}:{self.folder}"

    @classmethod
    def parse(cls, text: str) -> "Replica":
        """What `str` has written; ValueError for anything else."""
        index, count, line, fixed, folder = text.split(":", 4)
        return cls(int(index), int(count), int(line), fixed, Path(folder))

    @property
    def address(self) -> Path:
        """Where its admin application listens."""
        return self.folder / f"{self.index}.sock"


def own_file(path: str, replica: Replica | None) -> Path:
    """The file that this process has for `path`: that path itself where it is the only one."""
    return Path(path) if replica is None else Path(f"{path}.w{replica.index}")


def replicas(replica: Replica | None) -> int:
    """How many send to the same engines."""
    return 1 if replica is None else replica.count


def part_of(settings: Settings, replicas: int) -> Settings:
    """The settings of one of so many processes: until the store has told how many there are, they are known to be so many."""
    fleet = settings.fleet
    if replicas == 1 or fleet is None:
        return settings
    return replace(settings, fleet=replace(fleet, replicas=max(fleet.replicas, replicas)))


class Line:
    """The line to the supervisor. Without a replica there is none, and nothing is said."""

    def __init__(self, replica: Replica | None) -> None:
        self._socket = socket.socket(fileno=replica.line) if replica is not None else None

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` once when the supervisor has ended. Needs a running loop."""
        if self._socket is None:
            return
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._ended, gone)

    def say(self, phase: str) -> None:
        """Tell the supervisor."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is gone, or reads nothing: then there is nobody to tell
                self._socket.send(phase.encode() + b"\n")

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _ended(self, gone: Callable[[], None]) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            gone()
