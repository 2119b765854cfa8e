"""How much of a limit is in use: a bucket that leaks, for rates; a purse that is new each period, for budgets.

Both keep what is *used*, not what is left: a changed limit then needs no conversion. Amounts are whole micro-units and
times whole microseconds, so nothing is lost between two looks however often one looks. Every amount that is reserved
is settled once, for what it really was; the sums of both always meet (tenancy.md 3.6, I1).

What is used is kept as `end`: the moment at which nothing would be used any more, in microseconds times `rate`, which are 60ths of a
micro-unit, as rates are by the minute. So time that passes is one product to compare with, and to hold or give back something is
one addition (`policies.state.tariffs`). A budget has rate 0: its `end` stays.
"""

from math import inf
from typing import NamedTuple

from policies.state import periods
from policies.types import Budget

MICRO = 1_000_000
MINUTE_S = 60
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

    `used` is as of the last look. `apart` of it is not: it is free, but not for this replica to spend. From `soft` on the
    client is told. `full` is `capacity` as `end` counts.
    """

    __slots__ = (
        "apart",
        "capacity",
        "denied",
        "denied_shadow",
        "end",
        "extra",
        "full",
        "is_budget",
        "name",
        "rate",
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
        self.capacity = self.soft = self.full = 0
        self.end = self.rate = 0
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

    def reserve(self, amount: int) -> None:
        """After a look: hold it from now on."""
        raise NotImplementedError

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
        """It was used, and not reserved before. What is too much to ever be used up is let go."""
        raise NotImplementedError


class Bucket(Meter):
    """A leaky bucket: a limit of so many units a minute, of which `capacity` may come at once."""

    __slots__ = ("_seen_us",)

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.rate = 1
        self._seen_us = 0

    @property
    def per_minute(self) -> int:
        """The limit."""
        return self.rate

    def bound(self, per_minute: int, burst_s: float) -> None:
        """The limit is this now. What is used, as of the last look, stays used."""
        over = self._over()
        self.rate = per_minute
        self.end = self._seen_us * per_minute + over
        self.capacity = -int(-per_minute * burst_s // 60) * MICRO
        self.full = self.capacity * MINUTE_S

    def _over(self) -> int:
        """What is used as of the last look, as `end` counts."""
        return max(0, self.end - self._seen_us * self.rate)

    def look(self, now: float) -> int:
        self._seen_us = max(self._seen_us, int(now * MICRO))
        self.used = -(-self._over() // MINUTE_S)
        return 0

    def put(self, used: int) -> None:
        """So much is used, as of the last look."""
        self.end = self._seen_us * self.rate + used * MINUTE_S
        self.used = used

    def reserve(self, amount: int) -> None:
        self._add(amount)
        self.reserved += amount

    def owe(self, amount: int) -> None:
        self._add(amount)
        over = self.used - DEBT * self.capacity
        if over > 0:
            self._add(-over)
            self.written_off += over

    def _add(self, amount: int) -> None:
        self.end = self._seen_us * self.rate + self._over() + amount * MINUTE_S
        self.used += amount

    def _correct(self, more: int, period: int, now: float) -> None:
        if more > 0:
            self.look(now)
            self.owe(more)
        else:  # what is given back may leak before or after: it comes to the same
            self.end += more * MINUTE_S
            self.used = max(0, self.used + more)

    def wait_s(self, need: int) -> float:
        return self._leaks_s(self._over() + need * MINUTE_S - self.full)

    def empty_s(self) -> float:
        return self._leaks_s(self._over())

    def _leaks_s(self, over: int) -> float:
        return -(-over // self.rate) / MICRO if over > 0 else 0.0


class Wall:
    """How far the wall clock is ahead of the driver's."""

    __slots__ = ("offset_s",)

    def __init__(self) -> None:
        self.offset_s = 0.0


class Purse(Meter):
    """A budget. It never drains and nothing is written off; with each period it is new."""

    __slots__ = ("_period", "_wall", "began_s", "ends_s", "left_s", "soft_end")

    def __init__(self, rule: Rule, wall: Wall) -> None:
        super().__init__(rule)
        self.is_budget = True
        self._wall = wall
        self._period = "day"
        self.began_s = self.ends_s = self.soft_end = 0
        self.left_s = 0.0  # of its period, when it was looked at

    def bound(self, budget: Budget) -> None:
        """The budget is this now. What is used stays used, if the period is of the same kind."""
        self.capacity = budget.amount * MICRO
        self.full = self.capacity * MINUTE_S
        self.soft = int(budget.soft_ratio * self.capacity)
        self.soft_end = self.soft * MINUTE_S
        if self._period != budget.period:
            self._period = budget.period
            self.ends_s = 0  # look again in which one we are

    def look(self, now: float) -> int:
        at_s = now + self._wall.offset_s
        if at_s >= self.ends_s:
            began_s, self.ends_s = periods.bounds(self._period, int(at_s // 1))
            if began_s > self.began_s:
                self.began_s, self.end = began_s, 0
        self.left_s = self.ends_s - at_s
        self.used = self.end // MINUTE_S
        return self.began_s

    def put(self, used: int) -> None:
        """So much is used, as of the last look."""
        self.used, self.end = used, used * MINUTE_S

    def reserve(self, amount: int) -> None:
        self.put(self.used + amount)
        self.reserved += amount

    def owe(self, amount: int) -> None:
        self.put(self.used + amount)

    def _correct(self, more: int, period: int, now: float) -> None:
        if self.look(now) == period:
            self.put(max(0, self.used + more))

    def wait_s(self, need: int) -> float:
        return inf if self.used + need > self.capacity else 0.0

    def empty_s(self) -> float:
        return self.left_s
