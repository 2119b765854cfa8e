"""Changes in the text of a tenant's file that leave every other byte as it is: comments, order, spacing.

The parser says where values begin and end; text is put in there in the style that stands around it. Whoever calls
this checks that the outcome means what was meant (store.py): nothing here knows every way to write YAML.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml


class CannotEdit(Exception):
    """The file is written in a way that is not known here."""


@dataclass(slots=True)
class Span:
    """Where a value stands: from the first to behind the last of its characters. `flow`: in brackets."""

    start: int
    end: int
    column: int = 0
    flow: bool = False
    fields: dict[str, "Span"] = field(default_factory=dict)
    items: list["Span"] = field(default_factory=list)


def with_key(text: str, record: str) -> str:
    """The file with a further key; `record` is a mapping in braces."""
    keys = _root(text).fields.get("keys")
    if keys is None:
        return f"{_ended(text)}keys:\n  - {record}\n"
    if keys.flow:
        return _into_brackets(text, keys, record)
    if not keys.items:
        raise CannotEdit("keys is empty")
    return _behind(text, keys, f"{' ' * keys.column}- {record}")


def with_field(text: str, index: int, name: str, value: str) -> str:
    """The file with a field of the key at `index` set to `value`, a plain scalar."""
    keys = _root(text).fields.get("keys")
    if keys is None or index >= len(keys.items):
        raise CannotEdit("there is no such key")
    record = keys.items[index]
    if name in record.fields:
        old = record.fields[name]
        return text[: old.start] + value + text[old.end :]
    if record.flow:
        return _into_brackets(text, record, f"{name}: {value}")
    return _behind(text, record, f"{' ' * record.column}{name}: {value}")


def _into_brackets(text: str, span: Span, more: str) -> str:
    """Put in before the closing bracket; on a line of its own where that stands on one."""
    before, rest = text[: span.end - 1], text[span.end - 1 :]
    kept = before.rstrip()
    if "#" in kept[kept.rfind("\n") + 1 :] and "\n" in before[len(kept) :]:
        raise CannotEdit("a comment stands before the closing bracket")
    comma = "" if kept[-1] in ",[{" else ","
    space = "" if kept[-1] in "[{" else " "
    return f"{kept}{comma}{space}{more}{before[len(kept) :]}{rest}"


def _behind(text: str, span: Span, line: str) -> str:
    """A line behind the one on which a value ends."""
    end = text.find("\n", max(0, span.end - 1))
    if end < 0:
        return f"{text}\n{line}\n"
    return f"{text[: end + 1]}{line}\n{text[end + 1 :]}"


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _root(text: str) -> Span:
    events = (event for event in yaml.parse(text, Loader=yaml.SafeLoader) if not _is_frame(event))
    try:
        return _span(next(events), events)
    except StopIteration:
        raise CannotEdit("the file is empty") from None


def _is_frame(event: Any) -> bool:
    frames = (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentStartEvent, yaml.DocumentEndEvent)
    return isinstance(event, frames)


def _span(event: Any, events: Iterator[Any]) -> Span:
    start = event.start_mark
    made = Span(start.index, event.end_mark.index, start.column, bool(getattr(event, "flow_style", False)))
    if isinstance(event, yaml.SequenceStartEvent):
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            made.items.append(_span(event, events))
            made.end = made.items[-1].end
    elif isinstance(event, yaml.MappingStartEvent):
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            made.fields[event.value] = value = _span(next(events), events)
            made.end = value.end
    elif isinstance(event, yaml.AliasEvent):
        raise CannotEdit("it holds an alias")
    if made.flow:
        made.end = event.end_mark.index  # the bracket itself; what has none ends with its last value
    return made
