"""How messages name what there is: choices in a row, and the one that may have been meant."""

import difflib
from collections.abc import Iterable

_MOST = 12  # that are named


def listed(names: Iterable[str]) -> str:
    """`a, b, c`, and how many more where there are too many to be read."""
    every = [*names]
    more = len(every) - _MOST
    return ", ".join(every[:_MOST]) + (f" and {more} more" if more > 0 else "")


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where something known is close to `word`, else nothing."""
    close = difflib.get_close_matches(word[:64], [*known], n=1, cutoff=0.7)
    return f"; did you mean {close[0]!r}?" if close else ""
