"""Heads that come again and again, known by their bytes.

A client's requests on one connection, and an engine's answers, mostly have the same head but for the number in
`content-length`. Once such a head has been parsed and checked, another one of the same bytes needs neither: what was
concluded from it holds. Only the number is read anew, and it can only be digits. A head that differs in anything else
takes the long way through the parser.
"""

import re
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MOST_BYTES: Final = 4096  # longer heads are not worth their memory
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,8})\r\n")
_DIGITS: Final = 8


class KnownHead(Generic[T]):
    """A head, and what was concluded from it (`meaning`, whatever its content-length)."""

    __slots__ = ("_before", "_behind", "_most", "_rest", "_start", "meaning")

    def __init__(self, before: bytes, behind: bytes, meaning: T) -> None:
        self._before = before
        self._behind = behind
        self._start, self._rest = len(before), len(behind)
        self._most = self._start + _DIGITS
        self.meaning = meaning

    def find(self, data: bytes) -> tuple[int, int] | None:
        """If `data` begins with this head: its content-length, and where the body begins."""
        if not data.startswith(self._before):
            return None
        # Digit by digit: compiled, that is a quarter of what it takes to find their end and to have them read.
        length, at, end = 0, self._start, min(self._most, len(data))
        while at < end and 48 <= (digit := data[at]) <= 57:
            length = length * 10 + digit - 48
            at += 1
        body = at + self._rest
        return (length, body) if at > self._start and data[at:body] == self._behind else None


def learn(data: bytes, meaning: T) -> KnownHead[T] | None:
    """The head that `data` begins with, if it is whole and has exactly one plain content-length."""
    end = data.find(b"\r\n\r\n", 0, MOST_BYTES)
    if end < 0:
        return None
    head = data[: end + 4]
    found = _LENGTH.findall(head)
    if len(found) != 1 or head.lower().count(b"content-length") != 1:
        return None
    match = _LENGTH.search(head)
    if match is None:
        return None
    return KnownHead(head[: match.start(1)], head[match.end(1) :], meaning)
