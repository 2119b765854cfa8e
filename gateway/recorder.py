"""Writes the decision journal (policies/journal.py) without ever making the event loop wait.

The loop encodes (8 µs for an arrival, less for others, in C: an encoder in Python in another thread would hold the interpreter for
5 ms at a time) and appends to a buffer bounded in bytes; a thread writes. When the buffer is full, or the file cannot
be written, events are dropped and counted and serving goes on; the loop tells why, once until writing works again. From then on
the journal cannot be replayed, and says so itself: a line `{seq, dropped}` stands where events are missing.

A journal left by an earlier run is kept as `<path>.1`.
"""

import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from policies import journal
from policies.decisions import Decision
from policies.events import Event

BUFFER_BYTES = 32 * 1024 * 1024  # a few seconds of a busy core
EVERY_S = 0.1  # how long an event may lie in memory
CLOSE_S = 2.0  # http.md 12: flushing may take that long

encode = msgspec.json.Encoder().encode


class Recorder:
    """One journal. `seed` and `config` (a checksum of the configuration) go into its first line."""

    def __init__(self, path: Path, seed: int, config: str, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.on_failure: Callable[[str], None] = lambda cause: None  # called by `record`: what is wrong with the file
        self._path = path
        self._buffer_bytes = buffer_bytes
        self._buffer: deque[tuple[int, bytes]] = deque()
        # Each of these is written by one thread only.
        self._seq = self._put_bytes = self._refused = 0  # the loop's
        self._taken_bytes = self._lost = self._next_seq = 0  # the writer's; before _next_seq all is written or a gap
        self._file = -1
        self._untold = ""  # why the last write failed, until the loop has told it
        self._fails = False
        self._good_bytes = 0  # so much of the file is whole lines
        self._first_line = encode(journal.header(seed, config)) + b"\n"
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Events that are missing from the file."""
        return self._refused + self._lost

    def record(self, now: float, event: Event, decisions: Sequence[Decision]) -> None:
        """The core has handled `event` at `now`. Never waits."""
        if self._untold:
            self.on_failure(self._untold)
            self._untold = ""
        seq = self._seq
        self._seq = seq + 1
        line = encode_line(seq, now, event, decisions)
        if self._put_bytes - self._taken_bytes + len(line) > self._buffer_bytes:
            self._refused += 1
            return
        self._put_bytes += len(line)
        self._buffer.append((seq, line))

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Write what is buffered. False when anything is missing from the file."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self.dropped

    # ---- the writer's thread

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(EVERY_S)
            self._write(self._take())
        self._write(self._take())
        self._write_last_gap()
        if self._file >= 0:
            os.close(self._file)

    def _take(self) -> list[tuple[int, bytes]]:
        taken = [self._buffer.popleft() for _ in range(len(self._buffer))]
        self._taken_bytes += sum(len(line) for _, line in taken)
        return taken

    def _write(self, lines: list[tuple[int, bytes]]) -> None:
        """All of `lines` or none: a batch that fails becomes a gap."""
        if not lines:
            return
        data = []
        expected = self._next_seq
        for seq, line in lines:
            if seq != expected:
                data.append(_gap(expected, seq))
            data.append(line)
            expected = seq + 1
        try:
            self._append(b"".join(data))
        except OSError as error:
            if not self._fails:
                self._fails, self._untold = True, error.strerror or str(error)
            self._lost += len(lines)
        else:
            self._next_seq, self._fails = expected, False

    def _write_last_gap(self) -> None:
        if self._next_seq == self._seq or self._file < 0:
            return
        try:
            self._append(_gap(self._next_seq, self._seq))
        except OSError:
            return

    def _append(self, data: bytes) -> None:
        """Write whole lines; what an earlier failure left half-written is cut off first."""
        if self._file < 0:
            self._open()
        if stat.S_ISREG(os.fstat(self._file).st_mode):
            os.ftruncate(self._file, self._good_bytes)
            os.lseek(self._file, self._good_bytes, os.SEEK_SET)
        if not self._good_bytes:
            data = self._first_line + data
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._good_bytes += len(data)

    def _open(self) -> None:
        if self._path.is_file() and self._path.stat().st_size:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def encode_line(seq: int, now: float, event: Event, decisions: Sequence[Decision]) -> bytes:
    """The bytes of `journal.encode_line`, with the newline."""
    head = encode({"seq": seq, "t": now, "event": type(event).__name__})
    fields = encode(event)
    decided = b",".join(
        b'{"decision":"' + type(each).__name__.encode() + b'",' + encode(each)[1:] for each in decisions
    )
    return b"".join((head[:-1], b"," if fields != b"{}" else b"", fields[1:-1], b',"decisions":[', decided, b"]}\n"))


def _gap(first: int, beyond: int) -> bytes:
    return encode(journal.encode_gap(first, beyond - first)) + b"\n"
