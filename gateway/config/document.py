"""YAML text -> a tree of plain values that still knows line and column of everything.

The tree is built from the parser's events, not by `yaml.load`, so that each rule is a line here:
- one document; text, numbers, booleans and null as in YAML 1.2's core schema (`yes`, `on`, `010` and dates are what
  they look like, and nothing else);
- no anchor, alias, merge key, tag, key that is not text, or key given twice; at most `DEPTH` levels;
- nothing here stops at the first error but a syntax error, after which there is nothing left to read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gateway.config.problems import Path, Problem

DEPTH = 20
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_HINTS = {  # what most likely is at fault, in words that are not the parser's
    "found character that cannot start any token": ": lines are indented with spaces, not tabs; text that begins with @ or ` needs quotes",
    "mapping values are not allowed in this context": ": text with ': ' in it needs quotes",
    "did not find expected key": ": is the line indented as those before it?",
}
_NULL = re.compile(r"(?:~|null|Null|NULL|)")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)")
_DECIMAL = re.compile(r"[-+]?[0-9]{1,40}")
_OCTAL = re.compile(r"0o[0-7]{1,40}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,40}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,10})?")
_SPECIAL = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))")

Plain = str | int | float | bool | dict[str, "Plain"] | tuple["Plain", ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A position in the file, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A value and where it stands. A mapping also has the places of its keys."""

    place: Place
    value: "str | int | float | bool | dict[str, Node] | tuple[Node, ...] | None"
    keys: Mapping[str, Place] = field(default_factory=dict)

    def plain(self) -> Plain:
        """The value without places: dicts, tuples and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return tuple(node.plain() for node in self.value)
        return self.value

    def child(self, step: str | int) -> "Node | None":
        """The value under a key or at an index, None when there is none."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, tuple) and isinstance(step, int) and step < len(self.value):
            return self.value[step]
        return None

    def find(self, path: Path) -> "Node | None":
        """The value at `path`, None when there is none."""
        node: Node | None = self
        for step in path:
            node = node.child(step) if node else None
        return node

    def locate(self, path: Path, at_key: bool) -> Place:
        """Where `path` stands; where it is absent, the key of the deepest part of it that is there."""
        node, place = self, self.place
        for index, step in enumerate(path):
            key = node.keys.get(step) if isinstance(step, str) else None
            child = node.child(step)
            if child is None:
                return key or place
            last = index == len(path) - 1
            place = key if key is not None and (at_key or not last) else child.place
            node = child
        return place


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The file as read, with what was wrong with its form. What stands at a path of `unknown` was never learned."""

    root: Node
    problems: tuple[tuple[Place, Problem], ...]
    unknown: frozenset[Path]


class Unreadable(Exception):
    """Not YAML from `place` on: there is no tree. `problems` were found before."""

    def __init__(self, place: Place, message: str, problems: list[tuple[Place, Problem]]) -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.problems = problems


def parse(text: str) -> Document:
    """The tree of a YAML text; raises Unreadable where it is no YAML or nests too deep."""
    builder = _Builder(text)
    try:
        root = builder.document()
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes
        before = text.encode()[: error.position].decode(errors="ignore")
        place = Place(line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
        raise Unreadable(place, f"not YAML: {error.reason}", builder.problems) from None
    except yaml.MarkedYAMLError as error:
        place = _within(text, error.problem_mark or error.context_mark)
        detail = f"{error.context}, {error.problem}" if error.context else error.problem
        raise Unreadable(place, f"not YAML: {detail}{_HINTS.get(str(error.problem), '')}", builder.problems) from None
    return Document(root=root, problems=tuple(builder.problems), unknown=frozenset(builder.unknown))


class _Builder:
    """One pass over the events of one text."""

    def __init__(self, text: str) -> None:
        self.problems: list[tuple[Place, Problem]] = []
        self.unknown: set[Path] = set()
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))

    def document(self) -> Node:
        next(self._events)  # start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return Node(place=Place(line=1, column=1), value={})
        root = self._node(next(self._events), ())
        next(self._events)  # end of the document
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._complain(_place(event), (), "a second document: one file holds one")
            for _ in self._events:
                pass
        return root

    def _node(self, event: Any, path: Path) -> Node:
        place = _place(event)
        if isinstance(event, yaml.AliasEvent):
            self._complain(place, path, f"alias *{event.anchor}: write the value out")
            self.unknown.add(path)
            return Node(place=place, value=None)
        if event.anchor is not None:
            self._complain(place, path, f"anchor &{event.anchor}: anchors and aliases are not supported")
        if event.tag is not None:
            self._complain(place, path, f"tag {event.tag}: tags are not supported")
            self.unknown.add(path)
        if isinstance(event, yaml.ScalarEvent):
            return Node(place=place, value=_scalar(event))
        if len(path) >= DEPTH:
            raise Unreadable(place, f"nested more than {DEPTH} levels deep", self.problems)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(place=place, value=self._sequence(path))
        return self._mapping(place, path)

    def _sequence(self, path: Path) -> tuple[Node, ...]:
        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return tuple(items)

    def _mapping(self, place: Place, path: Path) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            name = self._key(event, path)
            key_place = _place(event)
            value = self._node(next(self._events), (*path, name or "?"))
            if name is None:
                continue
            if name in keys:
                self._complain(key_place, (*path, name), f"given twice, first in line {keys[name].line}")
                continue
            keys[name], values[name] = key_place, value
        return Node(place=place, value=values, keys=keys)

    def _key(self, event: Any, path: Path) -> str | None:
        """A key's text; None, with a complaint, for what is no key of ours."""
        place = _place(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._complain(place, path, "a key must be text")
            if not isinstance(event, yaml.AliasEvent):
                self._skip()
            return None
        if event.anchor is not None or event.tag is not None:
            self._complain(place, path, "a key with an anchor or a tag")
            return None
        if event.value == "<<" and not event.style:
            self._complain(place, path, "merge key <<: write the fields out")
            return None
        if not event.value:
            self._complain(place, path, "an empty key")
            return None
        return str(event.value)

    def _skip(self) -> None:
        """Read over the rest of a collection whose start was just read."""
        depth = 1
        while depth:
            event = next(self._events)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)

    def _complain(self, place: Place, path: Path, message: str) -> None:
        self.problems.append((place, Problem(path=path, message=message)))


def _within(text: str, mark: Any) -> Place:
    """The place of a mark; libyaml's can lie behind the end of the text, then it is the end."""
    lines = text.split("\n")
    if mark is None or mark.line >= len(lines):
        return Place(line=len(lines), column=len(lines[-1]) + 1)
    return Place(line=mark.line + 1, column=mark.column + 1)


def _place(event: Any) -> Place:
    return Place(line=event.start_mark.line + 1, column=event.start_mark.column + 1)


def _scalar(event: Any) -> str | int | float | bool | None:
    """A scalar by YAML 1.2's core schema; only plain (unquoted) ones are anything but text."""
    text: str = event.value
    if event.style:
        return text
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text[0] in "tT"
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text) or _HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text
