"""Values to one line that no value can break, in JSON or as text.

JSON escapes control characters, quotes and backslashes; what else would not print as one character on one line
(line separators, direction marks, C1 controls, lone surrogates) is escaped here first.
"""

import json
from collections.abc import Iterable

MAX_TEXT = 256  # characters kept of one value

Value = str | int | float | bool | None | tuple[str, ...]


def printable(text: str) -> str:
    """`text` with everything unprintable as backslash escapes, cut to `MAX_TEXT` characters."""
    if text.isprintable() and len(text) <= MAX_TEXT:
        return text
    shown = "".join(map(_shown, text[:MAX_TEXT]))
    return shown + "..." if len(text) > MAX_TEXT else shown


def as_text(moment: str, words: Iterable[str], values: Iterable[tuple[str, Value]]) -> bytes:
    """`2026-11-29T12:00:00.000Z words key=value ...`; values that are empty or None are left out."""
    pairs = [f"{name}={_word(value)}" for name, value in values if value not in (None, "", ())]
    return (" ".join([moment, *map(printable, words), *pairs]) + "\n").encode()


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _word(value: Value) -> str:
    if isinstance(value, tuple):
        value = ",".join(value)
    if not isinstance(value, str):
        return json.dumps(value)
    shown = printable(value)
    plain = shown.isascii() and not any(mark in shown for mark in ' "=\\')
    return shown if plain else json.dumps(shown, ensure_ascii=False)
