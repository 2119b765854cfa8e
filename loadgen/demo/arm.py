"""One arm of the comparison, from fresh processes to a list of samples."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadgen.live.load import Load, Place, send
from loadgen.live.processes import Processes
from loadgen.report.record import Sample

Start = Callable[[Processes, Path], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """`start` starts processes that leave files in `folder`, and returns the base URLs to send to."""

    name: str
    start: Start
    folder: Path

    async def run(self, load: Load, screen: Console) -> list[Sample]:
        """Start, send the load, stop. LiveError when a process does not start, or ends before it is told to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        processes = Processes(self.folder)
        try:
            screen.print(f"{self.name}: starting ...", highlight=False)
            urls = await self.start(processes, self.folder)
            return await send(load, Place(name=self.name, urls=urls, processes=processes, folder=self.folder), screen)
        finally:
            await processes.stop()
