"""`make agree` on a load of a few seconds: what has to be equal is, also on a busy machine."""

import json
import re
import signal
from pathlib import Path

import pytest

from loadgen.live.processes import is_free
from tests.kit.processes import Child, python, until

pytestmark = pytest.mark.timeout(150)

# Times are for an idle machine: here they may be far apart, and the limits that make a live run valid be broken.
BUSY = tuple(word for rule in ("V1", "V2", "V3", "V4", "V9") for word in ("--allow", rule))


async def test_a_live_run_and_its_simulation_serve_the_same_and_the_journal_replays(tmp_path: Path) -> None:
    options = ("--scenario", "smoke", "--seconds", "4", "--runs", "1", *BUSY, "--out", "kept")
    child = Child(python("-m", "loadgen.agree", *options), tmp_path, "agree")
    try:
        code = await child.wait(120)
    finally:
        await child.stop(15)
    text = child.out.read_text() + child.err.read_text()
    assert code in (0, 1), text
    rows = {row["name"]: row for row in json.loads((tmp_path / "kept" / "smoke.json").read_bytes())}
    equal = {name: row for name, row in rows.items() if row["most"] == 0}
    assert set(equal) >= {"completed", "rejected", "output tokens", "preemptions", "decisions replayed otherwise"}
    assert {name for name, row in equal.items() if not row["agrees"]} == set(), text
    assert rows["completed"]["live"][0] > 30 and rows["failed"]["live"] == [0]
    assert (code == 0) == all(row["agrees"] for row in rows.values())
    assert re.search(r"^output tokens .* equal +ok", child.out.read_text(), re.M), text
    assert (tmp_path / "kept" / "smoke-run-1-1" / "journal.jsonl").stat().st_size > 0


async def test_a_scenario_that_is_not_there_is_refused(tmp_path: Path) -> None:
    child = Child(python("-m", "loadgen.agree", "--scenario", "nonsense"), tmp_path, "agree")
    try:
        assert await child.wait(60) == 2
    finally:
        await child.stop()
    assert "no scenario is called nonsense" in child.err.read_text()


async def test_stopped_by_a_signal_it_stops_what_it_has_started(tmp_path: Path) -> None:
    child = Child(python("-m", "loadgen.agree", "--scenario", "smoke", "--out", "kept"), tmp_path, "agree")
    try:
        await until(lambda: (tmp_path / "kept" / "smoke-unloaded-1" / "gateway.log").exists(), 60, "no gateway")
        child.signal(signal.SIGTERM)
        assert await child.wait(30) == 130
    finally:
        await child.stop()
    assert "interrupted" in child.err.read_text() and "Traceback" not in child.err.read_text()
    port = int(re.findall(r"http://127.0.0.1:(\d+)", (tmp_path / "kept/smoke-unloaded-1/forebay.yaml").read_text())[0])
    assert is_free(port)
