"""The journal's writer: never waits, never lies about what is missing."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.recorder import Recorder, encode_line
from policies import journal
from policies.core import Core
from policies.decisions import Dispatch, Why
from policies.events import Arrived, EndpointUp, Event, SettingsChanged, Tick
from policies.types import Band, Endpoint, InferenceRequest, Pool, Settings

REQUEST = InferenceRequest(
    id="réq-1",
    tenant="default",
    model="llama",
    band="standard",
    route="chat",
    streamed=True,
    arrived_s=0.1 + 0.2,
    deadline_s=1800.0,
    prompt_tokens=100,
    max_output_tokens=64,
    sequences=1,
    body_bytes=1000,
    prefix=(2**63, 5),
)
SETTINGS = Settings(
    pools={"main": Pool(name="main", model="llama")},
    bands={"standard": Band(name="standard", rank=2, queue_timeout_s=60.0, max_queued=10)},
    max_queued=10,
    max_queued_bytes=1 << 20,
    max_attempts=2,
    seed=7,
)
ENDPOINT = Endpoint(name="x", pools=("main",), max_seqs=4, max_prefill_tokens=2048)


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < until, "waited 10 s in vain"
        time.sleep(0.005)


@pytest.mark.parametrize(
    "event",
    [Arrived(request=REQUEST), SettingsChanged(settings=SETTINGS), EndpointUp(endpoint=ENDPOINT), Tick()],
    ids=lambda event: type(event).__name__,
)
def test_a_line_holds_what_the_journal_format_says(event: Event) -> None:
    decisions = [Dispatch(request_id="a", attempt=1, endpoint="x", why=Why(pool="main"))] * 2
    for decided in ([], decisions):
        assert json.loads(encode_line(3, 0.1 + 0.2, event, decided)) == journal.encode_line(
            3, 0.1 + 0.2, event, decided
        )


def test_a_closed_journal_is_whole(tmp_path: Path) -> None:
    core, path = Core(), tmp_path / "journal.jsonl"
    recorder = Recorder(path, seed=7, config="abc")
    events: list[Event] = [SettingsChanged(settings=SETTINGS), EndpointUp(endpoint=ENDPOINT), Arrived(request=REQUEST)]
    for now, event in enumerate(events):
        recorder.record(float(now), event, core.handle(event, float(now)))
    assert recorder.close() is True
    header, *lines = read(path)
    assert header == {"version": journal.VERSION, "seed": 7, "config": "abc"}
    assert [line["seq"] for line in lines] == [0, 1, 2]
    assert [journal.decode_event(line) for line in lines] == events  # type: ignore[arg-type]
    assert recorder.dropped == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_events_reach_the_file_while_the_gateway_runs(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    recorder = Recorder(path, seed=7, config="")
    recorder.record(0.0, Tick(), [])
    wait_for(lambda: path.exists() and len(read(path)) == 2)
    recorder.close()


def test_the_journal_of_the_run_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for run in range(2):
        recorder = Recorder(path, seed=run, config="")
        recorder.record(0.0, Tick(), [])
        recorder.close()
    assert read(path)[0]["seed"] == 1
    assert read(tmp_path / "journal.jsonl.1")[0]["seed"] == 0


def test_a_full_buffer_drops_and_the_journal_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)  # opening it for writing waits for a reader: a sink that blocks
    recorder = Recorder(path, seed=7, config="", buffer_bytes=1000)
    began = time.monotonic()
    for _ in range(100):
        recorder.record(0.0, Tick(), [])
    wait_for(lambda: recorder.dropped > 0)
    assert time.monotonic() - began < 5.0
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    assert recorder.close(10.0) is False
    reader.join(10.0)
    _, *lines = [json.loads(line) for line in received[0].splitlines()]
    kept = [line for line in lines if "event" in line]
    assert [line["dropped"] for line in lines if "dropped" in line] == [100 - len(kept)]
    assert recorder.dropped == 100 - len(kept)


def test_a_sink_that_blocks_does_not_hold_up_the_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    recorder = Recorder(path, seed=7, config="")
    recorder.record(0.0, Tick(), [])
    began = time.monotonic()
    assert recorder.close(0.2) is False
    assert time.monotonic() - began < 2.0
    path.read_bytes()  # lets its thread end


def test_an_unwritable_path_drops_everything_and_serving_goes_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "missing" / "journal.jsonl", seed=7, config="")
    recorder.record(0.0, Tick(), [])
    wait_for(lambda: recorder.dropped == 1)
    recorder.record(0.0, Tick(), [])
    assert recorder.close() is False
    assert recorder.dropped == 2


def test_whoever_records_is_told_once_why_the_file_cannot_be_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "missing" / "journal.jsonl", seed=7, config="")
    told: list[str] = []
    recorder.on_failure = told.append
    for dropped in (1, 2, 3):
        recorder.record(0.0, Tick(), [])
        wait_for(lambda: recorder.dropped == dropped)  # noqa: B023  # asked at once
    (tmp_path / "missing").mkdir()
    recorder.record(0.0, Tick(), [])
    wait_for(lambda: (tmp_path / "missing" / "journal.jsonl").exists())
    recorder.close()
    assert told == ["No such file or directory"]


def test_a_full_disk_leaves_a_gap_that_the_journal_names(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.symlink_to("/dev/full")  # every write fails with ENOSPC
    recorder = Recorder(path, seed=7, config="")
    recorder.record(0.0, Tick(), [])
    wait_for(lambda: recorder.dropped == 1)
    assert recorder.close() is False


def test_after_a_disk_was_full_the_file_goes_on_with_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    recorder = Recorder(path, seed=7, config="")
    recorder.record(0.0, Tick(), [])
    wait_for(lambda: path.exists() and len(read(path)) == 2)
    write = os.write

    def half_then_full(file: int, data: bytes) -> int:
        write(file, bytes(data)[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    recorder.record(1.0, Tick(), [])
    wait_for(lambda: recorder.dropped == 1)
    monkeypatch.undo()
    recorder.record(2.0, Tick(), [])
    assert recorder.close() is False
    _, *lines = read(path)
    assert lines[1] == {"seq": 1, "dropped": 1}
    assert [line["seq"] for line in lines] == [0, 1, 2]
