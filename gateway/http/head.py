"""Rules for a request's head: everything httptools is too lenient about (http.md 3.2), and nothing else.

The parser has already refused what llhttp refuses. Here a complete head becomes a `Head` of the few fields that anybody
reads, or a GatewayError. Every other field is dropped: nothing of a client's head is ever copied.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import GatewayError
from policies.decisions import Reason

TARGET_BYTES = 2048
HEAD_BYTES = 32768
TRAILER_BYTES = 8192
CHUNK_OVERHEAD_BYTES = 65536

# Fields that are read at all; the set grows by `upstream.forward_headers`.
READ = frozenset(
    b"host content-type content-length content-encoding transfer-encoding connection upgrade expect authorization "
    b"x-api-key x-request-id x-forebay-priority x-forebay-timeout-ms x-forebay-session x-forwarded-for "
    b"x-stainless-retry-count x-stainless-read-timeout traceparent tracestate anthropic-version anthropic-beta".split()
)
_SINGLE = frozenset((b"host", b"content-type", b"authorization", b"x-api-key", b"expect"))
_LISTS = frozenset((b"connection", b"content-encoding", b"x-forwarded-for", b"tracestate", b"anthropic-beta"))
# Naming one of these in Connection would let a client delete what we judge it by.
_NOT_NOMINABLE = frozenset(
    (b"authorization", b"x-api-key", b"content-length", b"transfer-encoding", b"host", b"traceparent")
)
_HOST = re.compile(rb"[A-Za-z0-9.:_\-\[\]]{1,255}\Z").match
_PORT = re.compile(rb":[0-9]*\Z")


@dataclass(slots=True)
class Limits:
    """What a head may measure, and which names are listened to. `hosts` empty: any Host."""

    field_bytes: int = 8190
    fields: int = 128
    hosts: frozenset[bytes] = frozenset()
    forward: frozenset[bytes] = frozenset()
    read: frozenset[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.read = READ | self.forward


@dataclass(slots=True)
class Head:
    """A well-formed head. `path` is the raw path without the query. What is read of `fields` is read by name: names that
    nobody knows, or that hold `_`, might as well not be there."""

    method: bytes
    path: bytes
    http10: bool
    fields: dict[bytes, bytes]
    content_length: int | None
    chunked: bool
    expects_continue: bool
    meaning: Any = None  # what a handler has concluded from it: kept with a head that comes again

    def get(self, name: bytes) -> bytes:
        """The value of a field, empty when it was not sent."""
        return self.fields.get(name, b"")


def check(line: tuple[bytes, bytes, str], raw: list[tuple[bytes, bytes]], size: int, limits: Limits) -> Head:
    """The checked head. `line` is method, target and version, `raw` (lower-case name, value) in order of arrival, `size`
    no less than the bytes of all fields. Raises GatewayError."""
    method, target, version = line
    if version != "1.1" and version != "1.0":
        raise GatewayError(Reason.HTTP_VERSION, "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
    http10 = version == "1.0"
    if len(raw) > limits.fields:
        raise GatewayError(Reason.HEAD_TOO_LARGE, f"More than {limits.fields} header fields.")
    fields = dict(raw)
    if len(fields) != len(raw) or size > limits.field_bytes or not _is_plain(fields.values()):
        fields = _collect(raw, limits)
    if b"connection" in fields:
        _drop_nominated(fields)
    host = _host(fields, http10, limits)
    path = _path(target, host)
    if b"upgrade" in fields or method == b"CONNECT":
        raise GatewayError(Reason.MALFORMED_HTTP, "Protocol upgrades are not supported.")
    chunked = _chunked(fields, http10)
    length = fields.get(b"content-length")
    declared = int(length) if length is not None else None  # llhttp has checked that these are ASCII digits
    if method == b"GET" and (chunked or declared):
        raise GatewayError(Reason.MALFORMED_HTTP, "A GET request carries no body.")
    return Head(method, path, http10, fields, declared, chunked, _expects(fields, http10))


def _is_plain(values: Iterable[bytes]) -> bool:
    """Whether all are ASCII, and none has space behind it."""
    lines = b"\n".join((*values, b""))
    return lines.isascii() and lines.find(b" \n") < 0 and lines.find(b"\t\n") < 0


def _collect(raw: list[tuple[bytes, bytes]], limits: Limits) -> dict[bytes, bytes]:
    """The fields that are read, where a head is large, repeats a name, or holds values that are not plain."""
    fields: dict[bytes, bytes] = {}
    read, longest = limits.read, limits.field_bytes
    total = 0
    for name, value in raw:
        size = len(name) + len(value)
        total += size
        if size > longest:
            raise GatewayError(Reason.HEAD_TOO_LARGE, f"A header field is longer than {longest} bytes.")
        if name not in read:
            continue
        if not value.isascii():
            raise GatewayError(Reason.MALFORMED_HTTP, f"Header {name.decode()} holds bytes that are not ASCII.")
        if name != b"transfer-encoding":  # there parsers differ in what they make of it
            value = value.rstrip(b" \t")  # llhttp strips what stands before a value, not what stands behind it
        if name not in fields:
            fields[name] = value
        elif name in _SINGLE:
            raise GatewayError(Reason.MALFORMED_HTTP, f"Header {name.decode()} was sent twice.")
        elif name in _LISTS or name in limits.forward:
            fields[name] += b", " + value
    if total > HEAD_BYTES:
        raise GatewayError(Reason.HEAD_TOO_LARGE, f"The header is longer than {HEAD_BYTES} bytes.")
    return fields


def _drop_nominated(fields: dict[bytes, bytes]) -> None:
    value = fields[b"connection"]
    if value in (b"keep-alive", b"close"):
        return
    for name in value.lower().split(b","):
        name = name.strip()
        if name in _NOT_NOMINABLE:
            raise GatewayError(Reason.MALFORMED_HTTP, f"Connection may not name {name.decode()}.")
        if name != b"upgrade":
            fields.pop(name, None)


def _host(fields: dict[bytes, bytes], http10: bool, limits: Limits) -> bytes:
    host = fields.get(b"host")
    if host is None:
        if http10:
            return b""
        raise GatewayError(Reason.MALFORMED_HTTP, "Header host is missing.")
    if not _HOST(host):
        raise GatewayError(Reason.MALFORMED_HTTP, "Header host is not a host name.")
    name = host.lower()
    if limits.hosts and name not in limits.hosts and _PORT.sub(b"", name) not in limits.hosts:
        raise GatewayError(Reason.HOST, "This host is not served here.")
    return host


def _path(target: bytes, host: bytes) -> bytes:
    if target[:1] != b"/":
        scheme, _, rest = target.partition(b"://")
        authority, slash, tail = rest.partition(b"/")
        if scheme.lower() not in (b"http", b"https") or authority != host or not slash:
            raise GatewayError(Reason.MALFORMED_HTTP, "The request target is not a path.")
        target = slash + tail
    if b"#" in target:
        raise GatewayError(Reason.MALFORMED_HTTP, "The request target holds a fragment.")
    return target.partition(b"?")[0] if b"?" in target else target


def _chunked(fields: dict[bytes, bytes], http10: bool) -> bool:
    coding = fields.get(b"transfer-encoding")
    if coding is None:
        return False
    if http10:
        raise GatewayError(Reason.MALFORMED_HTTP, "HTTP/1.0 has no transfer codings.")
    if coding.lower() != b"chunked":
        raise GatewayError(Reason.TRANSFER_CODING, "The only transfer coding is chunked.")
    return True


def _expects(fields: dict[bytes, bytes], http10: bool) -> bool:
    value = fields.get(b"expect")
    if value is None:
        return False
    if value.lower() != b"100-continue":
        raise GatewayError(Reason.EXPECTATION, "The only expectation is 100-continue.")
    return not http10
