"""A worker process: sends its share of a schedule, and tells its parent what happens (`python -m loadgen.client.worker`).

It ends when its work is done, when it is told to stop, and at once when its parent is gone.
"""

import asyncio
import pickle
import sys
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop

from loadgen import tasks
from loadgen.client.health import Pulse
from loadgen.client.notes import LENGTH, Beat, Done, Job, Note, Order, Ready, Stop, Zero, due, ended, framed
from loadgen.client.sender import Sender
from loadgen.report.record import Outcome, Sample

FLUSH_S = 0.1
_order = msgspec.msgpack.Decoder(Order)


class _Teller:
    """Collects what happened and tells it several times a second; the beholder of the sender."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._notes: list[Note] = []
        self._encode = msgspec.msgpack.Encoder().encode

    def sent(self, sample: Sample) -> None:
        self._notes.append(due(sample))

    def ended(self, sample: Sample) -> None:
        if sample.outcome is Outcome.DROPPED:
            self._notes.append(due(sample))
        self._notes.append(ended(sample))

    def pulse(self, pulse: Pulse) -> None:
        self._notes.append(Beat(pulse))

    def flush(self, *more: Note) -> None:
        notes, self._notes = [*self._notes, *more], []
        if notes:
            self._write(framed(self._encode(notes)))

    async def flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            self.flush()


async def _frame(orders: asyncio.StreamReader) -> bytes:
    (length,) = LENGTH.unpack(await orders.readexactly(LENGTH.size))
    return await orders.readexactly(length)


async def _work() -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin.buffer)
    pipe, _ = await loop.connect_write_pipe(asyncio.Protocol, sys.stdout.buffer)
    job = cast(Job, pickle.loads(await _frame(orders)))
    teller = _Teller(pipe.write)
    sender = Sender(job.share, job.targets, job.options, teller, keep=False)
    teller.flush(Ready())
    order = _order.decode(await _frame(orders))
    if isinstance(order, Zero):
        zero = order.monotonic_s
        work = tasks.start(sender.run(job.prose, lambda: zero), "share of a worker")
        others = [tasks.start(teller.flush_for_ever(), "notes"), tasks.start(_obey(orders, sender, work), "orders")]
        try:
            await work
        finally:
            for task in others:
                task.cancel()
    teller.flush(Done())
    pipe.close()  # after all that was written


async def _obey(orders: asyncio.StreamReader, sender: Sender, work: asyncio.Task[list[Sample]]) -> None:
    try:
        while True:
            order = _order.decode(await _frame(orders))
            if isinstance(order, Stop):
                sender.stop(order.grace_s)
    except asyncio.IncompleteReadError:
        work.cancel()  # the parent is gone


if __name__ == "__main__":
    uvloop.run(_work())
