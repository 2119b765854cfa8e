"""What tools answer: JSON documents, and ways to write one so that its bytes change and its meaning does not.

Clients print what tools return with keys in another order, other spaces, and with fields nobody reads that are new each
time. A prefix cache then finds nothing, unless somebody brings the document into one form.
"""

from collections.abc import Mapping
from itertools import permutations
from types import MappingProxyType
from typing import Literal

import msgspec

Noise = Literal["none", "key_order", "whitespace", "ids", "timestamps"]

WAYS: Mapping[str, int] = MappingProxyType(
    {"none": 1, "key_order": 6, "whitespace": 125, "ids": 1 << 32, "timestamps": 100_000_000}
)
"""How many ways there are to write a document under a noise. Any two differ within its first 16 tokens."""

_MOST = 5  # one more than the spaces that may stand at each of three places
_SPACES = 3 * (_MOST - 1)  # in each document, whatever its noise: the length stays
_EPOCH = 1_767_225_600  # 2026-01-01


def document(tag: str, words: str, size: int, noise: str) -> str:
    """A JSON object of exactly `size` bytes that is identified by `tag` and holds as many of `words` as there is room for.

    `noise` is "" or `KIND/NUMBER`, the number below that of its `WAYS`; 0 is the same as "". `ids` and `timestamps`
    change a field that says nothing of the result itself. What is too small for JSON is words.
    """
    kind, _, number = noise.partition("/")
    way = int(number or 0)
    head: list[tuple[str, object]] = [
        ("request_id", f"{way if kind == 'ids' else 0:016x}"),
        ("time", _EPOCH + (way if kind == "timestamps" else 0)),
        ("result", tag),
    ]
    bare = len(_compact({**dict(head), "text": ""})) + _SPACES
    if size < bare:
        return (tag + " " + words)[:size]
    if kind == "key_order":
        head = list(list(permutations(head))[way])
    text = _compact({**dict(head), "text": words[: size - bare].ljust(size - bare)})
    return _spaced(text, way if kind == "whitespace" else 0)


def _compact(fields: Mapping[str, object]) -> str:
    return msgspec.json.encode(fields).decode()


def _spaced(text: str, way: int) -> str:
    """White space at the first places that JSON allows, as the digits of `way` say, and what is left of it at the end."""
    key, colon, rest = text[1:].partition(":")
    way, first = divmod(way, _MOST)
    third, second = divmod(way, _MOST)
    spread = "{" + " " * first + key + " " * second + colon + " " * third + rest
    return spread + " " * (_SPACES - first - second - third)
