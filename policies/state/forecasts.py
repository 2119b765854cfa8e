"""How far expectations were off: the last ratios of actual over expected seconds, for one lane of one pool.

While waits grow, so do the ratios, and the quantile of the last ones covers too little. Where that matters the quantile is led by what
was covered: a little higher after each miss, lower after each hit, by as much as keeps it where it is when the wanted share is covered
(adaptive conformal inference, Gibbs and Candes 2021, arXiv 2106.00170).
"""

from collections import deque

SAMPLES = 128
FIRST_MARGIN, TRUSTED_FROM = 1.5, 50  # until so many samples
MARGIN_MIN, MARGIN_MAX = 0.5, 4.0
REFRESH_EVERY = 8
PACE = 0.01  # at which the quantile is led
LEAST_LEVEL = 0.5


class Forecast:
    """`margin` x expectation covers the share `wanted` of what happens. `pace` 0: what it did of the last ratios."""

    __slots__ = ("_level", "_pace", "_ratios", "_since", "_wanted", "covered", "margin", "seen", "typical")

    def __init__(self, wanted: float, pace: float = 0.0) -> None:
        self._wanted = self._level = wanted
        self._pace = pace
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
        covered = ratio <= self.margin
        self.covered += covered
        if self.seen > TRUSTED_FROM:
            self._level = min(1.0, max(LEAST_LEVEL, self._level + self._pace * (self._wanted - covered)))
        self._ratios.append(ratio)
        self._since += 1
        if self._since >= REFRESH_EVERY and len(self._ratios) >= TRUSTED_FROM:
            self._since = 0
            ranked = sorted(self._ratios)
            self.typical = ranked[len(ranked) // 2]
            self.margin = min(MARGIN_MAX, max(MARGIN_MIN, ranked[int(self._level * (len(ranked) - 1))]))
