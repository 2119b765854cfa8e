"""Writes what the core was told and what it decided, in the form `forebay replay` reads (policies/journal.py)."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from policies import journal
from policies.decisions import Decision
from policies.events import Event

encode = msgspec.json.Encoder().encode


class JournalFile:
    """One journal, gone through the operating system's buffer; `close` it at the end of the run."""

    def __init__(self, path: Path, seed: int) -> None:
        self._seq = 0
        self._file: IO[bytes] = path.open("wb")
        config = hashlib.sha256(b"forebay sim").hexdigest()
        self._file.write(encode(journal.header(seed, config)) + b"\n")

    def record(self, now: float, event: Event, decisions: Sequence[Decision]) -> None:
        """The core has handled `event` at `now`."""
        head = encode({"seq": self._seq, "t": now, "event": type(event).__name__})
        fields = encode(event)
        decided = b",".join(
            b'{"decision":"' + type(each).__name__.encode() + b'",' + encode(each)[1:] for each in decisions
        )
        self._file.write(
            b"".join((head[:-1], b"," if fields != b"{}" else b"", fields[1:-1], b',"decisions":[', decided, b"]}\n"))
        )
        self._seq += 1

    def close(self) -> None:
        """Everything is in the file after this."""
        self._file.close()
