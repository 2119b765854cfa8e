"""Parts of the demo: children that stop whatever they do, ports, what a person is shown, what the report holds."""

import asyncio
import socket
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from loadgen import tasks
from loadgen.demo.fleet import ENGINES, MODEL, choose_listeners, engine_argv, gateway_config
from loadgen.demo.run import DemoOptions, run_demo
from loadgen.live.processes import LiveError, Processes, free_ports, is_free
from loadgen.live.serving import Listeners
from loadgen.scenario import standard

SLO = standard("demo").slo
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", os.getpid(), flush=True)
time.sleep(60)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    """Running, and not a zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition: object, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


# ---- children


async def test_a_child_that_ignores_sigterm_dies_with_its_own_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.live.processes._STOP_S", 0.3)
    processes = Processes(tmp_path)
    processes.start("stubborn", python(STUBBORN))
    log = tmp_path / "stubborn.log"
    await until(lambda: log.read_text().count("up") == 2)
    pids = [int(line.split()[1]) for line in log.read_text().splitlines()]
    await processes.stop()
    await until(lambda: not any(alive(pid) for pid in pids))


async def test_a_child_that_obeys_sigterm_is_not_killed(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    code = "import signal,sys,time\nsignal.signal(15, lambda *_: (print('bye', flush=True), sys.exit(0)))\nprint('up', flush=True)\ntime.sleep(60)"
    processes.start("polite", python(code))
    await until(lambda: "up" in (tmp_path / "polite.log").read_text())
    await processes.stop()
    assert "bye" in (tmp_path / "polite.log").read_text()


async def test_work_stops_at_once_when_a_child_ends_and_its_last_words_are_told(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("engines-0", python("print('out of paper'); raise SystemExit(3)"))
    work = tasks.start(asyncio.sleep(60), "work")
    with pytest.raises(LiveError, match=r"engines-0 ended with status 3(.|\n)*out of paper"):
        await asyncio.wait_for(processes.while_alive(work), 10)
    assert work.cancelled()
    await processes.stop()


async def test_waiting_for_readiness_ends_with_the_child(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    processes = Processes(tmp_path)
    processes.start("gateway", python("raise SystemExit('no such file')"))
    with pytest.raises(LiveError, match="no such file"):
        await asyncio.wait_for(processes.until("the gateway", never, 30), 10)
    await processes.stop()


async def test_what_is_never_ready_is_given_up(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    processes = Processes(tmp_path)
    processes.start("gateway", python("import time; time.sleep(60)"))
    with pytest.raises(LiveError, match=r"the gateway did not become ready within 0\.2 s"):
        await processes.until("the gateway", never, 0.2)
    await processes.stop()


async def test_the_result_of_work_comes_through(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("idle", python("import time; time.sleep(60)"))
    assert await processes.while_alive(tasks.start(asyncio.sleep(0, "done"), "work")) == "done"
    await processes.stop()


# ---- ports and command lines


def test_free_ports_are_consecutive_and_free() -> None:
    first = free_ports(3)
    assert all(is_free(first + offset) for offset in range(3))


def test_a_busy_port_is_said_and_a_way_out_is_named() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(LiveError, match=rf"Port {port} is in use.*--port") as caught:
            choose_listeners(port)
    assert caught.value.status == 2


def test_the_gateway_gets_two_different_ports() -> None:
    chosen = choose_listeners(0)
    assert chosen.data != chosen.admin


def test_engines_run_as_the_reference_fleet_with_the_long_prefill_cap() -> None:
    argv = engine_argv(9000, 2, 7)
    flags = dict(pairwise(argv))
    assert flags["--profile"] == "llama70b-fp8-h200-tp2"
    assert (flags["--max-num-batched-tokens"], flags["--max-num-seqs"], flags["--max-model-len"]) == (
        "2048",
        "256",
        "32768",
    )
    assert (flags["--long-prefill-token-threshold"], flags["--watermark"]) == ("512", "0.02")
    assert (flags["--port"], flags["--count"]) == ("9000", "2")


def test_the_gateway_accepts_the_configuration_it_is_given(tmp_path: Path) -> None:
    from gateway.config import load

    urls = [f"http://127.0.0.1:{9000 + number}" for number in range(ENGINES)]
    file = tmp_path / "forebay.yaml"
    file.write_text(yaml.safe_dump(gateway_config(Listeners(data=8080, admin=9090), urls)), "utf-8")
    config = load(file, {})
    assert len(config.endpoints) == ENGINES
    assert {pool.model for pool in config.settings().pools.values()} == {MODEL}
    assert {tenant.priority for tenant in standard("demo").tenants} <= set(config.settings().bands)


# ---- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (DemoOptions(seconds=1), "--seconds"),
        (DemoOptions(rate=0), "--rate"),
        (DemoOptions(seconds=2, rate=0.1), "No request falls into this time"),
        (DemoOptions(json_file=Path("/nonexistent/demo.json")), "--json /nonexistent/demo.json"),
        (DemoOptions(out=Path("/dev/null/demo")), "--out /dev/null/demo"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_starts(
    options: DemoOptions, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(options) == 2
    shown_text = capsys.readouterr()
    assert said in shown_text.err and shown_text.out == ""
