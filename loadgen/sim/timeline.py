"""When which engine fails: the faults of `forebay engine` in seconds of a run, as far as virtual time can have them.

A line names its engine with `engine=NAME`, or means all. What is about bytes, sockets or processes' outputs does not
exist here, and whoever asks for it is told so.
"""

from collections.abc import Iterable, Sequence
from random import Random

from loadgen.faults import KINDS, Fault, FaultError

STATES = ("crash", "refuse", "startup", "slow_prefill", "slow_decode", "kv_shrink", "ignore_abort")
SIGHTS = ("freeze", "absent", "stale", "slow")
STRIKES = ("status", "hang", "health_lie")  # these take `p` and `count`
UNREACHABLE = ("crash", "refuse")  # nobody accepts a connection
UNWELL = (*UNREACHABLE, "startup")  # a health probe fails
NEEDS_CORE = (*UNWELL, "status")  # a gateway tries again elsewhere, and finds out; a baseline does neither
STATUSES = (400, 429, 500, 502, 503, 504)

_ENGINE = frozenset({"engine"})
_KEYS = {
    "status": frozenset({"p", "count", "retry_after"}),
    **dict.fromkeys(("hang", "health_lie"), frozenset({"p", "count"})),
}


def read(specs: Iterable[str], engines: Sequence[str]) -> list[Fault]:
    """The faults of these lines, for a fleet of these engines. Raises FaultError, with the line."""
    return [_read(spec, engines) for spec in specs]


def _read(spec: str, engines: Sequence[str]) -> Fault:
    fault = Fault(spec, 0.0, _ENGINE)
    there = (*STATES, *SIGHTS, *STRIKES)
    if fault.name not in there:
        told = ", ".join(name for name in KINDS if name in there)
        raise FaultError(f"{spec!r}: virtual time has no {fault.name}, it has {told}; `forebay engine` has the others")
    strange = sorted(set(fault.keys) - _ENGINE - _KEYS.get(fault.name, frozenset()))
    if strange:
        raise FaultError(f"{spec!r}: in virtual time {fault.name} does not take {', '.join(strange)}")
    engine = fault.keys.get("engine")
    if engine is not None and engine not in engines:
        raise FaultError(f"{spec!r}: no engine is called {engine}; there are {', '.join(engines)}")
    _check_numbers(fault)
    return fault


def _check_numbers(fault: Fault) -> None:
    amount = fault.amount
    if fault.name == "status" and amount not in STATUSES:
        raise FaultError(f"{fault.spec!r}: {fault.value} is not one of {', '.join(map(str, STATUSES))}")
    if fault.name == "kv_shrink" and not 0 < amount <= 1:
        raise FaultError(f"{fault.spec!r}: {fault.value} is no share between 0 and 1")
    if fault.name in ("slow_prefill", "slow_decode", "startup", "stale", "slow") and not amount > 0:
        raise FaultError(f"{fault.spec!r}: {fault.value} is not more than 0")
    if not 0 <= fault.from_s < fault.to_s:
        raise FaultError(f"{fault.spec!r}: it ends before it begins")
    fault.number("retry_after", 0.0)


class Timeline:
    """The faults of all engines, asked by name and time. Whom a probability strikes is drawn under `seed`."""

    def __init__(self, faults: Sequence[Fault], engines: Sequence[str], seed: int) -> None:
        self._of = {name: [one for one in faults if one.keys.get("engine", name) == name] for name in engines}
        self._random = Random(seed)
        self._engines = tuple(engines)

    def active(self, engine: int, name: str, now: float) -> Fault | None:
        """The fault of that name that engine number `engine` has now, the first of several."""
        return next((one for one in self._of[self._engines[engine]] if one.name == name and one.active(now)), None)

    def any(self, engine: int, names: Iterable[str], now: float) -> bool:
        """Whether it has one of these now."""
        return any(self.active(engine, name, now) is not None for name in names)

    def ever(self, names: Sequence[str]) -> bool:
        """Whether any engine will have one of these."""
        return any(one.name in names for faults in self._of.values() for one in faults)

    def moments(self, engine: int) -> list[tuple[float, bool, Fault]]:
        """When what it is in begins (True) and ends, in order; what never ends does not."""
        states = [one for one in self._of[self._engines[engine]] if one.name in STATES]
        found = [(one.from_s, True, one) for one in states]
        found += [(one.to_s, False, one) for one in states if one.to_s < float("inf")]
        return sorted(found, key=lambda moment: moment[:2])

    def strike(self, engine: int, now: float) -> Fault | None:
        """What a request meets that reaches it now; it uses up the fault's count."""
        for one in self._of[self._engines[engine]]:
            if one.name in STRIKES and one.active(now) and (one.p >= 1.0 or self._random.random() < one.p):
                one.count -= 1
                return one
        return None
