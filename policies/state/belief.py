"""How much of what an endpoint was sent it may still have: its KV cache, how fast that turns over, and its own word.

1. What is older than `ttl_s`, or than the engine's cache takes to turn over, is forgotten. How fast that is we count
   ourselves, from what is sent there and generated, unless the engine has told it within the window of the rate.
2. Trust is cached tokens as the engine reports them over those we found in the index: it scales every prediction.
3. An endpoint that had less than half for 50 requests in a row is believed to keep half as much; one that had nearly
   all for as long, twice as much again, up to what was configured.
"""

from math import exp
from typing import Final

from policies.fingerprint import TOKEN_BYTES
from policies.types import Affinity

RATE_WINDOW_S: Final = 60.0
TRUST_STEP: Final = 0.05  # [o]
POOR: Final = 0.5
GOOD: Final = 0.9
IN_A_ROW: Final = 50
LEAST_KEPT: Final = 1 / 64  # [o]: so that a doubling is felt again


class Belief:
    """What is believed of one endpoint. Of `kv_tokens` 0 means unknown: then only `ttl_s` bounds an age.

    `text_bytes`: how much text its cache holds, at four bytes a token; None: unknown.
    """

    __slots__ = (
        "_affinity",
        "_at_s",
        "_in_a_row",
        "_kv_tokens",
        "_per_s",
        "_tokens",
        "_told_s",
        "kept",
        "text_bytes",
        "trust",
    )

    def __init__(self, affinity: Affinity, kv_tokens: int) -> None:
        self._at_s = 0.0
        self._per_s = 0.0  # tokens that entered the cache, as of then
        self._told_s = -RATE_WINDOW_S  # when the engine last told it itself
        self._in_a_row = 0  # reports: so many good ones, or, below 0, poor ones
        self.kept = 1.0  # of the configured capacity
        self.trust = 1.0
        self._affinity = affinity
        self.resize(kv_tokens)

    def bound(self, affinity: Affinity) -> None:
        """Take other times and tiers."""
        self._affinity = affinity
        self._size()

    def resize(self, kv_tokens: int) -> None:
        """Its cache holds so many tokens."""
        self._kv_tokens = kv_tokens
        self._size()

    @property
    def kv_tokens(self) -> int:
        """The size of its cache; 0: unknown."""
        return self._kv_tokens

    def used(self, tokens: int, now: float) -> None:
        """So many tokens, uncached or generated, must have entered its cache. Passed over while it tells that itself."""
        if now - self._told_s >= RATE_WINDOW_S:
            self._count_in(tokens, now)

    def turned(self, stored_tokens: int, removed_tokens: int, now: float) -> None:
        """The engine says what entered and left its cache: room was also taken for what it has not stored yet."""
        self._told_s = now
        self._count_in(max(stored_tokens, removed_tokens), now)

    def reported(self, matched_tokens: int, cached_tokens: int) -> None:
        """The engine had `cached_tokens` of a prompt of which the index knew `matched_tokens`, before any trust."""
        if matched_tokens <= 0:
            return
        self.trust += (min(cached_tokens / matched_tokens, 1.0) - self.trust) * TRUST_STEP
        self._count()
        if abs(self._in_a_row) >= IN_A_ROW:
            self.kept = min(1.0, self.kept * 2) if self._in_a_row > 0 else max(LEAST_KEPT, self.kept / 2)
            self._in_a_row = 0
            self._size()

    def lifetime_s(self, now: float) -> float:
        """How long something unused stays in its cache."""
        ttl_s, tokens = self._affinity.ttl_s, self._tokens
        if not 0.0 < tokens < ttl_s * self._per_s:  # the rate only falls until more is used
            return ttl_s
        return min(ttl_s, tokens / self._rate(now))

    def _count_in(self, tokens: int, now: float) -> None:
        self._per_s = self._rate(now) + tokens / RATE_WINDOW_S
        self._at_s = now

    def _size(self) -> None:
        self._tokens = self._kv_tokens * self._affinity.kv_tiers * self.kept
        self.text_bytes = int(self._tokens) * TOKEN_BYTES if self._kv_tokens else None

    def _rate(self, now: float) -> float:
        return self._per_s * exp((self._at_s - now) / RATE_WINDOW_S)

    def _count(self) -> None:
        if self.trust < POOR:
            self._in_a_row = min(self._in_a_row, 0) - 1
        elif self.trust > GOOD:
            self._in_a_row = max(self._in_a_row, 0) + 1
        else:
            self._in_a_row = 0
