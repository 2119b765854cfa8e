"""Processes of the kit end with the test, and with a test run that is killed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import ROOT, WITH_PARENT, Child, free_ports, python, until

SLEEPER = ("-c", "import time; print('up', flush=True); time.sleep(60)")
STUBBORN = (
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
)


async def test_a_process_is_ended_by_its_pid_and_killed_when_it_does_not_listen(tmp_path: Path) -> None:
    for code, status in ((SLEEPER, -signal.SIGTERM), (STUBBORN, -signal.SIGKILL)):
        child = Child(python(*code), tmp_path, "child")
        await until(lambda child=child: b"up" in child.out.read_bytes(), 5, "not up")  # type: ignore[misc]
        assert await child.stop(0.3) == status
        child.out.unlink()


async def test_the_descriptor_limit_reaches_the_process(tmp_path: Path) -> None:
    child = Child(
        python("-c", "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))", files=123), tmp_path, "child"
    )
    assert await child.wait(5) == 0
    assert child.out.read_text().strip() == "(123, 123)"


async def test_optimized_python_has_no_asserts(tmp_path: Path) -> None:
    child = Child(python("-c", "assert False", optimize=True), tmp_path, "child")
    assert await child.wait(5) == 0


@pytest.mark.skipif(not WITH_PARENT, reason="setpriv (util-linux) is not installed")
async def test_a_killed_test_run_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.kit.processes import Child, python;"
        f"print(Child(python(*{SLEEPER!r}), Path({str(tmp_path)!r}), 'grandchild').pid, flush=True); time.sleep(60)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert run.stdout is not None
    with run.stdout:
        pid = int(await asyncio.to_thread(run.stdout.readline))
    await until(lambda: (tmp_path / "grandchild.out").read_bytes() == b"up\n", 5, "not up")
    run.kill()
    run.wait()
    await until(lambda: not alive(pid), 5, "the process outlives its test run")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
