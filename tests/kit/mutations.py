"""Good messages spoilt by fifteen operators, one to three at a time, from a seed."""

import random
from collections.abc import Callable, Iterator, Sequence

from tests.kit.corpora import cases

Mutator = Callable[[random.Random, bytes], bytes]
TOKENS: Sequence[bytes] = (
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b",", b";", b"0\r\n\r\n", b"transfer-encoding: chunked\r\n", b"content-length: 0\r\n", b"content-length: 5\r\n",
    b"chunked", b"HTTP/1.1", b"HTTP/1.0", b"\xff", b"\xc2\xa0", b"\x0b", b"connection: close\r\n", b"expect: 100-continue\r\n", b"host: x\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"-1", b"0x", b"_", b"upgrade: h2c\r\n",
)  # fmt: skip


def _at(random_: random.Random, data: bytes) -> int:
    """Mostly in the head, where framing is decided."""
    head = data.find(b"\r\n\r\n") + 4
    return random_.randrange(max(1, head)) if random_.random() < 0.8 else random_.randrange(max(1, len(data)))


def _insert_byte(r: random.Random, data: bytes) -> bytes:
    at = _at(r, data)
    return data[:at] + bytes([r.randrange(256)]) + data[at:]


def _delete_byte(r: random.Random, data: bytes) -> bytes:
    at = _at(r, data)
    return data[:at] + data[at + 1 :]


def _replace_byte(r: random.Random, data: bytes) -> bytes:
    at = _at(r, data)
    return data[:at] + bytes([r.randrange(256)]) + data[at + 1 :]


def _flip_bit(r: random.Random, data: bytes) -> bytes:
    at = min(_at(r, data), len(data) - 1)
    return data[:at] + bytes([data[at] ^ (1 << r.randrange(8))]) + data[at + 1 :]


def _insert_token(r: random.Random, data: bytes) -> bytes:
    at = _at(r, data)
    return data[:at] + r.choice(TOKENS) + data[at:]


def _lines_of(data: bytes) -> list[bytes]:
    return data.split(b"\r\n")


def _repeat_line(r: random.Random, data: bytes) -> bytes:
    lines = _lines_of(data)
    lines.insert(r.randrange(len(lines)), r.choice(lines))
    return b"\r\n".join(lines)


def _drop_line(r: random.Random, data: bytes) -> bytes:
    lines = _lines_of(data)
    del lines[r.randrange(len(lines))]
    return b"\r\n".join(lines)


def _swap_lines(r: random.Random, data: bytes) -> bytes:
    lines = _lines_of(data)
    a, b = r.randrange(len(lines)), r.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\r\n".join(lines)


def _break_line_end(r: random.Random, data: bytes) -> bytes:
    lines = _lines_of(data)
    cut = r.randrange(1, max(2, len(lines)))
    return (
        b"\r\n".join(lines[:cut])
        + r.choice((b"\n", b"\r", b"\r\r\n", b"\n\r", b"\r\n ", b"\r\n\t"))
        + b"\r\n".join(lines[cut:])
    )


def _change_number(r: random.Random, data: bytes) -> bytes:
    at = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    where = r.choice(at) if at else 0
    return data[:where] + bytes([48 + r.randrange(10)]) + data[where + 1 :]


def _space_colon(r: random.Random, data: bytes) -> bytes:
    at = [i for i, byte in enumerate(data) if byte == 58]
    where = r.choice(at) if at else 0
    return data[:where] + r.choice((b" :", b"\t:", b"::", b":\x0b", b" : ")) + data[where + 1 :]


def _flip_case(r: random.Random, data: bytes) -> bytes:
    at = _at(r, data)
    return data[:at] + data[at : at + 12].swapcase() + data[at + 12 :]


def _cut(r: random.Random, data: bytes) -> bytes:
    return data[: r.randrange(1, max(2, len(data)))]


def _splice(r: random.Random, data: bytes) -> bytes:
    at = _at(r, data)
    return data[:at] + r.choice(SEEDS)[r.randrange(40) :]


def _append(r: random.Random, data: bytes) -> bytes:
    return data + r.choice((*TOKENS, data))


OPERATORS: Sequence[Mutator] = (
    _insert_byte, _delete_byte, _replace_byte, _flip_bit, _insert_token, _repeat_line, _drop_line, _swap_lines, _break_line_end,
    _change_number, _space_colon, _flip_case, _cut, _splice, _append,
)  # fmt: skip
SEEDS: Sequence[bytes] = tuple(case.data for case in cases() if case.reaches and len(case.data) < 2000)


def mutations(seed: int, count: int) -> Iterator[bytes]:
    """`count` spoilt messages, one to three operators each; the same seed gives the same bytes."""
    r = random.Random(seed)
    for _ in range(count):
        data = r.choice(SEEDS)
        for _ in range(r.choice((1, 1, 1, 2, 3))):
            data = r.choice(OPERATORS)(r, data) or b"\r\n"
        yield data
