"""Runs engines until a signal: `forebay engine`."""

import asyncio
import gc
import signal
import sys

from loadgen.engine_server.control import Control
from loadgen.engine_server.options import EngineOptions
from loadgen.engine_server.server import SimulatedEngine


def say(line: str) -> None:
    """One line to stdout, at once: callers read the ports from it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def run(options: EngineOptions) -> None:
    """Start the engines, print where they listen, and serve until SIGTERM or SIGINT; a second one waits for nobody."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    engines = [SimulatedEngine(options, index) for index in range(options.count)]

    def signalled() -> None:
        for engine in engines if stopping.is_set() else ():
            engine.hurry()  # asked again
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    controls = [Control(engine) for engine in engines]
    await _wait(stopping, options.startup_delay_s)
    if stopping.is_set():
        return
    for engine, control in zip(engines, controls, strict=True):
        await engine.start()
        say(f"engine {engine.index} listening on http://{options.host}:{engine.port}")
        if options.control_port is not None:
            wanted = options.control_port + engine.index if options.control_port else 0
            say(f"engine {engine.index} control on http://{options.host}:{await control.start(options.host, wanted)}")
    say(engines[0].dialect.ready)
    _rarely_collect()
    await stopping.wait()
    await asyncio.gather(*(engine.stop() for engine in engines))
    await asyncio.gather(*(control.stop() for control in controls))


def _rarely_collect() -> None:
    """A full collection over a long request log must not look like a slow step."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 500)


async def _wait(stopping: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        try:
            await asyncio.wait_for(stopping.wait(), seconds)
        except TimeoutError:
            return
