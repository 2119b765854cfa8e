"""`forebay demo` as a user runs it: processes, a load, a report, and nothing left behind."""

import contextlib
import gzip
import json
import os
import pty
import re
import signal
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit.processes import Child, python, until

pytestmark = pytest.mark.timeout(120)

# Seed 40 happens to ask for short answers: these tests are about what comes out, not about waiting for it.
SMALL = ("--seconds", "3", "--rate", "5", "--seed", "40")

TOTALS = {
    "offered", "ok", "rejected", "failed", "cancelled", "attainment", "output_tokens_per_s", "ttft_ms", "itl_ms",
}  # fmt: skip
COUNTS = ("offered", "ok", "rejected", "failed", "cancelled")
ENDS_S = 60.0  # the last answers of a demo of a few seconds take up to 15 s


class Demo(Child):
    """A running demo. What it starts inherits a mark in the environment, and is found by it."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.mark = uuid.uuid4().hex
        env = {"FOREBAY_TEST_MARK": self.mark, "TMPDIR": str(directory)}
        super().__init__(python("-m", "gateway", "demo", *options), directory, "demo", env)

    def started(self) -> dict[int, str]:
        """Pid and command line of all that carries the mark, the demo itself aside."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        found.pop(self.pid, None)
        return found

    def text(self) -> str:
        return self.out.read_text() + self.err.read_text()

    async def sending(self) -> None:
        """Wait until load is on its way: a line of progress is there."""
        await until(lambda: "in flight" in self.text() or self.exited, ENDS_S, "no progress", every_s=0.05)
        assert not self.exited, self.text()


@asynccontextmanager
async def demo(directory: Path, *options: str) -> AsyncIterator[Demo]:
    """A demo whose end, and that of all it started, is checked whatever happens."""
    running = Demo(directory, *options)
    try:
        yield running
    finally:
        await running.stop(15)
        left = running.started()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == {}, running.text()


def check_arithmetic(group: dict[str, object]) -> None:
    offered, ok, rejected, failed, _ = (group[name] for name in COUNTS)
    assert set(group) == TOTALS
    assert offered == ok + rejected + failed  # type: ignore[operator]


async def test_a_demo_reports_what_it_did_and_keeps_its_files(tmp_path: Path) -> None:
    async with demo(tmp_path, *SMALL, "--no-compare", "--json", "demo.json", "--out", "kept") as running:
        assert await running.wait(ENDS_S) == 0, running.text()
    report = json.loads((tmp_path / "demo.json").read_bytes())
    assert set(report) == {"totals", "classes"}
    assert set(report["classes"]) == {"interactive", "standard", "batch"}
    for group in (report["totals"], *report["classes"].values()):
        check_arithmetic(group)
    for name in COUNTS:
        assert report["totals"][name] == sum(group[name] for group in report["classes"].values())
    assert report["totals"]["failed"] == 0
    assert report["totals"]["ok"] > 10
    check_files(tmp_path / "kept", report["totals"])
    check_page(running.out.read_text(), report["totals"])


def check_files(kept: Path, totals: dict[str, object]) -> None:
    """Schedule, requests, access log and configuration tell the same story."""
    plan = [json.loads(row) for row in gzip.decompress((kept / "schedule.jsonl.gz").read_bytes()).splitlines()][1:]
    rows = [json.loads(row) for row in (kept / "gateway" / "requests.jsonl").read_bytes().splitlines()]
    assert sorted(row["id"] for row in rows) == [one["id"] for one in plan]
    done = [row for row in rows if row["outcome"] == "ok"]
    assert [(row["prompt_tokens"], row["output_tokens"]) for row in done] == [
        (row["input_tokens"], row["planned_output_tokens"]) for row in done
    ]
    assert sum(row["phase"] == "measure" and row["outcome"] == "ok" for row in rows) >= int(str(totals["ok"]))
    log = [json.loads(row) for row in (kept / "gateway" / "gateway.log").read_bytes().splitlines()]
    logged = {row["request_id"]: row for row in log if "request_id" in row}
    assert len(logged) == len(plan)
    assert {row["class"] for row in logged.values()} == {one["priority"] for one in plan}
    assert {logged[row["request_id"]]["output_tokens"] - row["output_tokens"] for row in done} == {0}
    assert "endpoints" in (kept / "gateway" / "forebay.yaml").read_text()


def check_page(page: str, totals: dict[str, object]) -> None:
    assert "\x1b" not in page
    assert re.search(rf"all\s+gateway +{totals['offered']} +{totals['ok']} ", page), page
    assert "round robin" not in page


async def test_both_arms_get_the_same_load_and_stand_side_by_side(tmp_path: Path) -> None:
    async with demo(tmp_path, *SMALL, "--json", "demo.json", "--out", "kept") as running:
        assert await running.wait(2 * ENDS_S) == 0, running.text()
    report = json.loads((tmp_path / "demo.json").read_bytes())
    check_arithmetic(report["round_robin"])
    for name in ("offered", "cancelled"):
        assert report["round_robin"][name] == report["totals"][name]
    arms = [
        [json.loads(row) for row in (tmp_path / "kept" / arm / "requests.jsonl").read_bytes().splitlines()]
        for arm in ("gateway", "round-robin")
    ]
    planned = [sorted((row["id"], row["t_sched"], row["input_tokens"]) for row in rows) for rows in arms]
    assert planned[0] == planned[1]
    page = running.out.read_text()
    assert len(re.findall(r"^  gateway ", page, re.M)) == len(re.findall(r"^  round robin ", page, re.M)) == 4
    assert re.search(r"points more|not better", page)


async def test_an_interrupted_demo_stops_all_it_started(tmp_path: Path) -> None:
    async with demo(tmp_path, "--seconds", "60", "--no-compare") as running:
        await running.sending()
        names = " ".join(running.started().values())
        assert names.count(" engine ") == 2 and names.count(" serve ") == 1
        running.signal(signal.SIGINT)
        assert await running.wait(30) == 130
        assert "interrupted" in running.text() and "Traceback" not in running.text()


async def test_a_demo_whose_engines_die_says_so_and_stops(tmp_path: Path) -> None:
    async with demo(tmp_path, "--seconds", "60", "--no-compare") as running:
        await running.sending()
        victim = next(pid for pid, words in running.started().items() if " engine " in words)
        os.kill(victim, signal.SIGKILL)
        assert await running.wait(30) == 4
        assert re.search(r"engines-\d ended with status -9", running.text())
        assert "Traceback" not in running.text()


async def test_a_busy_port_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        async with demo(tmp_path, "--seconds", "6", "--port", port) as running:
            assert await running.wait(40) == 2
    assert f"Port {port} is in use" in running.text() and "--port" in running.text()


async def test_on_a_terminal_the_picture_moves_and_no_color_is_honoured(tmp_path: Path) -> None:
    main, side = pty.openpty()
    name = os.ttyname(side)
    words = " ".join(python("-m", "gateway", "demo", *SMALL, "--no-compare"))
    env = {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    child = Child(["sh", "-c", f"exec {words} >{name} 2>&1"], tmp_path, "terminal", env)
    try:
        shown = bytearray()
        os.set_blocking(main, False)

        def finished() -> bool:
            with contextlib.suppress(BlockingIOError, OSError):
                shown.extend(os.read(main, 65536))
            return child.exited

        await until(finished, ENDS_S, "the demo still runs")
        finished()
    finally:
        await child.stop(15)
        os.close(side)
        os.close(main)
    assert child.process.returncode == 0, shown
    assert shown.count(b"sent ") >= 4 and b"\x1b[" in shown  # redrawn in place
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", shown)
