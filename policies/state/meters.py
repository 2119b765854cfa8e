"""How much of a limit is in use: a bucket that leaks, for rates; a purse that is new each period, for budgets.

Both keep what is *used*, not what is left: a changed limit then needs no conversion. Amounts are whole micro-units and
times whole microseconds, so nothing is lost between two looks however often one looks. Every amount that is reserved
is settled once, for what it really was; the sums of both always meet (tenancy.md 3.6, I1).
"""

from math import inf
from typing import NamedTuple

from policies.state import periods
from policies.types import Budget

MICRO = 1_000_000
NO_ROOM = -1
DEBT = 2  # times its capacity, a bucket holds at most


class Rule(NamedTuple):
    """Which limit: `scope` is tenant, key, tenant_model or model; `part` the key or the model; `metric` rpm, tpm, itpm
    or otpm, or the id of a budget."""

    scope: str
    tenant: str
    part: str
    metric: str


class Meter:
    """What every kind has: what is used of `capacity`, and the sums since the start.

    `apart` of `used` is not: it is free, but not for this replica to spend. From `soft` on the client is told.
    """

    __slots__ = (
        "apart",
        "capacity",
        "denied",
        "denied_shadow",
        "extra",
        "is_budget",
        "name",
        "refunded",
        "reserved",
        "rule",
        "settled",
        "soft",
        "used",
        "written_off",
    )

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.name = f"{rule.scope}.{rule.metric}"
        self.is_budget = False
        self.capacity = self.soft = 0
        self.used = self.apart = 0
        self.reserved = self.extra = self.refunded = self.settled = 0
        self.written_off = self.denied = self.denied_shadow = 0

    @property
    def held(self) -> int:
        """What open reservations hold (I1)."""
        return self.reserved + self.extra - self.refunded - self.settled

    def look(self, now: float) -> int:
        """Bring `used` up to `now`. Returns the period that a reservation made now belongs to."""
        raise NotImplementedError

    def wait_s(self, need: int) -> float:
        """After a look: how long until `need` fits. 0: it does; infinite where waiting is no use."""
        raise NotImplementedError

    def empty_s(self) -> float:
        """After a look: how long until nothing is used, if nothing comes."""
        raise NotImplementedError

    def take(self, amount: int, now: float) -> int:
        """Look, and hold it if it fits. Returns the period it belongs to, or NO_ROOM."""
        raise NotImplementedError

    def put_back(self, amount: int) -> None:
        """It was not taken: another limit of the request was in the way."""
        self.reserve(-amount)

    def reserve(self, amount: int) -> None:
        """Hold it from now on."""
        self.used += amount
        self.reserved += amount

    def settle(self, amount: int, actual: int, period: int, now: float) -> None:
        """What was reserved in `period` turned out to be `actual`."""
        self.settled += actual
        more = actual - amount
        if more > 0:
            self.extra += more
            self._correct(more, period, now)
        elif more:
            self.refunded -= more
            self._correct(more, period, now)

    def _correct(self, more: int, period: int, now: float) -> None:
        """So much more, or less, was used of what belongs to `period`."""
        raise NotImplementedError

    def owe(self, amount: int) -> None:
        """It was used, and not reserved before."""
        self.used += amount
        self._forgive()

    def _forgive(self) -> None:
        """Let go of what is too much to ever be used up."""


class Bucket(Meter):
    """A leaky bucket: a limit of so many units a minute, of which `capacity` may come at once."""

    __slots__ = ("_carry", "_seen_us", "per_minute")

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.per_minute = 1
        self._seen_us = 0
        self._carry = 0  # of the next micro-unit, 60ths have leaked

    def bound(self, per_minute: int, burst_s: float) -> None:
        """The limit is this now. What is used stays used."""
        self.per_minute = per_minute
        self.capacity = -int(-per_minute * burst_s // 60) * MICRO

    def look(self, now: float) -> int:
        self.take(0, now)
        return 0

    def take(self, amount: int, now: float) -> int:
        now_us, used = int(now * MICRO), self.used
        passed_us = now_us - self._seen_us
        if passed_us > 0:
            self._seen_us = now_us
            if used:
                leaked, self._carry = divmod(passed_us * self.per_minute + self._carry, 60)
                used -= leaked
                if used <= 0:
                    used = self._carry = 0
                self.used = used
        used += amount
        if used > self.capacity:
            return NO_ROOM
        self.used = used
        self.reserved += amount
        return 0

    def _correct(self, more: int, period: int, now: float) -> None:
        if more > 0:
            self.look(now)
            self.owe(more)
        else:  # what is given back may leak before or after: it comes to the same
            self.used = max(0, self.used + more)

    def wait_s(self, need: int) -> float:
        return self._leaks_s(self.used + need - self.capacity)

    def empty_s(self) -> float:
        return self._leaks_s(self.used)

    def _leaks_s(self, amount: int) -> float:
        return -((self._carry - amount * 60) // self.per_minute) / MICRO if amount > 0 else 0.0

    def _forgive(self) -> None:
        over = self.used - DEBT * self.capacity
        if over > 0:
            self.used -= over
            self.written_off += over


class Wall:
    """How far the wall clock is ahead of the driver's."""

    __slots__ = ("offset_s",)

    def __init__(self) -> None:
        self.offset_s = 0.0


class Purse(Meter):
    """A budget. It never drains and nothing is written off; with each period it is new."""

    __slots__ = ("_ends_s", "_period", "_wall", "began_s", "left_s")

    def __init__(self, rule: Rule, wall: Wall) -> None:
        super().__init__(rule)
        self.is_budget = True
        self._wall = wall
        self._period = "day"
        self.began_s = self._ends_s = 0
        self.left_s = 0.0  # of its period, when it was looked at

    def bound(self, budget: Budget) -> None:
        """The budget is this now. What is used stays used, if the period is of the same kind."""
        self.capacity = budget.amount * MICRO
        self.soft = int(budget.soft_ratio * self.capacity)
        if self._period != budget.period:
            self._period = budget.period
            self._ends_s = 0  # look again in which one we are

    def look(self, now: float) -> int:
        at_s = now + self._wall.offset_s
        if at_s >= self._ends_s:
            began_s, self._ends_s = periods.bounds(self._period, int(at_s // 1))
            if began_s > self.began_s:
                self.began_s, self.used = began_s, 0
        self.left_s = self._ends_s - at_s
        return self.began_s

    def take(self, amount: int, now: float) -> int:
        if now + self._wall.offset_s >= self._ends_s:
            self.look(now)
        used = self.used + amount
        if used > self.capacity:
            return NO_ROOM
        self.used = used
        self.reserved += amount
        return self.began_s

    def _correct(self, more: int, period: int, now: float) -> None:
        if now + self._wall.offset_s >= self._ends_s:
            self.look(now)
        if self.began_s == period:
            self.used = max(0, self.used + more)

    def wait_s(self, need: int) -> float:
        return inf if self.used + need > self.capacity else 0.0

    def empty_s(self) -> float:
        return self.left_s
