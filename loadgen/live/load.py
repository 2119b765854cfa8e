"""One load, sent to what serves it: progress on the screen, a line in a file for each request, samples at the end."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from loadgen import tasks
from loadgen.client import OTHERS, Client, ClientOptions, Target
from loadgen.live.processes import Processes
from loadgen.live.progress import Tally, View, shown
from loadgen.report.lines import line
from loadgen.report.record import Sample, Slo
from loadgen.schedule import Schedule
from loadgen.workload.prompts import Prose

DRAIN_S = 60.0  # after the last arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent to `model`, and the goal shown meanwhile. `classes` are priorities; `salt` is new for each run."""

    schedule: Schedule
    model: str
    classes: tuple[str, ...]
    slo: Slo
    salt: str

    @property
    def window_s(self) -> tuple[float, float]:
        """Start and end of what is measured."""
        return self.schedule.window_start_s, self.schedule.window_end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where load goes: the base URLs, the processes behind them, the folder for `requests.jsonl`."""

    name: str
    urls: list[str]
    processes: Processes
    folder: Path


async def send(load: Load, place: Place, screen: Console) -> list[Sample]:
    """Send everything and wait for the answers. LiveError when a process ends before it is told to."""
    tally = Tally(load.classes, load.slo)
    with (place.folder / "requests.jsonl").open("wb", buffering=0) as file:
        targets = {OTHERS: [Target(url=url, model=load.model) for url in place.urls]}
        client = Client(load.schedule, targets, ClientOptions(drain_s=DRAIN_S), _Watch(tally, file, load.slo))
        view = View(place.name, client, tally, load.window_s)
        async with shown(screen, view):
            work = tasks.start(client.run(Prose(load.salt)), f"load of {place.name}")
            samples: list[Sample] = await place.processes.while_alive(work)
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
