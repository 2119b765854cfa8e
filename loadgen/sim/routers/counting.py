"""B0 to B3: routers that know nothing, or how many of their own requests each engine has."""

from collections.abc import Sequence
from random import Random

from loadgen.sim.router import Job, Seen


class Blind:
    """A router that never looks at engines and counts its own outstanding requests; the others stand on it."""

    poll_s = 0.0

    def __init__(self, engines: int) -> None:
        self.outstanding = [0] * engines

    def place(self, job: Job, now: float) -> int:
        """The engine for this request."""
        engine = self.choose(job, now)
        self.outstanding[engine] += 1
        return engine

    def choose(self, job: Job, now: float) -> int:
        """The rule."""
        raise NotImplementedError

    def first_token(self, job: Job, engine: int, now: float) -> None:
        """Its first token came."""

    def finished(self, job: Job, engine: int, now: float) -> None:
        """It ended, well or not."""
        self.outstanding[engine] -= 1

    def observed(self, engine: int, seen: Seen, now: float) -> None:
        """An engine was looked at."""


class AnyEngine(Blind):
    """B0: each engine alike."""

    def __init__(self, engines: int, random: Random) -> None:
        super().__init__(engines)
        self._random = random

    def choose(self, job: Job, now: float) -> int:
        """Any engine."""
        return self._random.randrange(len(self.outstanding))


class RoundRobin(Blind):
    """B1: one after the other."""

    def __init__(self, engines: int) -> None:
        super().__init__(engines)
        self._next = -1

    def choose(self, job: Job, now: float) -> int:
        """The engine after the last one."""
        self._next = (self._next + 1) % len(self.outstanding)
        return self._next


class LeastRequests(Blind):
    """B2: fewest outstanding requests; ties at random."""

    def __init__(self, engines: int, random: Random) -> None:
        super().__init__(engines)
        self._random = random

    def choose(self, job: Job, now: float) -> int:
        """An engine with the fewest."""
        return least(self.outstanding, self._random)


class TwoChoices(Blind):
    """B3: of two engines drawn at random, the one with fewer outstanding requests."""

    def __init__(self, engines: int, random: Random) -> None:
        super().__init__(engines)
        self._random = random

    def choose(self, job: Job, now: float) -> int:
        """The less loaded of two; the only one, if there is only one."""
        drawn = self._random.sample(range(len(self.outstanding)), min(2, len(self.outstanding)))
        return min(drawn, key=self.outstanding.__getitem__)


def least(values: Sequence[float | tuple[float, ...]], random: Random) -> int:
    """The index of the smallest value; any of them, if several are."""
    smallest = min(values)
    return random.choice([index for index, value in enumerate(values) if value == smallest])
