"""A limit that several replicas share: this one spends from a block of it that was set aside for it (tenancy.md 8).

What is used in the whole fleet is known to the store alone; here is `room`, what of it was set aside for this replica
and not spent, and `owed`, what was spent and set aside for nobody: answers longer than was reserved for, and what was
spent while the store could not be asked. `mirror` is the limit as the store last told it, drained since.

Without the store (`alone`) a replica has its block and its share of what was left. It acts as if every other replica did
as it does: what it spends beyond its block counts in the mirror as many times as there are replicas. So it refills at
a replica's share of the limit, too.

For whoever decides, `used` is what this replica may not spend now, the rest of `capacity` what it may.
"""

from math import inf

from policies.state.meters import MICRO, MINUTE_S, Bucket, Meter, Purse, Rule, Wall
from policies.types import Budget

EMPTY_S = 0.02  # at least so long nothing is asked of a limit that has nothing left


class Block(Meter):
    """The block of one limit. `per_s` is what was reserved in a second before `marked_s`, when `marked` was in all."""

    __slots__ = (
        "alone",
        "asked_s",
        "empty_until_s",
        "looked_s",
        "marked",
        "marked_s",
        "mirror",
        "owed",
        "per_s",
        "period",
        "policy",
        "replicas",
        "room",
        "told_s",
    )

    def __init__(self, rule: Rule, mirror: Bucket | Purse, replicas: int) -> None:
        super().__init__(rule)
        self.mirror = mirror
        self.is_budget = mirror.is_budget
        self.replicas = replicas
        self.room = self.owed = 0
        self.alone = False
        self.policy = ""  # what to do without the store
        self.empty_until_s = 0.0
        self.marked, self.marked_s, self.per_s = 0, 0.0, 0.0
        self.told_s = 0.0  # when the store last said what is used
        self.looked_s, self.asked_s = 0.0, -inf  # the last look, and the last one for which anything was reserved
        self.period = 0

    @classmethod
    def of(cls, rule: Rule, is_budget: bool, wall: Wall, replicas: int) -> "Block":
        """A block of a limit of which nothing is known yet."""
        return cls(rule, Purse(rule, wall) if is_budget else Bucket(rule), replicas)

    def bound(self, limit: tuple[int, float] | Budget, policy: str) -> None:
        """The limit is this now."""
        mirror = self.mirror
        if isinstance(mirror, Purse):
            if isinstance(limit, Budget):
                if mirror.every != limit.period:
                    self.room = self.owed = 0  # of the one that was
                mirror.bound(limit)
        elif not isinstance(limit, Budget):
            mirror.bound(*limit)
        self.capacity, self.soft, self.policy = mirror.capacity, mirror.soft, policy
        self.room = min(self.room, self.capacity)
        self._weigh()

    # ---- as any meter

    @property
    def in_use(self) -> bool:
        """What was used is kept by the store, as soon as that has been told of it."""
        return bool(self.room or self.owed or self.held)

    def look(self, now: float) -> int:
        self.looked_s = now
        period = self.mirror.look(now)
        if period != self.period:  # what is left of the last period's is worth nothing
            self.period = period
            self.room = self.owed = 0
            self.empty_until_s = 0.0
        self._weigh()
        return period

    def wait_s(self, need: int) -> float:
        more = need - self.room
        if not self.alone:
            return max(self.mirror.wait_s(more), EMPTY_S)
        next_s = self._next_s() if self.capacity < self.replicas * MICRO else 0.0
        # There is no more to come of a limit of which nothing is used.
        return max(self.mirror.wait_s(min(more * self.replicas, self.capacity)), next_s - self.looked_s, EMPTY_S)

    def empty_s(self) -> float:
        return self.mirror.empty_s()

    def reserve(self, amount: int) -> None:
        self.reserved += amount
        self.asked_s = self.looked_s
        self._take(amount)

    def _correct(self, more: int, period: int, now: float) -> None:
        if self.look(now) != period:
            return
        if more > 0:
            self._take(more)
        else:
            self._give(-more)

    # ---- the block

    def undecided(self, need: int, now: float) -> bool:
        """Whether the store may have what is missing here."""
        return not self.alone and now >= self.empty_until_s and need <= self.capacity

    def count(self, replicas: int) -> None:
        """So many replicas there are."""
        self.replicas = replicas
        self._weigh()

    def go_alone(self) -> None:
        """The store cannot be asked."""
        self.alone = True
        self._weigh()

    def hand_back(self, amount: int) -> None:
        """So much is on its way back to the store, and nobody's here any more."""
        self.room -= min(amount, self.room)
        self._weigh()

    def take_grant(self, granted: int, reported: int, used: int) -> None:
        """The store has set `granted` more aside and knows of `reported` that was owed: `used` of the limit are now."""
        self.owed = max(0, self.owed - reported)
        self.mirror.put(used + self.owed)
        self.room = min(self.capacity, self.room + granted)
        self.alone = False
        self._weigh()

    def demand(self, now: float, least_s: float) -> float:
        """What is reserved in a second, as far as it can be told over `least_s` and more."""
        here = (self.reserved - self.marked) / max(now - self.marked_s, least_s)
        return max(here, self.per_s)

    def mark(self, now: float, least_s: float) -> None:
        """Begin to count demand anew, if it was counted for long enough."""
        passed_s = now - self.marked_s
        if passed_s >= least_s:
            self.per_s = (self.reserved - self.marked) / passed_s
            self.marked, self.marked_s = self.reserved, now

    def _take(self, amount: int) -> None:
        beyond = amount - self.room
        if beyond <= 0:
            self.room -= amount
        else:
            self.room = 0
            self.owed += beyond
            self.mirror.owe(beyond * self.replicas if self.alone else beyond)
        self._weigh()

    def _give(self, amount: int) -> None:
        known = min(amount, self.owed)
        self.owed -= known
        self.mirror.put(max(0, self.mirror.used - (known * self.replicas if self.alone else known)))
        self.room = min(self.capacity, self.room + amount - known)
        self._weigh()

    def _next_s(self) -> float:
        """When this replica has its turn of one request, of a rate with less than one for each: parts of one let nobody in."""
        mirror = self.mirror
        return self.asked_s + self.replicas * MINUTE_S / mirror.per_minute if isinstance(mirror, Bucket) else inf

    def _weigh(self) -> None:
        left = max(0, self.mirror.capacity - self.mirror.used)
        if not self.alone:
            self.used = self.capacity - self.room + self.owed
            self.apart = min(self.used, left + self.owed)
            return
        part = 0 if self.policy == "closed" else left // self.replicas
        if part < MICRO and self.policy != "closed" and self._next_s() <= self.looked_s:
            part = min(MICRO, left)
        self.used = max(0, self.capacity - self.room - part)
        self.apart = min(self.used, left - part) if self.is_budget else 0  # of the others, and used by nobody yet
