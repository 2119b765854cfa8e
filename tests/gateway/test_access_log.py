"""Lines of the access log and the event log: what is in them, what cannot break them, and that they never wait."""

import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.lines import MAX_TEXT
from gateway.telemetry.log import EventLog
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.sink import Sink

FIELDS: dict[str, Any] = {
    "request_id": "0123456789abcdefghjkmnpqrs", "read_ms": 10.0, "queue_ms": 1000.0, "ttft_ms": 1500.0,
    "duration_ms": 3480.0, "tenant": "default", "model": "llama", "band": "standard", "route": "chat", "method": "POST",
    "path": "/v1/chat/completions", "client": "192.0.2.7", "client_request_id": "mine-1", "status": 200,
    "outcome": "completed", "stream": True, "pool": "short", "endpoint": "s0", "attempts": 2, "client_retry": "1",
    "bytes_in": 2048, "bytes_out": 9000, "prompt_tokens": 500, "cached_tokens": 64, "output_tokens": 100,
    "stripped": ("user", "seed"),
}  # fmt: skip


def a_record(**fields: object) -> RequestRecord:
    return RequestRecord(**{**FIELDS, **fields})


class Output:
    """A file with a sink at its end."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the fixture
        self.sink = Sink(self.file.fileno(), name="test")

    def lines(self) -> list[bytes]:
        """Everything written, after closing the sink."""
        self.sink.close()
        self.file.seek(0)
        data = self.file.read()
        assert not data or data.endswith(b"\n")
        return data.split(b"\n")[:-1]


class Pipe:
    """A pipe with a sink at one end and nobody at the other."""

    def __init__(self, max_bytes: int = 4 * 1024 * 1024) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.sink = Sink(self.write_fd, name="test", max_bytes=max_bytes)

    def read(self) -> bytes:
        """What there is to read now, b"" for nothing."""
        ready, _, _ = select.select([self.read_fd], [], [], 0)
        return os.read(self.read_fd, 65536) if ready else b""

    def close(self) -> None:
        """Close the reading end first, so that a blocked thread ends."""
        os.close(self.read_fd)
        self.sink.close()
        os.close(self.write_fd)


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output()
    yield made
    made.sink.close()
    made.file.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_a_line_holds_the_facts_of_the_request(output: Output) -> None:
    AccessLog(output.sink).write(a_record())
    (line,) = output.lines()
    fields = json.loads(line)
    age = datetime.now(UTC) - datetime.fromisoformat(fields.pop("ts"))
    assert abs(age.total_seconds()) < 5
    assert fields == {
        "request_id": "0123456789abcdefghjkmnpqrs", "client_request_id": "mine-1", "client": "192.0.2.7",
        "method": "POST", "path": "/v1/chat/completions", "route": "chat", "tenant": "default", "key": "", "model": "llama",
        "class": "standard", "stream": True, "status": 200, "outcome": "completed", "reason": "", "stage": "",
        "pool": "short", "endpoint": "s0", "attempts": 2, "client_retry": "1", "read_ms": 10.0, "queue_ms": 1000.0,
        "ttft_ms": 1500.0, "duration_ms": 3480.0, "bytes_in": 2048, "bytes_out": 9000, "prompt_tokens": 500,
        "cached_tokens": 64, "output_tokens": 100, "stripped": ["user", "seed"],
    }  # fmt: skip


def test_what_never_happened_is_null(output: Output) -> None:
    AccessLog(output.sink).write(RequestRecord(request_id="r", status=400, reason="malformed_http"))
    (line,) = output.lines()
    fields = json.loads(line)
    assert [fields[name] for name in ("read_ms", "queue_ms", "ttft_ms", "duration_ms")] == [None] * 4


def test_the_text_form_is_one_line_of_words_and_pairs(output: Output) -> None:
    AccessLog(output.sink, "text").write(a_record(model='two "words"\n2026 forged'))
    (line,) = output.lines()
    moment, rest = line.decode().split(" ", 1)
    assert datetime.fromisoformat(moment).tzinfo is not None
    assert rest.startswith("POST /v1/chat/completions 200 completed request_id=0123456789abcdefghjkmnpqrs ")
    assert r' model="two \"words\"\\n2026 forged" ' in rest
    assert rest.endswith(" stripped=user,seed")


CLIENT_FIELDS = ("client_request_id", "model", "client", "path", "client_retry")


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("field", [*CLIENT_FIELDS, "stripped"])
def test_no_byte_in_a_clients_value_can_break_a_line(output: Output, field: str, log_format: str) -> None:
    log = AccessLog(output.sink, log_format)  # type: ignore[arg-type]
    odd = [chr(code) for code in range(256)] + [bytes([code]).decode("utf-8", "surrogateescape") for code in range(256)]
    odd += ["\u2028", "\u2029", "\u202e", "\ufeff", "\ud800", "\U0010ffff", "".join(map(chr, range(256)))]
    for text in odd:
        value = f"a{text}b"
        log.write(a_record(**{field: (value,) if field == "stripped" else value}))
    lines = output.lines()
    assert len(lines) == len(odd)
    for line in lines:
        text = line.decode("utf-8")
        assert text.isprintable()
        assert len(text.splitlines()) == 1
        if log_format == "json":
            assert json.loads(text)["request_id"] == FIELDS["request_id"]


def test_a_printable_value_is_logged_as_it_is(output: Output) -> None:
    AccessLog(output.sink).write(a_record(model="模型-é", client_request_id='q"\\z'))
    (line,) = output.lines()
    assert json.loads(line)["model"] == "模型-é"
    assert json.loads(line)["client_request_id"] == 'q"\\z'


def test_a_long_value_is_cut(output: Output) -> None:
    AccessLog(output.sink).write(a_record(model="m" * 1_000_000))
    (line,) = output.lines()
    assert json.loads(line)["model"] == "m" * MAX_TEXT + "..."


def test_lines_appear_soon_without_closing(pipe: Pipe) -> None:
    AccessLog(pipe.sink).write(a_record())
    wait_until(lambda: pipe.read().endswith(b"\n"), 1.0)


def test_all_lines_come_out_in_order_when_many_are_written_at_once(pipe: Pipe) -> None:
    want = b"".join(b"%d\n" % number for number in range(50_000))
    for line in want.splitlines(keepends=True):
        pipe.sink.write(line)
        if line.endswith(b"000\n"):
            time.sleep(0.005)  # so that the thread takes some in between
    got = b""
    while len(got) < len(want):
        got += os.read(pipe.read_fd, 65536)
    assert got == want
    assert pipe.sink.dropped == 0


def test_a_reader_that_does_not_read_costs_lines_and_never_time() -> None:
    pipe = Pipe(max_bytes=200_000)
    log = AccessLog(pipe.sink)
    worst_s, count = 0.0, 5000
    for _ in range(count):
        began_s = time.monotonic()
        log.write(a_record())
        worst_s = max(worst_s, time.monotonic() - began_s)
    assert worst_s < 0.1
    assert pipe.sink.dropped > count // 2
    began_s = time.monotonic()
    pipe.sink.close(timeout_s=0.2)
    assert time.monotonic() - began_s < 2.0
    in_pipe = fcntl.fcntl(pipe.read_fd, fcntl.F_GETPIPE_SZ) // 300
    assert count - pipe.sink.dropped <= in_pipe + 1
    pipe.close()


def test_after_a_pause_of_the_reader_lines_flow_again_whole() -> None:
    pipe = Pipe(max_bytes=100_000)
    for number in range(2000):
        pipe.sink.write(b"%0100d\n" % number)
    assert pipe.sink.dropped > 0
    data, deadline = b"", time.monotonic() + 5
    while b"last" not in data and time.monotonic() < deadline:
        data += pipe.read()
        pipe.sink.write(b"last\n")
        time.sleep(0.01)
    assert b"last\n" in data
    assert all(len(line) == 100 or line == b"last" for line in data.splitlines())
    pipe.close()


def test_a_reader_that_went_away_is_counted_and_nothing_raises() -> None:
    read_fd, write_fd = os.pipe()
    sink = Sink(write_fd, name="test")
    os.close(read_fd)
    for _ in range(10):
        sink.write(b"x\n")
    wait_until(lambda: sink.dropped == 10)
    sink.write(b"y\n")
    wait_until(lambda: sink.dropped == 11)
    sink.close()
    os.close(write_fd)


def test_a_full_disk_loses_lines_but_the_next_line_starts_anew() -> None:
    """A file-size limit is the full disk: it takes the first part of a batch, then refuses."""
    script = """
import os, resource, signal, sys, time
from gateway.telemetry.sink import Sink
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
resource.setrlimit(resource.RLIMIT_FSIZE, (1055, resource.RLIM_INFINITY))
sink = Sink(fd, name="t")
for n in range(20):
    sink.write(b"%099d\\n" % n)
while sink.dropped == 0:
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sink.write(b"after\\n")
sink.close()
print(sink.dropped)
"""
    with tempfile.NamedTemporaryFile() as file:
        done = subprocess.run(
            [sys.executable, "-c", script, file.name], capture_output=True, text=True, timeout=20, check=True
        )
        lines = file.read().splitlines()
    assert len(lines) == 12
    assert [len(line) for line in lines[:10]] == [99] * 10
    assert lines[-1] == b"after"
    assert done.stdout.strip() == "10"


def test_a_descriptor_somebody_made_non_blocking_is_still_served(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_fd, False)
    want = b"".join(b"%0100d\n" % number for number in range(2000))  # three times what a pipe holds
    for line in want.splitlines(keepends=True):
        pipe.sink.write(line)
    got = b""
    while len(got) < len(want):
        got += os.read(pipe.read_fd, 65536)
    assert got == want


def test_what_is_written_after_close_is_dropped(output: Output) -> None:
    output.sink.close()
    output.sink.write(b"late\n")
    assert output.sink.dropped == 1
    assert output.lines() == []


def test_an_event_is_one_line_with_its_facts(output: Output) -> None:
    log = EventLog(output.sink)
    log.info("endpoint up", endpoint="s0", failures=3, ratio=0.5, cause=None, forged='a\n{"level":"error"}')
    log.debug("not shown at this level")
    log.error("endpoint down", endpoint="s1")
    first, second = map(json.loads, output.lines())
    assert datetime.fromisoformat(first.pop("ts")).tzinfo is not None
    assert first == {
        "level": "info", "event": "endpoint up", "endpoint": "s0", "failures": 3, "ratio": 0.5, "cause": None,
        "forged": 'a\\n{"level":"error"}',
    }  # fmt: skip
    assert second["level"] == "error"


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_the_level_leaves_out_what_is_below_it(output: Output, level: str, shown: list[str]) -> None:
    log = EventLog(output.sink, level=level)  # type: ignore[arg-type]
    log.debug("x")
    log.info("x")
    log.warning("x")
    log.error("x")
    assert [json.loads(line)["level"] for line in output.lines()] == shown


def test_an_event_as_text(output: Output) -> None:
    EventLog(output.sink, log_format="text").warning("endpoint down", endpoint="s0", cause="not connected")
    (line,) = output.lines()
    assert line.decode().split(" ", 1)[1] == 'WARNING endpoint down endpoint=s0 cause="not connected"'


def test_a_failure_tells_where_and_never_what_was_in_it(output: Output) -> None:
    log = EventLog(output.sink)
    try:
        b"prompt of a tenant \xff".decode()
    except UnicodeDecodeError as error:
        log.failure("relay failed", error)
    (line,) = output.lines()
    fields = json.loads(line)
    assert (fields["level"], fields["event"], fields["error"]) == ("error", "relay failed", "UnicodeDecodeError")
    assert fields["at"].startswith(f"{__name__}:")
    assert b"prompt" not in line


def test_a_flood_of_one_kind_gives_a_line_a_second_and_a_count(output: Output) -> None:
    clock = [50.0]
    log = EventLog(output.sink, now=lambda: clock[0])
    for step in range(4):
        clock[0] = 50.0 + step * 0.5
        for _ in range(1000):
            log.limited("warning", "malformed_http", "bad message", client="192.0.2.1")
        log.limited("warning", "host", "other kind")
    lines = [json.loads(line) for line in output.lines()]
    floods = [line.get("left_out") for line in lines if line["event"] == "bad message"]
    assert floods == [None, 1999]
    assert sum(line["event"] == "other kind" for line in lines) == 2


def test_kinds_are_bounded_too(output: Output) -> None:
    log = EventLog(output.sink)
    for number in range(10_000):
        log.limited("warning", f"kind-{number}", "x")
    assert len(output.lines()) <= 256
