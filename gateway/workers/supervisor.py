"""The process above the workers: it has the admin port, starts them, starts them again, and ends when all have ended.

It serves no request. Each worker binds the data port itself (SO_REUSEPORT) and has a share of the connections; one that
dies costs the streams it had, and nobody else anything. SIGTERM and SIGINT are passed on, and each worker drains as if it
were alone; so is a second one, which ends the grace; SIGHUP reloads all. Where no worker has ever come to serve, the
first that ends ends everything: a start that fails says so once.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop

from gateway import assembly, tasks
from gateway.admin.listener import Listener, listen
from gateway.config import Config, Loaded
from gateway.config.changes import fixed_checksum
from gateway.telemetry.log import EventLog
from gateway.telemetry.sink import Sink
from gateway.workers.channels import Channels
from gateway.workers.numbers import Numbers
from gateway.workers.panel import Panel
from gateway.workers.slot import Orders, Slot


def serve(loaded: Loaded, count: int) -> int:
    """Run `count` workers until told to stop; returns the exit status."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="forebay-"))  # mode 0700: it is what guards the sockets in it
    except OSError as error:
        sys.stderr.write(f"forebay: --workers needs a folder for its sockets: {error}\n")
        return 1
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Supervisor(loaded, count, folder).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Supervisor:
    """`count` workers on one port."""

    def __init__(self, loaded: Loaded, count: int, folder: Path) -> None:
        self._loaded = loaded
        telemetry = loaded.config.telemetry
        self._notes = Sink(2, name="events", shared=True)
        self._events = EventLog(self._notes, level=telemetry.log_level, log_format=telemetry.log_format)
        self._numbers = Numbers()
        command = [sys.executable, "-P", "-m", "gateway", "serve", "--config", loaded.file]
        orders = Orders(
            command=command,
            count=count,
            fixed=fixed_checksum(loaded.config),
            folder=folder,
            events=self._events,
            ended=self._ended,
        )
        self._slots = [Slot(index, orders) for index in range(count)]
        self._channels = Channels(self._slots)
        self._draining = self._failed = False

    async def run(self) -> int:
        """Serve until told to stop. Returns the exit status."""
        loop = asyncio.get_running_loop()
        listener = await self._listen()
        if listener is None:
            self._notes.close()
            return 1
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        keepers = [tasks.start(slot.keep(), f"worker {slot.index}") for slot in self._slots]
        try:
            await asyncio.gather(*keepers)
        finally:
            await self._channels.close()
            await listener.close()
            self._notes.close()
        return 1 if self._failed else 0

    async def _listen(self) -> Listener | None:
        config = self._loaded.config
        try:
            await _find_free(config)
        except OSError as error:
            assembly.cannot_listen(self._loaded, "listen", error)
            return None
        panel = Panel(self._slots, self._channels, self._numbers, self)
        try:
            listener = await listen(panel.app(), config.admin.host, config.admin.port)
        except OSError as error:
            assembly.cannot_listen(self._loaded, "admin", error)
            return None
        self._events.info("supervising", workers=len(self._slots), admin=listener.where)
        return listener

    # -- what happens ----------------------------------------------------------------------------------------------

    def draining(self) -> bool:
        """Whether it goes down."""
        return self._draining

    def drained(self, slots: Sequence[Slot]) -> None:
        """These have been told to drain: the others are, and none is started again."""
        self._go_down([slot for slot in self._slots if slot not in slots])

    def _stop(self) -> None:
        self._go_down(self._slots)

    def _go_down(self, to_tell: Sequence[Slot]) -> None:
        if not self._draining:
            self._draining = True
            self._events.info("draining", workers=len(self._slots))
        for slot in self._slots:
            slot.give_up()
        for slot in to_tell:
            slot.signal(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for slot in self._slots:
            slot.signal(number)

    def _ended(self, slot: Slot) -> None:
        self._numbers.ended(slot.index)
        if not self._draining and not any(one.has_served for one in self._slots):
            self._failed = True
            self._events.error("no worker could be started", worker=slot.index, status=slot.status)
            self._stop()
        at_its_start = slot.status == -signal.SIGTERM  # a worker that serves ends by itself
        self._failed |= self._draining and slot.has_served and slot.status != 0 and not at_its_start


async def _find_free(config: Config) -> None:
    """Raise OSError when the data port is taken: workers share it, and would with a stranger who shares it too."""
    loop = asyncio.get_running_loop()
    data = config.listen
    server = await loop.create_server(asyncio.Protocol, data.host, data.port, start_serving=False)
    server.close()
    await server.wait_closed()
