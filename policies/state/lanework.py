"""What long and short prompts ask of a pool: how long lanes are held, how much of the prefill is long, who waits for whom.

Everything is a mean over about a minute, taken in steps of `TICK_S`; in the first minute over what there is of it.
"""

from math import exp

TICK_S = 10.0
MEAN_S = 60.0
_WEIGHT = 1.0 - exp(-TICK_S / MEAN_S)


class LaneWork:
    """`lanes_held`: how many long lanes the arrivals would keep busy. `long_share` of the tokens to compute is long.

    `tokens_per_s` are to be computed. `idle_s` and `blocked_s`: of each second, the part in which a long prompt
    waited while an endpoint without a lane had nothing to compute, and in which a short one waited behind long ones.
    `moves`: how often the number of lanes has changed.
    """

    __slots__ = (
        "_blocked",
        "_held_s",
        "_idle",
        "_long_tokens",
        "_longs",
        "_looks",
        "_ticks",
        "_tokens",
        "agreed",
        "blocked_s",
        "changed_s",
        "hold_s",
        "hurts_since_s",
        "idle_s",
        "long_tokens_per_s",
        "longs_per_s",
        "moves",
        "next_s",
        "tokens_per_s",
    )

    def __init__(self) -> None:
        self._tokens = self._long_tokens = self._longs = self._looks = self._blocked = self._idle = 0
        self._ticks = 0
        self.tokens_per_s = self.long_tokens_per_s = self.longs_per_s = self.blocked_s = self.idle_s = 0.0
        self.hold_s = 0.0  # a lane is held by one prompt
        self.next_s: float | None = None
        self.agreed = 0  # ticks in a row that asked for more lanes, or fewer (negative)
        self.changed_s = 0.0
        self.moves = 0
        self.hurts_since_s: float | None = None

    @property
    def lanes_held(self) -> float:
        return self.longs_per_s * self.hold_s

    @property
    def long_share(self) -> float:
        return self.long_tokens_per_s / self.tokens_per_s if self.tokens_per_s else 0.0

    def came(self, tokens: int, long: bool) -> None:
        """A prompt of so many uncached tokens has arrived."""
        self._tokens += tokens
        if long:
            self._longs += 1
            self._long_tokens += tokens

    def held(self, seconds: float) -> None:
        """A long prompt has left its lane."""
        self.hold_s += (seconds - self.hold_s) * (0.1 if self.hold_s else 1.0)

    def look(self, blocked: bool, idle: bool) -> None:
        """Once a second: whether a short one waits behind long ones, a long one beside an idle endpoint."""
        self._looks += 1
        self._blocked += blocked
        self._idle += idle

    def turn(self, now: float) -> bool:
        """True when a step is over and the means are new."""
        if self.next_s is None:
            self.next_s = now + TICK_S
        if now < self.next_s:
            return False
        looks = max(1, self._looks)
        self._ticks += 1
        weight = max(_WEIGHT, 1.0 / self._ticks)  # not begun at zero: too few lanes would be kept for a minute
        self.tokens_per_s += (self._tokens / TICK_S - self.tokens_per_s) * weight
        self.long_tokens_per_s += (self._long_tokens / TICK_S - self.long_tokens_per_s) * weight
        self.longs_per_s += (self._longs / TICK_S - self.longs_per_s) * weight
        self.blocked_s += (self._blocked / looks - self.blocked_s) * weight
        self.idle_s += (self._idle / looks - self.idle_s) * weight
        self._tokens = self._long_tokens = self._longs = self._looks = self._blocked = self._idle = 0
        self.next_s = now + TICK_S
        return True
