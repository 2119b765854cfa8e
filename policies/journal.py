"""The journal: every event the core has handled, and what it decided, as plain values (loadgen.md 1.5).

One JSON object a line. First `{version, seed, config}`; then `{seq, t, event, <the event's fields>, decisions}` in the
order of handling, `t` being the `now` given to the core. `{seq, dropped}` says that this many events are missing from
there on: what follows it can be read, but not replayed. Sizes, ids and block hashes only: no text, no key, no salt.

Fields are those of the records in types, events and decisions; a field added there with a default needs no change
here, and journals from before it still read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from msgspec import structs

from policies.decisions import Decision
from policies.events import Event
from policies.types import Message

VERSION = 1
OLDEST = 1  # the current version and the one before

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]
T = TypeVar("T")

EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


class JournalError(Exception):
    """A journal that cannot be replayed, and why."""


def header(seed: int, config: str) -> dict[str, Plain]:
    """The first line. `config` is a checksum of the configuration the journal was made with."""
    return {"version": VERSION, "seed": seed, "config": config}


def check_header(line: Mapping[str, Plain]) -> None:
    """Raise JournalError unless this is the first line of a journal that this version reads."""
    version = line.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise JournalError("it does not begin with a journal's first line {version, seed, config}")
    if not OLDEST <= version <= VERSION:
        raise JournalError(f"version {version} is not read by this program, only {OLDEST} to {VERSION}")


def encode_line(seq: int, now: float, event: Event, decisions: Sequence[Decision]) -> dict[str, Plain]:
    """One handled event."""
    line: dict[str, Plain] = {"seq": seq, "t": now}
    line.update(encode_event(event))
    line["decisions"] = [encode_decision(decision) for decision in decisions]
    return line


def encode_gap(seq: int, dropped: int) -> dict[str, Plain]:
    """Here `dropped` events are missing, the first of them `seq`."""
    return {"seq": seq, "dropped": dropped}


def encode_event(event: Event) -> dict[str, Plain]:
    return {"event": type(event).__name__, **_encode_record(event)}


def encode_decision(decision: Decision) -> dict[str, Plain]:
    return {"decision": type(decision).__name__, **_encode_record(decision)}


def decode_event(line: Mapping[str, Plain]) -> Event:
    """The event of a line; keys that belong to the line itself are passed over. Raises JournalError."""
    name = line.get("event")
    kind = EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise JournalError(f"event {name!r} is unknown")
    own = {key: value for key, value in line.items() if key not in ("seq", "t", "event", "decisions")}
    return _decode_record(kind, own, kind.__name__)


def _names(kind: type[Any]) -> tuple[str, ...]:
    known = _NAMES.get(kind)
    if known is None:
        known = kind.__struct_fields__ if issubclass(kind, Message) else tuple(field.name for field in fields(kind))
        _NAMES[kind] = known
    return known


_NAMES: dict[type, tuple[str, ...]] = {}


def _encode_record(value: object) -> dict[str, Plain]:
    return {name: _encode(getattr(value, name)) for name in _names(type(value))}


def _encode(value: Any) -> Plain:
    if value is None or type(value) in (str, int, float, bool):
        return value  # type: ignore[no-any-return]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    return _encode_record(value)


def _decode_record(kind: type[T], value: object, path: str) -> T:
    if not isinstance(value, dict):
        raise JournalError(f"{path}: {value!r} is not an object")
    readers = _readers(kind)
    unknown = [name for name in value if name not in readers]
    if unknown:
        raise JournalError(f"{path}.{unknown[0]}: is unknown")
    missing = [name for name in _required(kind) if name not in value]
    if missing:
        raise JournalError(f"{path}.{missing[0]}: is missing")
    return kind(**{name: readers[name](item, f"{path}.{name}") for name, item in value.items()})


def _required(kind: type[Any]) -> list[str]:
    if issubclass(kind, Message):
        return [field.name for field in structs.fields(kind) if field.required]
    return [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]


Reader = Callable[[object, str], Any]
_READERS: dict[type, dict[str, Reader]] = {}


def _readers(kind: type) -> dict[str, Reader]:
    known = _READERS.get(kind)
    if known is None:
        known = _READERS[kind] = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    return known


def _reader(hint: Any) -> Reader:
    """How to read a value of this type back."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        return _tuple_of(_reader(inner[0]))
    if origin is UnionType:  # only `X | None`
        return _optional(_reader(inner[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_of(_reader(inner[1]))
    if isinstance(hint, type) and (issubclass(hint, Message) or is_dataclass(hint)):
        return lambda value, path: _decode_record(hint, value, path)
    if issubclass(hint, StrEnum):
        return _member_of(hint)
    return _exactly(hint)


def _exactly(kind: type) -> Reader:
    allowed = (int, float) if kind is float else (kind,)

    def read(value: object, path: str) -> Any:
        if type(value) not in allowed:
            raise JournalError(f"{path}: {value!r} is not of type {kind.__name__}")
        return value

    return read


def _member_of(kind: type[StrEnum]) -> Reader:
    def read(value: object, path: str) -> Any:
        if value not in tuple(kind):
            raise JournalError(f"{path}: {value!r} is not one of {', '.join(kind)}")
        return kind(str(value))

    return read


def _optional(reader: Reader) -> Reader:
    return lambda value, path: None if value is None else reader(value, path)


def _tuple_of(reader: Reader) -> Reader:
    def read(value: object, path: str) -> Any:
        if not isinstance(value, list):
            raise JournalError(f"{path}: {value!r} is not a list")
        return tuple(reader(item, f"{path}[{place}]") for place, item in enumerate(value))

    return read


def _mapping_of(reader: Reader) -> Reader:
    def read(value: object, path: str) -> Any:
        if not isinstance(value, dict):
            raise JournalError(f"{path}: {value!r} is not an object")
        return {key: reader(item, f"{path}.{key}") for key, item in value.items()}

    return read
