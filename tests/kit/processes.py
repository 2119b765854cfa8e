"""Child processes of the tests: started with their output in files, ended by their own pid, never left behind."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from loadgen.live import processes

ROOT = Path(__file__).resolve().parents[2]
# A test run that is killed takes its processes with it.
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def free_ports(count: int) -> list[int]:
    """Consecutive ports that were free a moment ago."""
    first = processes.free_ports(count)
    return list(range(first, first + count))


class Child:
    """One process. `out` and `err` are files, so a full pipe can never block it."""

    def __init__(self, argv: Sequence[str], directory: Path, name: str, env: dict[str, str] | None = None) -> None:
        self.out, self.err = directory / f"{name}.out", directory / f"{name}.err"
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(env or {})}
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [*WITH_PARENT, *argv],
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exited(self) -> bool:
        return self.process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        if not self.exited:
            self.process.send_signal(number)

    async def wait(self, timeout_s: float) -> int:
        """Its exit status; TimeoutError if it still runs."""
        await until(lambda: self.exited, timeout_s, f"process {self.pid} still runs")
        return self.process.wait()

    async def stop(self, timeout_s: float = 5.0) -> int:
        """SIGTERM, and SIGKILL when that did not do."""
        self.signal(signal.SIGTERM)
        try:
            return await self.wait(timeout_s)
        except TimeoutError:
            self.process.kill()
            return self.process.wait()

    def kill(self) -> None:
        if not self.exited:
            self.process.kill()
        self.process.wait()


def python(*arguments: str, optimize: bool = False, files: int = 0, core: int | None = None) -> list[str]:
    """argv of this interpreter; `files` is the fd limit, `core` the only CPU it may use."""
    argv = [sys.executable, *(["-O"] if optimize else []), *arguments]
    if core is not None:
        argv = ["taskset", "-c", str(core), *argv]
    return ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *argv] if files else argv


async def until(condition: Callable[[], bool], timeout_s: float, what: str, *, every_s: float = 0.01) -> None:
    """Wait for a condition with a deadline: a test never sleeps until surely done."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(every_s)


async def until_async(
    condition: Callable[[], Awaitable[bool]], timeout_s: float, what: str, *, every_s: float = 0.03
) -> None:
    deadline = time.monotonic() + timeout_s
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(every_s)
