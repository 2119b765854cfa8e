"""One line per request on stdout: who asked for what, what came of it, where the time went.

A line never holds a prompt, an answer, a key, or any part of a body but its size. What a client chose (its request
id, the model's name, its address behind a proxy) is bounded and escaped, so it can neither forge nor flood a line.
"""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from gateway.telemetry.lines import MAX_TEXT, as_text, printable
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.sink import Sink

LogFormat = Literal["json", "text"]


class AccessLine(msgspec.Struct, frozen=True):
    """The fields in the order they are written. Times in ms, null = never happened; `ts` is when the request ended."""

    ts: datetime
    request_id: str
    client_request_id: str
    client: str
    method: str
    path: str
    route: str
    tenant: str
    model: str
    class_: str = msgspec.field(name="class")
    stream: bool
    status: int
    outcome: str
    reason: str
    stage: str
    pool: str
    endpoint: str
    attempts: int
    client_retry: str
    read_ms: float | None
    queue_ms: float | None
    ttft_ms: float | None
    duration_ms: float | None
    bytes_in: int
    bytes_out: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    stripped: tuple[str, ...]


class AccessLog:
    """Writes finished records to a sink."""

    def __init__(self, sink: Sink, log_format: LogFormat = "json") -> None:
        self._sink = sink
        self._encode = _json if log_format == "json" else _text

    def write(self, record: RequestRecord) -> None:
        """Write the line of a request that has ended. Never blocks, never raises for anything a client sent."""
        self._sink.write(self._encode(_line(record)))


def _line(record: RequestRecord) -> AccessLine:
    received, arrived, dispatched, ended = record.received_s, record.arrived_s, record.dispatched_s, record.ended_s
    client_request_id, client, path, model = record.client_request_id, record.client, record.path, record.model
    retry_count, stripped = record.retry_count, record.stripped
    chosen = client_request_id + client + path + model + retry_count
    if stripped or len(chosen) > MAX_TEXT or not chosen.isprintable():
        client_request_id, client, path = printable(client_request_id), printable(client), printable(path)
        model, retry_count, stripped = printable(model), printable(retry_count), tuple(map(printable, stripped))
    return AccessLine(
        _now(UTC),
        record.id,
        client_request_id,
        client,
        record.method,
        path,
        record.route,
        record.tenant,
        model,
        record.band,
        record.streamed,
        record.status,
        record.outcome,
        record.reason,
        record.stage,
        record.pool,
        record.endpoint,
        record.attempts,
        retry_count,
        _ms(arrived - received) if arrived else None,
        _ms((dispatched or ended) - arrived) if arrived else None,
        _ms(record.first_token_s - received) if record.first_token_s else None,
        _ms(ended - received) if ended else None,
        record.bytes_in,
        record.bytes_out,
        record.prompt_tokens,
        record.cached_tokens,
        record.output_tokens,
        stripped,
    )


_now = datetime.now


def _ms(seconds: float) -> float:
    return int(seconds * 1e6 + 0.5) / 1e3


_encoder = msgspec.json.Encoder()


def _json(line: AccessLine) -> bytes:
    return _encoder.encode(line) + b"\n"


def _text(line: AccessLine) -> bytes:
    moment = line.ts.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    words = (line.method or "-", line.path or "-", str(line.status), line.outcome or "-")
    names = line.__struct_fields__
    rest = [(_KEYS.get(name, name), getattr(line, name)) for name in names if name not in _WORDS]
    return as_text(moment, words, rest)


_KEYS = {"class_": "class"}
_WORDS = frozenset({"ts", "method", "path", "status", "outcome"})
