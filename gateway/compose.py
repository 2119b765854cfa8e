"""Heads that the gateway writes: the request to an engine and the answer to a client (http.md 5.2, 6.5).

Both are built from nothing. A client's field gets upstream only by name, and nothing of an engine's head gets down.
"""

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from gateway.dialects.answers import ErrorAnswer
from gateway.dialects.routes import Dialect, Route
from gateway.http.head import Head
from gateway.telemetry.record import RequestRecord

_ANTHROPIC: Final = re.compile(rb"[A-Za-z0-9,._ -]{1,512}\Z").match
_TRACE: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z").match
_ANTHROPIC_API: Final = Dialect.ANTHROPIC
_TRACESTATE_BYTES: Final = 512
_STRIPPED_BYTES: Final = 256
Priority = tuple[int | None, bytes]  # what the body says, and the line of the head where it cannot
Trace = tuple[bytes, bytes, bytes]  # trace id, flags and the line of `tracestate` of a client that traces


class Ids:
    """Ids of 26 characters, unique here and, by 64 random bits, elsewhere. None is a prefix of another: an engine
    that aborts by prefix (sglang#39461) can only ever hit the one that was meant."""

    def __init__(self) -> None:
        self._prefix = os.urandom(8).hex()
        self._blocks = itertools.count(1)
        self._left: list[str] = []

    def new(self) -> str:
        """The next id."""
        if not self._left:
            block = f"{self._prefix}{next(self._blocks):08x}"
            self._left = [block + last for last in _LAST]
        return self._left.pop()


_LAST: Final = [f"{number:02x}" for number in reversed(range(256))]


class EngineHead:
    """The part of a request's head that is the same for every request to one endpoint on one route."""

    def __init__(self, path: bytes, authority: str, api_key: str | None, version: str) -> None:
        self.salted = False  # whether the engine takes a `cache_salt` on this route
        self.priorities: Mapping[str, Priority] | None = None  # by class, where the engine goes by them
        key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self._constant = (
            b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n"
            b"accept: application/json, text/event-stream\r\naccept-encoding: identity\r\nuser-agent: forebay/%b\r\n%b"
            % (path, authority.encode(), version.encode(), key.encode())
        )

    def render(self, attempt_id: str, trace: Trace | None, lines: bytes, length: int) -> bytes:
        """The head of one attempt. `trace` and `lines`: what depends on the client (`client_trace`, `client_lines`).

        The attempt is a span: of the client's trace, or of one of its own. Its id is hexadecimal and unique enough.
        """
        own = attempt_id.encode()
        of, flags, state = trace or (own + b"000000", b"00", b"")
        return (
            b"%bx-request-id: %b\r\ntraceparent: 00-%b-%b-%b\r\n%b%bcontent-length: %d\r\n\r\n"
            % (self._constant, own, of, own[-16:], flags, state, lines, length)
        )  # fmt: skip


def client_lines(head: Head, route: Route, forward: Iterable[bytes]) -> bytes:
    """The lines of an engine's head that follow from the client's, the trace aside."""
    fields = head.fields
    lines = b""
    if route.dialect is Dialect.ANTHROPIC:
        for name in (b"anthropic-version", b"anthropic-beta"):
            value = fields.get(name)
            if value is not None and _ANTHROPIC(value):
                lines += b"%b: %b\r\n" % (name, value)
    for name in forward:
        value = fields.get(name)
        if value is not None:
            lines += b"%b: %b\r\n" % (name, value)
    return lines


def client_trace(head: Head) -> Trace | None:
    """Trace id, flags and the line of `tracestate` of a client that traces."""
    given = head.fields.get(b"traceparent")
    match = _TRACE(given) if given else None
    if match is None or not match[1].strip(b"0") or not match[2].strip(b"0"):  # an id of zeros is none
        return None
    state = head.fields.get(b"tracestate", b"")
    line = b"tracestate: %b\r\n" % state if 0 < len(state) <= _TRACESTATE_BYTES else b""
    return match[1], match[3], line


def about(record: RequestRecord, dialect: Dialect) -> bytes:
    """The lines every answer carries."""
    own = record.request_id.encode()
    known = record.client_request_id.encode() or own
    lines = b"x-request-id: %b\r\nx-forebay-request-id: %b\r\n" % (known, own)
    return b"request-id: %b\r\n%b" % (known, lines) if dialect is _ANTHROPIC_API else lines


def notice(stripped: tuple[str, ...]) -> bytes:
    """Which fields of the body were removed, replaced or lowered."""
    if not stripped:
        return b""
    names = ",".join(stripped).encode("ascii", "backslashreplace")[:_STRIPPED_BYTES]
    return b"x-forebay-stripped: %b\r\n" % re.sub(rb"[^!-~]", b"?", names)


def reply_lines(record: RequestRecord, about_lines: bytes, content_type: bytes, coding: bytes) -> bytes:
    """The lines of a good answer (http.md 6.5)."""
    lines = (
        b"content-type: %b\r\n%bx-forebay-pool: %b\r\nx-forebay-class: %b\r\nx-forebay-queue-ms: %d\r\n"
        b"x-forebay-attempts: %d\r\ncache-control: no-store\r\n"
    ) % (
        content_type,
        about_lines,
        record.pool.encode(),
        record.band.encode(),
        int(record.queue_ms or 0.0),  # a number that is known to be whole is written without the general formatter
        record.attempts,
    )
    if coding:
        lines += b"content-encoding: %b\r\n" % coding
    return lines + notice(record.stripped) if record.stripped else lines


def error_lines(record: RequestRecord, answer: ErrorAnswer) -> bytes:
    """The lines of an error answer."""
    lines = b"".join([b"%b: %b\r\n" % line for line in answer.headers])
    return b"%bx-forebay-request-id: %b\r\n%b" % (lines, record.request_id.encode(), notice(record.stripped))


def waiting_lines(record: RequestRecord, about_lines: bytes) -> bytes:
    """The lines of a stream that begins before its answer does, to be kept open with comments."""
    lines = b"content-type: text/event-stream\r\n%bcache-control: no-store\r\nx-accel-buffering: no\r\n"
    return lines % about_lines + notice(record.stripped)
