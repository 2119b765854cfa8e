"""The configuration as it is in force, as YAML, each value with the line it came from. Secrets are not shown."""

import json
import re
from collections.abc import Iterator

from pydantic import BaseModel

from gateway.config.kinds import size_text
from gateway.config.load import Loaded
from gateway.config.problems import Path
from gateway.config.schema import Schema, at

REDACTED = "(redacted)"
_BARE = re.compile(r"(?!(?:null|true|false)$)[A-Za-z][A-Za-z0-9/._-]*")
_ONLY_REFERENCES = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+")
_COMMENT_COLUMN = 64


def show(loaded: Loaded) -> str:
    """Every field in force; behind it `# FILE:LINE`, or `# default`."""
    return "".join(f"{line}\n" for line in _Lines(loaded).of(loaded.config, (), ""))


class _Lines:
    """Lines of one configuration; `indent` is what stands before a line's key."""

    def __init__(self, loaded: Loaded) -> None:
        self._file = loaded.file
        self._root = loaded.document.root

    def of(self, value: object, path: Path, indent: str) -> Iterator[str]:
        fields = value.items() if isinstance(value, dict) else iter(value)  # type: ignore[call-overload]
        for name, inner in fields:
            yield from self._field(name, inner, (*path, name), indent)
            indent = " " * len(indent)  # only the first field of a list's item carries its dash

    def _field(self, name: str, value: object, path: Path, indent: str) -> Iterator[str]:
        if isinstance(value, BaseModel | dict):
            yield f"{indent}{_text(name)}:"
            yield from self.of(value, path, " " * len(indent) + "  ")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield f"{indent}{_text(name)}:"
            for index, item in enumerate(value):
                yield from self.of(item, (*path, index), " " * len(indent) + "  - ")
        else:
            yield f"{f'{indent}{_text(name)}: {self._leaf(value, path)}':{_COMMENT_COLUMN}}  # {self._origin(path)}"

    def _leaf(self, value: object, path: Path) -> str:
        schema = at(path)
        if value is not None and _has(schema, "x-ref"):
            return json.dumps(self._reference(path))
        if _has(schema, "x-secret"):
            return json.dumps(REDACTED)
        if isinstance(value, int) and _has(schema, "x-size"):
            return size_text(value)
        return _text(value)

    def _reference(self, path: Path) -> str:
        """The name of the variable a secret comes from, which is none itself; a secret in the file stays hidden."""
        node = self._root.find(path)
        if node and isinstance(node.value, str) and _ONLY_REFERENCES.fullmatch(node.value):
            return node.value
        return REDACTED

    def _origin(self, path: Path) -> str:
        if node := self._root.find(path):
            return f"{self._file}:{node.place.line}"
        words = at(path).get("x-default")
        return f"default: {words}" if words else "default"


def _has(schema: Schema, word: str) -> bool:
    return word in schema or any(word in option for option in schema.get("anyOf", ()))


def _text(value: object) -> str:
    """A scalar or a list of scalars as YAML."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value).removesuffix(".0")
        case int():
            return str(value)
        case tuple():
            return f"[{', '.join(_text(item) for item in value)}]"
        case _:
            text = str(value)
            return text if _BARE.fullmatch(text) else json.dumps(text)
