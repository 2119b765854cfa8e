"""One arm of the comparison, from fresh processes to a list of samples."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from loadgen import tasks
from loadgen.demo.client import Client
from loadgen.demo.fleet import MODEL
from loadgen.demo.processes import Processes
from loadgen.demo.progress import Tally, View, shown
from loadgen.report.record import Sample, Slo, line
from loadgen.schedule import Schedule
from loadgen.workload.prompts import Prose

Start = Callable[[Processes, Path], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What both arms have in common. `salt` is new for each run of the demo."""

    schedule: Schedule
    classes: tuple[str, ...]
    slo: Slo
    salt: str

    @property
    def window_s(self) -> tuple[float, float]:
        """Start and end of what is measured."""
        return self.schedule.window_start_s, self.schedule.window_end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """`start` starts processes that leave files in `folder`, and returns the base URLs to send to."""

    name: str
    start: Start
    folder: Path

    async def run(self, load: Load, screen: Console) -> list[Sample]:
        """Start, send the load, stop. DemoError when a process does not start, or ends before it is told to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        processes = Processes(self.folder)
        try:
            screen.print(f"{self.name}: starting ...", highlight=False)
            urls = await self.start(processes, self.folder)
            return await self._send(load, urls, processes, screen)
        finally:
            await processes.stop()

    async def _send(self, load: Load, urls: list[str], processes: Processes, screen: Console) -> list[Sample]:
        tally = Tally(load.classes, load.slo)
        with (self.folder / "requests.jsonl").open("wb", buffering=0) as file:
            client = Client(load.schedule, urls, MODEL, _Watch(tally, file, load.slo))
            view = View(self.name, client, tally, load.window_s)
            async with shown(screen, view):
                work = tasks.start(client.run(Prose(load.salt)), f"load of {self.name}")
                samples: list[Sample] = await processes.while_alive(work)
        screen.print(view.line(ended=True), highlight=False, soft_wrap=True)
        return samples


class _Watch:
    """Counts each request, and writes its line when it ends: what was done survives whatever comes next."""

    def __init__(self, tally: Tally, file: BinaryIO, slo: Slo) -> None:
        self._tally = tally
        self._file = file
        self._slo = slo

    def sent(self, sample: Sample) -> None:
        self._tally.sent(sample)

    def ended(self, sample: Sample) -> None:
        self._tally.ended(sample)
        with suppress(OSError):  # a full disk must not change what is measured
            self._file.write(line(sample, self._slo))
