"""YAML, read as plain values that are known by line and column. YAML 1.2: `off` is a word, only true and false are not."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

_BOOL = "tag:yaml.org,2002:bool"
Path = tuple[str | int, ...]
NO_FIELD = "there is no such field"
ONE_OF_THEM = "one of them: "


class _Loader(yaml.SafeLoader):
    """A safe loader with the booleans of YAML 1.2."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own name, a copy of its own table
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|false)$"), ["t", "f"])


@dataclass(frozen=True, slots=True)
class Source:
    """A document: its values, and by the path of each where it stands (line and column, from 1), and where its key does."""

    values: Any
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def place(self, path: Path, what: str) -> tuple[int, int]:
        """Of the value, or of what is nearest around it; of the key, where `what` is wrong with that."""
        if what == NO_FIELD and path in self.keys:
            return self.keys[path]
        found = path
        while found and found not in self.places:
            found = found[:-1]
        return self.places.get(found, (1, 1))


class SourceError(Exception):
    """Text that is not YAML, or has a key twice. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def plain(text: str) -> Any:
    """Only the values. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)  # a safe loader


def read(text: str) -> Source:
    """The document in `text`. Raises SourceError."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Source(None)
        source = Source(loader.construct_document(node))
        for path, place, key in _places(node, ()):
            source.places[path] = place
            source.keys[path] = key
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise SourceError(f"not YAML: {error.problem or error.context}", line, column) from error
    except yaml.YAMLError as error:
        raise SourceError(f"not YAML: {error}", 1, 1) from error
    return source


def _places(node: yaml.Node, path: Path) -> Iterator[tuple[Path, tuple[int, int], tuple[int, int]]]:
    place = _at(node)
    yield path, place, place
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(node.value):
            yield from _places(inner, (*path, number))
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, inner in node.value:
            if name.value in seen:
                raise SourceError(f"{name.value!r} is there twice", *_at(name))
            seen.add(name.value)
            (own, at, _), *below = _places(inner, (*path, name.value))
            yield own, at, _at(name)
            yield from below


def _at(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def written(path: Path) -> str:
    """`("tenants", 0, "name")` as `tenants[0].name`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def explained(message: str, values: Any) -> tuple[Path, str]:
    """Where in `values` and what, of a message of msgspec. An unknown field is itself the place.

    msgspec does not tell the key of a mapping: if there are several, the place is the mapping.
    """
    what, _, where = message.partition(" - at `$")
    path: Path = ()
    steps = re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]|(\[\.\.\.\])", where)
    for place, (name, number, unknown) in enumerate(steps):
        if unknown and len(values) != 1:
            rest = ".".join(name or number or "*" for name, number, _ in steps[place + 1 :])
            return path, f"{ONE_OF_THEM}{rest}: {_said(what)[1]}"
        step = next(iter(values)) if unknown else int(number) if number else name
        path = (*path, step)
        values = values[step] if isinstance(values, list) or step in values else {}
    unknown_field, told = _said(what)
    return (*path, *unknown_field), told


def _said(what: str) -> tuple[Path, str]:
    field_name = re.fullmatch(r"Object contains unknown field `(.+)`", what)
    return ((field_name[1],), NO_FIELD) if field_name else ((), what)
