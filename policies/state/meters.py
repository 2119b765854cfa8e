"""How much of a limit is in use: a bucket that leaks, for rates; a purse that is new each period, for budgets.

Both keep what is *used*, not what is left: a changed limit then needs no conversion. Amounts are whole micro-units and
times whole microseconds, so nothing is lost between two looks however often one looks. Every amount that is reserved
is settled once, for what it really was; the sums of both always meet (tenancy.md 3.6, I1).

What is used is kept as `over`, in 60ths of a micro-unit, as rates are by the minute, and as of `seen_us`: so time that passes is one
product of small numbers, and to hold or give back something is one addition (`policies.state.tariffs`). It is below 0 where more was
given back than had not leaked yet. A budget does not leak: its `over` stays.
"""

from math import inf
from typing import Final, NamedTuple

from policies.state import periods
from policies.types import Budget

MICRO: Final = 1_000_000
MINUTE_S: Final = 60
DEBT: Final = 2  # times its capacity, a bucket holds at most


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
    client is told. `full` is `capacity` as `over` counts, `units` as clients do.
    """

    __slots__ = (
        "apart",
        "capacity",
        "denied",
        "denied_shadow",
        "extra",
        "full",
        "is_budget",
        "name",
        "over",
        "rate",
        "refunded",
        "reserved",
        "rule",
        "seen_us",
        "settled",
        "soft",
        "units",
        "used",
        "written_off",
    )

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.name = f"{rule.scope}.{rule.metric}"
        self.is_budget = False
        self.capacity = self.soft = self.full = self.units = 0
        self.over = self.rate = self.seen_us = 0
        self.used = self.apart = 0
        self.reserved = self.extra = self.refunded = self.settled = 0
        self.written_off = self.denied = self.denied_shadow = 0

    @property
    def held(self) -> int:
        """What open reservations hold (I1)."""
        return self.reserved + self.extra - self.refunded - self.settled

    @property
    def in_use(self) -> bool:
        """After a look: whether it is kept when its limit is gone, as that may come again."""
        return self.used > 0

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

    def exceed(self, more: int, period: int, now: float) -> None:
        """It turned out to be so much more than was reserved, and is booked as if that had been given back."""
        self.extra += more
        self.refunded += more
        self._correct(more, period, now)

    def _correct(self, more: int, period: int, now: float) -> None:
        """So much more, or less, was used of what belongs to `period`."""
        raise NotImplementedError

    def owe(self, amount: int) -> None:
        """It was used, and not reserved before. What is too much to ever be used up is let go."""
        raise NotImplementedError


class Bucket(Meter):
    """A leaky bucket: a limit of so many units a minute, of which `capacity` may come at once."""

    __slots__ = ()

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.rate = 1

    @property
    def per_minute(self) -> int:
        """The limit."""
        return self.rate

    def bound(self, per_minute: int, burst_s: float) -> None:
        """The limit is this now. What is used, as of the last look, stays used."""
        self.rate = per_minute
        self.units = -int(-per_minute * burst_s // 60)
        self.capacity = self.units * MICRO
        self.full = self.capacity * MINUTE_S

    def look(self, now: float) -> int:
        now_us = int(now * MICRO)
        passed_us = now_us - self.seen_us
        if passed_us > 0:
            self.over -= passed_us * self.rate
            self.seen_us = now_us
        if self.over < 0:
            self.over = 0
        self.used = -(-self.over // MINUTE_S)
        return 0

    def put(self, used: int) -> None:
        """So much is used, as of the last look."""
        self.over = used * MINUTE_S
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
        self.over = max(0, self.over) + amount * MINUTE_S
        self.used += amount

    def _correct(self, more: int, period: int, now: float) -> None:
        if more > 0:
            self.look(now)
            self.owe(more)
        else:  # what is given back may leak before or after: it comes to the same
            self.over += more * MINUTE_S
            self.used = max(0, self.used + more)

    def exceed(self, more: int, period: int, now: float) -> None:
        self.extra += more
        self.refunded += more
        now_us = int(now * MICRO)
        over = self.over - (now_us - self.seen_us) * self.rate
        over = (over if over > 0 else 0) + more * MINUTE_S
        if over > self.full and over > (debt := DEBT * self.full):
            let_go = -(-(over - debt) // MINUTE_S)
            self.written_off += let_go
            over -= let_go * MINUTE_S
        self.over, self.seen_us = over, now_us

    def wait_s(self, need: int) -> float:
        return self._leaks_s(max(0, self.over) + need * MINUTE_S - self.full)

    def empty_s(self) -> float:
        return self._leaks_s(self.over)

    def _leaks_s(self, over: int) -> float:
        return -(-over // self.rate) / MICRO if over > 0 else 0.0


class Wall:
    """How far the wall clock is ahead of the driver's."""

    __slots__ = ("offset_s",)

    def __init__(self) -> None:
        self.offset_s = 0.0


class Purse(Meter):
    """A budget. It never drains and nothing is written off; with each period it is new. `every`: day, week or month."""

    __slots__ = ("_wall", "began_s", "ends_s", "every", "left_s", "soft_over")

    def __init__(self, rule: Rule, wall: Wall) -> None:
        super().__init__(rule)
        self.is_budget = True
        self._wall = wall
        self.every = "day"
        self.began_s = self.ends_s = self.soft_over = 0
        self.left_s = 0.0  # of its period, when it was looked at

    def bound(self, budget: Budget) -> None:
        """The budget is this now. What is used stays used; but one of other periods is another budget, and new."""
        self.units = budget.amount
        self.capacity = budget.amount * MICRO
        self.full = self.capacity * MINUTE_S
        self.soft = int(budget.soft_ratio * self.capacity)
        self.soft_over = self.soft * MINUTE_S
        if self.every != budget.period:
            self.every = budget.period
            self.began_s = self.ends_s = 0  # look in which one we are
            self.put(0)

    def look(self, now: float) -> int:
        at_s = now + self._wall.offset_s
        if at_s >= self.ends_s:
            began_s, self.ends_s = periods.bounds(self.every, int(at_s // 1))
            if began_s > self.began_s:
                self.began_s, self.over = began_s, 0
        self.left_s = self.ends_s - at_s
        self.used = self.over // MINUTE_S
        return self.began_s

    def put(self, used: int) -> None:
        """So much is used, as of the last look."""
        self.used, self.over = used, used * MINUTE_S

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
