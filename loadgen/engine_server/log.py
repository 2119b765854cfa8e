"""The request log of an engine: one entry per request, what came in and how it ended. Tests count here."""

import hashlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.engine_server.http import Request

KEPT = 20_000


@dataclass(slots=True, kw_only=True)
class Entry:
    """Times are monotonic seconds. `kind` is generate, text, probe, admin or trap; `ended` says how, empty while it is open.
    `started_s`: when the first step with it began.
    """

    engine: int
    kind: str
    method: str
    path: str
    headers: list[tuple[str, str]]
    body_bytes: int
    body_hash: str
    accepted_s: float
    started_s: float | None = None
    first_s: float | None = None
    ended_s: float | None = None
    abort_seen_s: float | None = None
    ended: str = ""
    status: int | None = None
    model: str = ""
    stream: bool = False
    cache_salt: str = ""
    priority: int = 0
    canary: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    sequences: int = 1
    max_tokens: int | None = None
    preemptions: int = 0
    faults: tuple[str, ...] = ()


class RequestLog:
    """The latest entries; probes (health, metrics, models) apart from the rest. Ended ones also go to `file`."""

    def __init__(self, engine: int, file: Path | None) -> None:
        self._engine = engine
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._probes: deque[Entry] = deque(maxlen=KEPT)
        self._file = None if file is None else file.open("ab", buffering=0)

    def open(self, request: Request, kind: str) -> Entry:
        """A new entry for that request."""
        entry = Entry(
            engine=self._engine,
            kind=kind,
            method=request.method.decode("latin-1"),
            path=request.path.decode("latin-1"),
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers],
            body_bytes=len(request.body),
            body_hash=hashlib.blake2b(request.body, digest_size=16).hexdigest(),
            accepted_s=request.accepted_s,
        )
        (self._probes if kind == "probe" else self._entries).append(entry)
        return entry

    def close(self, entry: Entry, how: str, now: float) -> None:
        """The request ended; only the first end counts."""
        if entry.ended:
            return
        entry.ended = how
        entry.ended_s = now
        if self._file is not None and not self._file.closed and entry.kind != "probe":
            self._file.write(msgspec.json.encode(entry) + b"\n")

    def lines(self, probes: bool = False) -> bytes:
        """A JSON array with one line per request, oldest first."""
        entries = [*self._entries, *(self._probes if probes else ())]
        return b"[" + b",\n".join(map(msgspec.json.encode, entries)) + b"]\n"

    def shut(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()
        self._probes.clear()
