"""Faults by name: what a simulated engine does wrong, to whom, when, how often. `forebay engine` and `forebay sim` read them.

A fault is written `NAME[:VALUE,key=value,...][@FROM-TO]`, FROM and TO in seconds after it was set. Every fault takes
`p` (probability), `count` (how many requests it strikes), and matches `path`, `model`, `salt` (all exact). Those in
mid-stream take a place: `byte` of the body, `chunk` (event), `ms` after the head, or `fraction` of the planned events.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

COMMON = frozenset({"p", "count", "path", "model", "salt"})
PLACE = frozenset({"byte", "chunk", "ms", "fraction"})


class Stage(Enum):
    """Where in a request's life a fault strikes."""

    CONNECT = "connect"
    HEAD = "head"
    STREAM = "stream"
    PROCESS = "process"
    METRICS = "metrics"
    EVENTS = "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A fault that exists: its stage, whether it needs a value, the keys it takes beside the common ones."""

    stage: Stage
    value: bool = False
    keys: frozenset[str] = frozenset()


KINDS: Mapping[str, Kind] = {
    "refuse": Kind(stage=Stage.CONNECT),
    "accept_hang": Kind(stage=Stage.CONNECT),
    "slow_accept": Kind(stage=Stage.CONNECT, value=True),  # ms
    "idle_close": Kind(stage=Stage.CONNECT, value=True),  # s
    "max_conns": Kind(stage=Stage.CONNECT, value=True),
    "port_in_use": Kind(stage=Stage.CONNECT),  # when it starts
    "status": Kind(stage=Stage.HEAD, value=True, keys=frozenset({"retry_after"})),
    "hang": Kind(stage=Stage.HEAD),
    "startup": Kind(stage=Stage.HEAD, value=True),  # s of 503 on everything
    "early_close": Kind(stage=Stage.HEAD, keys=frozenset({"reset"})),
    "wrong_content_length": Kind(stage=Stage.HEAD, keys=frozenset({"by"})),
    "bad_header": Kind(stage=Stage.HEAD),
    "interim": Kind(stage=Stage.HEAD, value=True),  # how many 103 before the answer
    "second_response": Kind(stage=Stage.HEAD),
    "slow_prefill": Kind(stage=Stage.STREAM, value=True),  # factor
    "reset": Kind(stage=Stage.STREAM, keys=PLACE),
    "fin": Kind(stage=Stage.STREAM, keys=PLACE),
    "half_chunk": Kind(stage=Stage.STREAM, keys=PLACE),
    "cut_json": Kind(stage=Stage.STREAM, keys=PLACE),
    "garbage": Kind(stage=Stage.STREAM, keys=PLACE),
    "error_event": Kind(stage=Stage.STREAM, keys=PLACE | {"code", "done"}),
    "no_done": Kind(stage=Stage.STREAM),
    "double_done": Kind(stage=Stage.STREAM),
    "role_early": Kind(stage=Stage.STREAM, value=True),  # ms
    "stall": Kind(stage=Stage.STREAM, value=True, keys=PLACE),  # ms
    "drip": Kind(stage=Stage.STREAM, value=True),  # bytes/s
    "split_utf8": Kind(stage=Stage.STREAM, keys=PLACE),
    "giant_line": Kind(stage=Stage.STREAM, value=True, keys=PLACE),  # bytes
    "comment_pings": Kind(stage=Stage.STREAM),
    "slow_decode": Kind(stage=Stage.STREAM, value=True),  # factor
    "crash": Kind(stage=Stage.STREAM, keys=PLACE | {"exit"}),
    "segv": Kind(stage=Stage.STREAM, keys=PLACE),
    "oom_text": Kind(stage=Stage.STREAM, keys=PLACE | {"exit"}),
    "poison": Kind(stage=Stage.PROCESS, value=True, keys=frozenset({"exit"})),  # text in a request that kills
    "fragile": Kind(stage=Stage.PROCESS, value=True, keys=frozenset({"exit"})),  # requests at once that are too many
    "health_lie": Kind(stage=Stage.PROCESS),
    "ignore_abort": Kind(stage=Stage.PROCESS),
    "kv_shrink": Kind(stage=Stage.PROCESS, value=True),  # share of the KV blocks
    "freeze": Kind(stage=Stage.METRICS),
    "absent": Kind(stage=Stage.METRICS),
    "stale": Kind(stage=Stage.METRICS, value=True),  # s between renewals
    "slow": Kind(stage=Stage.METRICS, value=True),  # ms
    "counter_reset": Kind(stage=Stage.METRICS),
    "nan": Kind(stage=Stage.METRICS),
    "half_body": Kind(stage=Stage.METRICS),
    "drop": Kind(stage=Stage.EVENTS),
    "gap": Kind(stage=Stage.EVENTS, value=True),  # numbers that nothing has
    "reorder": Kind(stage=Stage.EVENTS),
    "duplicate": Kind(stage=Stage.EVENTS),
    "seq_restart": Kind(stage=Stage.EVENTS),
    "no_replay": Kind(stage=Stage.PROCESS),
}


class FaultError(ValueError):
    """A fault that cannot be read."""


class Fault:
    """One fault that is set, with what is left of its count."""

    __slots__ = ("count", "from_s", "keys", "kind", "name", "p", "spec", "to_s", "value")

    def __init__(self, spec: str, now: float, more_keys: frozenset[str] = frozenset()) -> None:
        """`more_keys`: keys that the reader knows beside the common ones. Raises FaultError."""
        self.spec = spec
        rest, _, window = spec.partition("@")
        self.name, _, arguments = rest.partition(":")
        kind = KINDS.get(self.name)
        if kind is None:
            raise FaultError(f"no fault {self.name!r}; there are: {', '.join(KINDS)}")
        self.kind = kind
        self.value, self.keys = _arguments(spec, arguments)
        if kind.value and self.value is None:
            raise FaultError(f"{spec!r}: {self.name} needs a value, as in {self.name}:1")
        if self.value is not None and self.name != "poison":  # its value is text
            _float(spec, self.value)
        unknown = sorted(set(self.keys) - COMMON - kind.keys - more_keys)
        if unknown:
            raise FaultError(f"{spec!r}: {self.name} does not take {', '.join(unknown)}")
        self.p = self.number("p", 1.0)
        self.count = self.number("count", float("inf"))
        start, _, end = window.partition("-")
        self.from_s = now + (_float(spec, start) if start else 0.0)
        self.to_s = now + (_float(spec, end) if end else float("inf"))
        if self.name == "startup":  # its value is how long it lasts
            self.to_s = min(self.to_s, self.from_s + self.amount)

    def number(self, key: str, default: float) -> float:
        """The numeric parameter `key`."""
        return _float(self.spec, self.keys[key]) if key in self.keys else default

    @property
    def amount(self) -> float:
        """The value as a number; 0 where there is none."""
        return 0.0 if self.value is None else _float(self.spec, self.value)

    def active(self, now: float) -> bool:
        """Inside its window, with some of its count left."""
        return self.count > 0 and self.from_s <= now < self.to_s

    def matches(self, facts: Mapping[str, str]) -> bool:
        """All of its match keys equal the request's facts."""
        return all(self.keys[key] == facts.get(key, "") for key in ("path", "model", "salt") if key in self.keys)


def _arguments(spec: str, text: str) -> tuple[str | None, dict[str, str]]:
    value: str | None = None
    keys: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, equals, given = item.partition("=")
        if equals:
            keys[key] = given
        elif value is None:
            value = item
        else:
            raise FaultError(f"{spec!r}: two values")
    return value, keys


def _float(spec: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FaultError(f"{spec!r}: {text!r} is not a number") from None


def lines(text: str) -> tuple[str, ...]:
    """The faults of a file: one in a line; empty lines and those that begin with # say nothing."""
    stripped = (line.strip() for line in text.splitlines())
    return tuple(line for line in stripped if line and not line.startswith("#"))
