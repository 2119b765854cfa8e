"""The configuration as it is in force, as YAML, each value with the line it came from. Secrets are not shown."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel

from gateway.config.document import Node
from gateway.config.kinds import size_text
from gateway.config.load import Loaded
from gateway.config.problems import Path
from gateway.config.schema import Schema, at
from gateway.config.section import Section

REDACTED = "(redacted)"
_BARE = re.compile(r"(?!(?:null|true|false)$)[A-Za-z][A-Za-z0-9/._-]*")
_ONLY_REFERENCES = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+")
_COMMENT_COLUMN = 64


def show(loaded: Loaded) -> str:
    """Every field in force; behind it `# FILE:LINE`, or `# default`. Each tenant is a YAML document of its own."""
    main = _Source(file=loaded.file, node=loaded.document.root)
    parts = ["".join(f"{line}\n" for line in _Lines([main], type(loaded.config)).of(loaded.config, (), ""))]
    defaults = loaded.document.root.child("tenant_defaults")
    for name, tenant in (loaded.config.tenants or {}).items():
        file, document = loaded.tenants[name]
        sources = [_Source(file=file, node=document.root)]
        sources += [_Source(file=loaded.file, node=defaults)] if defaults is not None else []
        parts.append("".join(f"{line}\n" for line in _Lines(sources, type(tenant)).of(tenant, (), "")))
    return "---\n".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where values come from: a file, and the part of it that is meant."""

    file: str
    node: Node


class _Lines:
    """Lines of one section in force; `sources`: where its values may come from, the first that has one."""

    def __init__(self, sources: list[_Source], section: type[Section]) -> None:
        self._sources = sources
        self._section = section

    def of(self, value: object, path: Path, indent: str) -> Iterator[str]:
        """The lines of a mapping; `indent` is what stands before the first one's key."""
        for name, inner in _fields(value):
            yield from self._field(name, inner, (*path, name), indent)
            indent = " " * len(indent)  # only the first field of a list's item carries its dash

    def _field(self, name: str, value: object, path: Path, indent: str) -> Iterator[str]:
        if isinstance(value, BaseModel) or (isinstance(value, dict) and value):
            yield f"{indent}{scalar(name)}:"
            yield from self.of(value, path, " " * len(indent) + "  ")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield f"{indent}{scalar(name)}:"
            for index, item in enumerate(value):
                yield from self.of(item, (*path, index), " " * len(indent) + "  - ")
        else:
            yield f"{f'{indent}{scalar(name)}: {self._leaf(value, path)}':{_COMMENT_COLUMN}}  # {self._origin(path)}"

    def _leaf(self, value: object, path: Path) -> str:
        schema = at(path, self._section)
        if value is not None and _has(schema, "x-ref"):
            return json.dumps(self._reference(path))
        if _has(schema, "x-secret"):
            return json.dumps(REDACTED)
        if isinstance(value, int) and _has(schema, "x-size"):
            return size_text(value)
        return scalar(value)

    def _reference(self, path: Path) -> str:
        """The name of the variable a secret comes from, which is none itself; a secret in the file stays hidden."""
        _, node = self._find(path)
        if node and isinstance(node.value, str) and _ONLY_REFERENCES.fullmatch(node.value):
            return node.value
        return REDACTED

    def _origin(self, path: Path) -> str:
        file, node = self._find(path)
        if node:
            return f"{file}:{node.place.line}"
        words = at(path, self._section).get("x-default")
        return f"default: {words}" if words else "default"

    def _find(self, path: Path) -> tuple[str, Node | None]:
        for source in self._sources:
            node = source.node.find(path)
            if node is not None:
                return source.file, node
            if any(isinstance(step, int) for step in path) and source.node.find(path[:1]) is not None:
                break  # lists are not merged: a field that one leaves out is not in another
        return "", None


def _fields(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield field.alias or name, getattr(value, name)
    elif isinstance(value, dict):
        yield from value.items()


def _has(schema: Schema, word: str) -> bool:
    return word in schema or any(word in option for option in schema.get("anyOf", ()))


def scalar(value: object) -> str:
    """A value without fields, or a list of such, as YAML."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value).removesuffix(".0")
        case int():
            return str(value)
        case datetime():
            return json.dumps(value.isoformat().replace("+00:00", "Z"))
        case dict():
            return "{}"
        case tuple():
            return f"[{', '.join(scalar(item) for item in value)}]"
        case _:
            text = str(value)
            return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
