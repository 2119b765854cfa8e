"""When a store that does not answer is asked again: not at once, and ever less often (tenancy.md 8.5)."""

from random import Random

FAILURES = 5  # in a row
FIRST_S, LONGEST_S = 1.0, 30.0
JITTER = 0.2


class Breaker:
    """Open after FAILURES in a row; then one call is let through now and then, and closes it if it is good."""

    def __init__(self, random: Random, scale: float = 1.0) -> None:
        self.open = False
        self._random = random
        self._scale = scale
        self._failures = 0
        self._again_s = 0.0  # not before
        self._pause_s = FIRST_S

    def lets(self, now: float) -> bool:
        """Whether a call may be made."""
        return not self.open or now >= self._again_s

    def failed(self, now: float) -> None:
        """A call has failed."""
        self._failures += 1
        if self._failures >= FAILURES:
            self.open = True
            jitter = 1 + self._random.uniform(-JITTER, JITTER)
            self._again_s = now + self._pause_s * jitter * self._scale
            self._pause_s = min(LONGEST_S, self._pause_s * 2)

    def succeeded(self) -> None:
        """A call was good."""
        self.open = False
        self._failures = 0
        self._pause_s = FIRST_S
