"""Faults by name: what a simulated engine does wrong, to whom, when, how often.

A fault is written `NAME[:VALUE,key=value,...][@FROM-TO]`, FROM and TO in seconds after it was set. Every fault takes
`p` (probability), `count` (how many requests it strikes), and matches `path`, `model`, `salt` (all exact). Those in
mid-stream take a place: `byte` of the body, `chunk` (event), `ms` after the head, or `fraction` of the planned events.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

COMMON = frozenset({"p", "count", "path", "model", "salt"})
PLACE = frozenset({"byte", "chunk", "ms", "fraction"})


class Stage(Enum):
    """Where in a request's life a fault strikes."""

    CONNECT = "connect"
    HEAD = "head"
    STREAM = "stream"
    PROCESS = "process"
    METRICS = "metrics"


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
    "health_lie": Kind(stage=Stage.PROCESS),
    "ignore_abort": Kind(stage=Stage.PROCESS),
    "freeze": Kind(stage=Stage.METRICS),
    "absent": Kind(stage=Stage.METRICS),
    "slow": Kind(stage=Stage.METRICS, value=True),  # ms
}


class FaultError(ValueError):
    """A fault that cannot be read."""


class Fault:
    """One fault that is set, with what is left of its count."""

    __slots__ = ("_from_s", "_to_s", "count", "keys", "kind", "name", "p", "spec", "value")

    def __init__(self, spec: str, now: float) -> None:
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
        unknown = sorted(set(self.keys) - COMMON - kind.keys)
        if unknown:
            raise FaultError(f"{spec!r}: {self.name} does not take {', '.join(unknown)}")
        self.p = self.number("p", 1.0)
        self.count = self.number("count", float("inf"))
        start, _, end = window.partition("-")
        self._from_s = now + (_float(spec, start) if start else 0.0)
        self._to_s = now + (_float(spec, end) if end else float("inf"))
        if self.name == "startup":  # its value is how long it lasts
            self._to_s = min(self._to_s, self._from_s + self.amount)

    def number(self, key: str, default: float) -> float:
        """The numeric parameter `key`."""
        return _float(self.spec, self.keys[key]) if key in self.keys else default

    @property
    def amount(self) -> float:
        """The value as a number; 0 where there is none."""
        return 0.0 if self.value is None else _float(self.spec, self.value)

    def active(self, now: float) -> bool:
        """Inside its window, with some of its count left."""
        return self.count > 0 and self._from_s <= now < self._to_s

    def matches(self, facts: Mapping[str, str]) -> bool:
        """All of its match keys equal the request's facts."""
        return all(self.keys[key] == facts.get(key, "") for key in ("path", "model", "salt") if key in self.keys)


class Faults:
    """The faults of one engine."""

    def __init__(self, specs: Iterable[str], seed: int) -> None:
        self._random = Random(seed)
        self._set: list[Fault] = []
        self.on_change: Callable[[], None] = _nothing
        self.replace(specs)

    def replace(self, specs: Iterable[str]) -> None:
        """Set exactly these faults; their windows begin now. Raises `FaultError` and changes nothing if one is bad."""
        now = time.monotonic()
        self._set = [Fault(spec, now) for spec in specs]
        self.on_change()

    def specs(self) -> list[str]:
        """What is set, as written."""
        return [fault.spec for fault in self._set]

    def strike(self, stage: Stage, facts: Mapping[str, str], named: bool = False) -> list[Fault]:
        """The faults that hit a request of these facts at this stage; each hit uses up its count.

        `named`: only those that name the path. So `status:503` is about generation, `status:503,path=/health` is not.
        """
        if not self._set:
            return []
        now = time.monotonic()
        hit = []
        for fault in self._set:
            if fault.kind.stage is not stage or not fault.active(now) or not fault.matches(facts):
                continue
            if named and "path" not in fault.keys:
                continue
            if fault.p >= 1.0 or self._random.random() < fault.p:
                fault.count -= 1
                hit.append(fault)
        return hit

    def find(self, name: str) -> Fault | None:
        """The active fault of that name, without using it up: for states rather than strikes."""
        now = time.monotonic()
        return next((fault for fault in self._set if fault.name == name and fault.active(now)), None)


def _nothing() -> None:
    pass


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
