"""What could stand where a document is wrong: msgspec says that a value is invalid, not which ones are valid.

Its types are walked along the path of the error, by what the document says there: `kind` tells which of several.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.inspect import CollectionType, DictType, LiteralType, StrType, StructType, Type, UnionType

from loadgen.workload.words import suggestion
from loadgen.workload.yaml_source import NO_FIELD, ONE_OF_THEM, Path, explained

_INVALID = re.compile(r"Invalid (?:enum )?value")
_MISSING = re.compile(r"Object missing required field `(.+)`")


def explained_by(kind: type, values: Any, error: msgspec.ValidationError) -> tuple[Path, str, str]:
    """Where in `values` something is wrong, what msgspec says of it, and the same with what could stand there."""
    path, what = explained(str(error), values)
    if what.startswith(ONE_OF_THEM):
        path, what = next(_each_alone(kind, values, path), (path, what))
    return path, what, told(kind, values, path, what)


def _each_alone(kind: type, values: Any, mapping: Path) -> Iterator[tuple[Path, str]]:
    """What is wrong with `values` if the one at `mapping` has a single key: msgspec does not tell which key it is."""
    for key in _value(values, mapping):
        try:
            msgspec.convert(_only(values, mapping, key), kind)
        except msgspec.ValidationError as error:
            path, what = explained(str(error), _only(values, mapping, key))
            if path[: len(mapping) + 1] == (*mapping, key):
                yield path, what


def _value(values: Any, path: Path) -> Any:
    for step in path:
        values = values[step]
    return values


def _only(values: Any, path: Path, key: object) -> Any:
    """A copy, in which what is at `path` has that key alone."""
    if not path:
        return {key: values[key]}
    copy = values.copy()
    copy[path[0]] = _only(values[path[0]], path[1:], key)
    return copy


def told(kind: type, values: Any, path: Path, what: str) -> str:
    """`what` msgspec says of the place at `path` in `values`, which are to be a `kind`, with what could stand there."""
    if missing := _MISSING.fullmatch(what):
        choices = _choices(kind, values, (*path, missing[1]))
        return f"`{missing[1]}` is missing" + (f", one of {', '.join(choices)}" if choices else "")
    if what == NO_FIELD:
        *around, word = path
        inside, there = _at(kind, values, around)
        fields = [name for one in _structs(there, inside) for name in _fields(one)]
        return what + (suggestion(str(word), fields) or f"; there are {', '.join(fields)}" if fields else "")
    value, there = _at(kind, values, path)
    choices = _choices(kind, values, path)
    if choices and (_INVALID.match(what) or not isinstance(value, str)):
        return f"{_shown(value)} is not one of {', '.join(choices)}{suggestion(str(value), choices)}"
    if isinstance(there, StrType) and there.pattern is not None:  # no other text of a scenario has one
        return f"{_shown(value)} is no duration like 500ms, 30s or 10m"
    return what


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return repr(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def _choices(kind: type, values: Any, path: Path) -> list[str]:
    """The words that can stand there; none where it is not one of a few."""
    if not path:
        return []
    *around, last = path
    tags = [str(one.tag) for one in _members(_at(kind, values, around)[1]) if one.tag_field == last]
    there = _at(kind, values, path)[1]
    words = [str(one) for one in there.values] if isinstance(there, LiteralType) else []
    return tags or words


def _at(kind: type, values: Any, path: Sequence[str | int]) -> tuple[Any, Type | None]:
    """The value at `path`, and the type it should have; None where that cannot be told."""
    there: Type | None = msgspec.inspect.type_info(kind)
    for step in path:
        there = _below(there, values, step)
        found = step in values if isinstance(values, dict) else isinstance(values, list | tuple)
        values = values[step] if found else None
    return values, there


def _below(around: Type | None, values: Any, step: str | int) -> Type | None:
    for one in _structs(around, values):
        return next((field.type for field in one.fields if field.encode_name == step), None)
    for other in around.types if isinstance(around, UnionType) else (around,):
        if isinstance(other, DictType):
            return other.value_type
        if isinstance(other, CollectionType):
            return other.item_type
    return None


def _structs(around: Type | None, values: Any) -> list[StructType]:
    """The one it is, where that can be told."""
    members = _members(around)
    if len(members) > 1:
        members = [one for one in members if isinstance(values, dict) and values.get(one.tag_field) == one.tag]
    return members


def _members(around: Type | None) -> list[StructType]:
    every = around.types if isinstance(around, UnionType) else (around,)
    return [one for one in every if isinstance(one, StructType)]


def _fields(one: StructType) -> list[str]:
    return [*([one.tag_field] if one.tag_field else []), *(field.encode_name for field in one.fields)]
