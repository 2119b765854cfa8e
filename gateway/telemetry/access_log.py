"""One line per request on stdout: who asked for what, what came of it, where the time went.

What a client chose (its request id, the model's name, its address behind a proxy) is bounded and escaped, so it can
neither forge nor flood a line.
"""

from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from gateway.telemetry.lines import MAX_TEXT, as_text, printable
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.sink import Sink

LogFormat = Literal["json", "text"]


class AccessLog:
    """Writes finished records to a sink."""

    def __init__(self, sink: Sink, log_format: LogFormat = "json") -> None:
        self._sink = sink
        self.change(log_format)

    def change(self, log_format: LogFormat) -> None:
        """Write lines in that form."""
        self._as_json = log_format == "json"

    def write(self, record: RequestRecord) -> None:
        """Write the line of a request that has ended; the record is spent. Never blocks, never raises for anything a
        client sent."""
        record.ts = _now(UTC)
        chosen = record.client_request_id + record.client + record.path + record.model + record.client_retry
        if record.stripped or len(chosen) > MAX_TEXT or not chosen.isprintable():
            _make_printable(record)
        self._sink.write(_encode(record) + b"\n" if self._as_json else _text(record))


def _make_printable(record: RequestRecord) -> None:
    record.client_request_id, record.client = printable(record.client_request_id), printable(record.client)
    record.path, record.model = printable(record.path), printable(record.model)
    record.client_retry, record.stripped = printable(record.client_retry), tuple(map(printable, record.stripped))


_now: Final = datetime.now
_encode: Final = msgspec.json.Encoder().encode


def _text(record: RequestRecord) -> bytes:
    moment = record.ts.isoformat(timespec="milliseconds").replace("+00:00", "Z") if record.ts else "-"
    words = (record.method or "-", record.path or "-", str(record.status), record.outcome or "-")
    names = zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True)
    rest = [(shown, getattr(record, name)) for name, shown in names if name not in _WORDS]
    return as_text(moment, words, rest)


_WORDS: Final = frozenset({"ts", "method", "path", "status", "outcome"})
