"""How long to wait before a worker is started again: hardly, unless it dies again and again."""

FIRST_S = 0.1  # a start takes under a second, and it is to be back within two
MOST_S = 30.0
STEADY_S = 60.0  # who has lived so long has not died of its start


class Backoff:
    """One worker's. Times in seconds."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, lived_s: float) -> float:
        """The wait after the death of a process that has lived so long."""
        if lived_s >= STEADY_S:
            self._next_s = FIRST_S
        wait_s, self._next_s = self._next_s, min(MOST_S, 2 * self._next_s)
        return wait_s
