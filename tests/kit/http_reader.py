"""A response reader of our own, so that a test says exactly how an answer ended.

Three ends are good: the terminating chunk, the last byte of content-length, and (HTTP/1.0 or `connection: close`
without a length) the peer's FIN. Anything else is a broken body, which is what a fault must look like.
"""

from dataclasses import dataclass, field

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Response:
    """One answer. `end` is chunked | length | empty | fin (good), or cut_fin | cut_rst | open (not good)."""

    version: bytes = b""
    status: int = 0
    reason: bytes = b""
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    end: str = "open"
    interim: list[int] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return self.end in ("chunked", "length", "empty", "fin")

    def header(self, name: str) -> str | None:
        """The only value of that name; two of them is a fault of the sender, so it raises."""
        found = [value for key, value in self.headers if key.lower() == name.lower().encode()]
        if len(found) > 1:
            raise ValueError(f"header {name} came {len(found)} times")
        return found[0].decode("latin-1") if found else None

    def values(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == name.lower().encode()]


class ResponseReader:
    """Feed it bytes, then the end of the connection; `done` holds the finished answers in order."""

    def __init__(self, *, head_only: bool = False) -> None:
        self.done: list[Response] = []
        self.current = Response()
        self._buffer = bytearray()
        self._body = bytearray()
        self._state = "head"
        self._left = 0
        self._head_only = head_only
        self.headers_complete = False

    @property
    def leftover(self) -> bytes:
        """Bytes that belong to no finished answer."""
        return bytes(self._buffer)

    @property
    def body_so_far(self) -> bytes:
        return bytes(self._body)

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while self._step():
            pass

    def ended(self, how: str) -> None:
        """The connection ended by `fin` or `rst`."""
        if self._state == "until_close" and how == "fin":
            self._finish("fin")
        elif self._state != "head" or self._buffer:
            self.current.end = f"cut_{how}"
            self.current.body = bytes(self._body)

    def _step(self) -> bool:
        return getattr(self, f"_read_{self._state}")()

    def _line(self) -> bytes | None:
        at = self._buffer.find(b"\r\n")
        if at < 0:
            return None
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 2]
        return line

    def _read_head(self) -> bool:
        at = self._buffer.find(b"\r\n\r\n")
        if at < 0:
            return False
        lines = bytes(self._buffer[:at]).split(b"\r\n")
        del self._buffer[: at + 4]
        version, status, *reason = lines[0].split(b" ", 2)
        response = self.current
        response.version, response.status, response.reason = version, int(status), b"".join(reason)
        response.headers = [_field(line) for line in lines[1:]]
        if 100 <= response.status < 200 and response.status != 101:
            response.interim.append(response.status)
            return True
        self.headers_complete = True
        self._choose_body()
        return True

    def _choose_body(self) -> None:
        response = self.current
        coding, length = response.header("transfer-encoding"), response.header("content-length")
        if self._head_only or response.status in (101, 204, 304):
            self._finish("empty")
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise ValueError(f"framing: transfer-encoding {coding!r} with content-length {length!r}")
            self._state = "size"
        elif length is not None:
            self._left, self._state = int(length), "length"
        else:
            self._state = "until_close"

    def _read_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        self._left = int(line, 16)
        self._state = "chunk" if self._left else "trailer"
        return True

    def _read_chunk(self) -> bool:
        if not self._take_body():
            return False
        self._state = "chunk_end"
        return True

    def _read_chunk_end(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if bytes(self._buffer[:2]) != b"\r\n":
            raise ValueError("no CRLF after the chunk")
        del self._buffer[:2]
        self._state = "size"
        return True

    def _read_trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if not line:
            self._finish("chunked")
        return True

    def _read_length(self) -> bool:
        if not self._take_body():
            return False
        self._finish("length")
        return True

    def _read_until_close(self) -> bool:
        self._body += self._buffer
        self._buffer.clear()
        return False

    def _take_body(self) -> bool:
        piece = self._buffer[: self._left]
        self._body += piece
        del self._buffer[: len(piece)]
        self._left -= len(piece)
        return self._left == 0

    def _finish(self, how: str) -> None:
        self.current.end = how
        self.current.body = bytes(self._body)
        self.done.append(self.current)
        self.current = Response()
        self._body = bytearray()
        self._state = "head"
        self.headers_complete = False


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise ValueError(f"bad header line {line!r}")
    return name, value.strip(b" \t")


def responses(data: bytes, end: str = "open") -> list[Response]:
    """Every answer in `data`, the last one perhaps broken; `end` says how the connection ended."""
    reader = ResponseReader()
    reader.feed(data)
    reader.ended(end)
    broken = [reader.current] if reader.current.end != "open" else []
    return [*reader.done, *broken]
