"""Several processes share a schedule: their samples come to this one while it goes.

The parts of a conversation stay with one worker; everything else is dealt out in turn. All start by one clock. A
worker that dies ends the run with an error; whatever ends the run ends the workers.
"""

import asyncio
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

import msgspec

from loadgen import tasks
from loadgen.client.notes import (
    LENGTH,
    Beat,
    Done,
    Due,
    Ended,
    Job,
    Note,
    Order,
    Ready,
    Stop,
    Zero,
    begun,
    fill,
    framed,
)
from loadgen.client.sender import Beholder, Share, Targets
from loadgen.client.values import ClientError, ClientOptions
from loadgen.report.record import Sample
from loadgen.workload.planned import Planned, Requests
from loadgen.workload.prompts import Prose

ARGV = (sys.executable, "-m", "loadgen.client.worker")
_WORDS = 12  # last lines of what a dead worker said
_END_S = 2.0  # from the end of a run to SIGKILL
_notes = msgspec.msgpack.Decoder(list[Note])
_encode = msgspec.msgpack.Encoder().encode


class Workers:
    """One run of one schedule by `options.workers` processes."""

    def __init__(
        self, share: Share, targets: Targets, options: ClientOptions, beholder: Beholder, *, keep: bool = True
    ) -> None:
        """`options.max_open` is shared out among them. Without `keep` the beholder alone gets the samples."""
        self._keep = keep
        self._share = share
        self._targets = targets
        self._options = options
        self._beholder = beholder
        self._samples: dict[int, Sample] = {}
        self._workers: list[_Worker] = []
        self._stop: Stop | None = None

    async def run(self, prose: Prose, begins: Callable[[], float]) -> list[Sample]:
        """As `Sender.run`. ClientError when a worker dies."""
        count = self._options.workers
        options = replace(self._options, workers=1, max_open=max(1, self._options.max_open // count))
        try:
            for number in range(count):
                hand = Dealt(self._share.requests, self._share.chained, count, number)
                share = replace(self._share, requests=hand, worker=number)
                worker = _Worker(number, self._heard)
                self._workers.append(worker)
                await worker.start(Job(share=share, targets=self._targets, options=options, prose=prose))
            await self._all(worker.ready.wait() for worker in self._workers)
            order = self._stop or Zero(begins())
            for worker in self._workers:
                worker.tell(order)
            await self._all(worker.done.wait() for worker in self._workers)
        finally:
            await asyncio.gather(*(worker.end() for worker in self._workers))
        return sorted(self._samples.values(), key=attrgetter("sched_s"))

    def stop(self, grace_s: float) -> None:
        """As `Sender.stop`, also before all of them have started."""
        self._stop = Stop(grace_s)
        for worker in self._workers:
            if worker.ready.is_set():
                worker.tell(self._stop)

    async def _all(self, waits: Iterable[object]) -> None:
        """Until all of it has come; ClientError when a worker dies first."""
        waiting = tasks.start(_gathered(waits), "waiting for workers")
        deaths = [tasks.start(worker.death(), "watch over a worker") for worker in self._workers]
        try:
            await asyncio.wait({waiting, *deaths}, return_when=asyncio.FIRST_COMPLETED)
            for death in deaths:
                if death.done():
                    raise death.result()
        finally:
            for task in (waiting, *deaths):
                task.cancel()
            await asyncio.wait({waiting, *deaths})

    def _heard(self, note: Note) -> None:
        if isinstance(note, Due):
            self._samples[note.id] = sample = begun(note)
            if sample.sent_s:
                self._beholder.sent(sample)
        elif isinstance(note, Ended):
            known = self._samples[note.id] if self._keep else self._samples.pop(note.id)
            fill(known, note)
            self._beholder.ended(known)
        elif isinstance(note, Beat):
            self._beholder.pulse(note.pulse)


class Dealt:
    """The requests of one of `count` workers. What comes after another goes where that one went."""

    def __init__(self, requests: Requests, chained: frozenset[str], count: int, number: int) -> None:
        """Nothing is gone through before it is asked for: there may be more than memory holds. In `chained` are the
        tenants some of whose requests come after others."""
        self._requests = requests
        self._chained = chained
        self._count = count
        self._number = number

    def __iter__(self) -> Iterator[Planned]:
        """In order of time."""
        places: dict[int, int] = {}  # of what others may come after
        turn = 0
        for planned in self._requests:
            if planned.after is None:
                place, turn = turn % self._count, turn + 1
            else:
                place = places[planned.after]
            if planned.tenant in self._chained:
                places[planned.id] = place
            if place == self._number:
                yield planned

    def __len__(self) -> int:
        """How many, by going through them."""
        return sum(1 for _ in self)


async def _gathered(waits: Iterable[object]) -> None:
    await asyncio.gather(*waits)  # type: ignore[call-overload]


class _Worker:
    """One process."""

    def __init__(self, number: int, heard: Callable[[Note], None]) -> None:
        self.ready = asyncio.Event()
        self.done = asyncio.Event()
        self._number = number
        self._heard = heard
        self._words: deque[str] = deque(maxlen=_WORDS)
        self._process: asyncio.subprocess.Process | None = None
        self._ears: list[asyncio.Task[None]] = []

    async def start(self, job: Job) -> None:
        """Start it and give it its job. It has no terminal: Ctrl-C reaches this process alone."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *ARGV, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._process = process
        self._ears = [
            tasks.start(self._listen(process), f"notes of worker {self._number}"),
            tasks.start(self._overhear(process), f"words of worker {self._number}"),
        ]
        self._write(pickle.dumps(job))

    def tell(self, order: Order) -> None:
        """Give it an order."""
        self._write(_encode(order))

    async def death(self) -> ClientError:
        """What to say of its end, if it ends before it is done."""
        process = self._running()
        status = await process.wait()
        await asyncio.wait(self._ears)
        if self.done.is_set():
            await asyncio.Event().wait()
        words = "\n".join(self._words) or "It said nothing."
        return ClientError(f"worker {self._number} ended with status {status} before its work was done. {words}")

    async def end(self) -> None:
        """It is gone on return."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await asyncio.wait(self._ears)

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise ClientError(f"worker {self._number} was not started")
        return self._process

    def _write(self, data: bytes) -> None:
        stdin = self._running().stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(framed(data))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        with suppress(asyncio.IncompleteReadError):
            while True:
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                for note in _notes.decode(await process.stdout.readexactly(length)):
                    self._take(note)

    def _take(self, note: Note) -> None:
        if isinstance(note, Ready):
            self.ready.set()
        elif isinstance(note, Done):
            self.done.set()
        else:
            self._heard(note)

    async def _overhear(self, process: asyncio.subprocess.Process) -> None:
        if process.stderr is not None:
            async for line in process.stderr:
                self._words.append(line.decode("utf-8", "replace").rstrip())
