"""The faults of one simulated engine: which are set, whom they strike. Their language is `loadgen.faults`."""

import time
from collections.abc import Callable, Iterable, Mapping
from random import Random

from loadgen.faults import Fault, Stage


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
