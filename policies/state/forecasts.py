"""How far expectations were off: the last ratios of actual over expected seconds, for one lane of one pool."""

from collections import deque

SAMPLES = 128
FIRST_MARGIN, TRUSTED_FROM = 1.5, 50  # until so many samples
MARGIN_MIN, MARGIN_MAX = 0.5, 4.0
REFRESH_EVERY = 8


class Forecast:
    """`margin` x expectation covers the share `wanted` of what happens."""

    __slots__ = ("_ratios", "_since", "_wanted", "covered", "margin", "seen", "typical")

    def __init__(self, wanted: float) -> None:
        self._wanted = wanted
        self.margin = FIRST_MARGIN
        self.typical = 1.0
        self.seen = 0
        self.covered = 0  # of them arrived within the margin of their time
        self._ratios: deque[float] = deque(maxlen=SAMPLES)
        self._since = 0

    def learn(self, expected_s: float, actual_s: float) -> None:
        """A first token came."""
        if expected_s <= 0.0:
            return
        ratio = actual_s / expected_s
        self.seen += 1
        self.covered += ratio <= self.margin
        self._ratios.append(ratio)
        self._since += 1
        if self._since >= REFRESH_EVERY and len(self._ratios) >= TRUSTED_FROM:
            self._since = 0
            ranked = sorted(self._ratios)
            self.typical = ranked[len(ranked) // 2]
            self.margin = min(MARGIN_MAX, max(MARGIN_MIN, ranked[int(self._wanted * (len(ranked) - 1))]))
