"""Lines to a file descriptor without ever waiting for it: a bounded buffer, and one thread that empties it.

Rules. `write` never blocks and never fails: what does not fit is dropped and counted. The thread wakes at most every
`PAUSE_S`, because each wake-up makes it compete for the interpreter lock, and writes all it finds in one call. A line
is written whole or not at all, unless the sink itself fails in the middle; then the next one starts on a new line.
A pipe that other processes write to takes no more at once than what the kernel never tears apart.
"""

import os
import select
import stat
import threading
import time
from typing import Final

PAUSE_S: Final = 0.05
MAX_BYTES: Final = 4 * 1024 * 1024


class Sink:
    """One output, shared by all who write whole lines from the loop's thread. The descriptor stays the caller's.

    `shared`: with other processes too.
    """

    def __init__(self, fd: int, *, name: str, max_bytes: int = MAX_BYTES, shared: bool = False) -> None:
        self._fd = fd
        self._by_pages = shared and stat.S_ISFIFO(os.fstat(fd).st_mode)
        self._max_bytes = max_bytes
        self._lines: list[bytes] = []
        self._appended = 0  # bytes; written by the loop's thread only
        self._taken = 0  # bytes; written by the sink's thread only
        self._refused = 0  # lines that found the buffer full
        self._lost = 0  # lines the descriptor did not take
        self._torn = False
        self._awake = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._run, name=f"log-{name}", daemon=True)
        self._writer.start()

    @property
    def dropped(self) -> int:
        """Lines that were never written."""
        return self._refused + self._lost

    def write(self, line: bytes) -> None:
        """Take one line, its newline included."""
        size = len(line)
        if self._appended - self._taken + size > self._max_bytes:
            self._refused += 1
            return
        self._appended += size
        self._lines.append(line)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is left, for at most `timeout_s`; what a stuck reader does not take by then is dropped."""
        self._max_bytes = -1  # nothing more is taken
        self._closing.set()
        self._wake.set()
        self._writer.join(timeout_s)
        if self._writer.is_alive():
            self._refused += len(self._lines)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            self._closing.wait(PAUSE_S)
            self._drain()
        self._drain()

    def _drain(self) -> None:
        self._awake = False
        count = len(self._lines)
        if not count:
            return
        # Slicing and deleting are atomic, and the loop's thread only ever appends.
        batch = b"".join(self._lines[:count])
        self._put(batch, count)
        del self._lines[:count]
        self._taken += len(batch)

    def _put(self, batch: bytes, count: int) -> None:
        data = b"\n" + batch if self._torn else batch
        written = 0
        try:
            while written < len(data):
                written += self._write_some(memoryview(data)[written : self._until(data, written)])
        except OSError:
            self._lost += count - data[:written].count(b"\n") + (1 if self._torn and written else 0)
            time.sleep(PAUSE_S)  # a full disk is not asked again at once
        self._torn = written > 0 and data[written - 1 : written] != b"\n"

    def _until(self, data: bytes, begin: int) -> int:
        """The end of what is written in one call: of all, or of the last line that still fits into an atomic write."""
        if not self._by_pages or len(data) - begin <= select.PIPE_BUF:
            return len(data)
        return data.rfind(b"\n", begin, begin + select.PIPE_BUF) + 1 or begin + select.PIPE_BUF

    def _write_some(self, data: memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:  # somebody made the descriptor non-blocking
            select.select([], [self._fd], [], 1.0)
            return 0
