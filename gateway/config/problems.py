"""What can be wrong with a configuration file, and how it is said: `FILE:LINE:COL: path: what is wrong`."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Where in the document: `("endpoints", 0, "url")`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong at `path`, before it is known where that stands in the file.

    `at_key` points at the key itself instead of its value.
    """

    path: Path
    message: str
    at_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ConfigError:
    """One thing wrong with the file. `line` and `column` count from 1; line 0 means the file as a whole."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ConfigErrors(Exception):
    """Everything that is wrong with the file, in the order of the file."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = sorted(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


def written(path: Path) -> str:
    """`("endpoints", 0, "url")` as `endpoints[0].url`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` where something known is close to `word`, else nothing."""
    close = difflib.get_close_matches(word[:64], known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]!r}?" if close else ""


def shown(value: object) -> str:
    """A wrong value as an error message may show it: short, on one line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
