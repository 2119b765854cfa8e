"""What requests of one tenant with one key to one model count against their limits, held and settled with few steps for each.

Meters that count the same are one group: what they count is worked out once for all of them. Nothing is looked at before:
a meter's `end` is compared with the time and moved. Whatever is not the usual case is done meter by meter, as everywhere else: a limit
in the way, more used than was held, a budget whose period is over, other limits than those under which it was held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from policies.state.meters import MICRO, MINUTE_S, Meter, Purse, Wall

if TYPE_CHECKING:
    from policies.state.claims import Charge

Group = tuple[int, int, int, int, tuple[Meter, ...]]
"""Micro-units for the request, for a token of input, a cached one, one of output; and the meters that count so."""


class Tariff:
    """`periods`: those of the budgets in it, another mapping when one of them is another."""

    __slots__ = ("_groups", "_purses", "_until_s", "_wall", "periods")

    def __init__(self, charges: Sequence[Charge], wall: Wall) -> None:
        groups: dict[tuple[int, int, int, int], list[Meter]] = {}
        for each in charges:
            groups.setdefault((each.flat, each.per_input, each.per_cached, each.per_output), []).append(each.meter)
        self._groups: list[Group] = [(*amounts, tuple(meters)) for amounts, meters in groups.items()]
        self._purses = [each.meter for each in charges if isinstance(each.meter, Purse)]
        self._wall = wall
        self._until_s = -inf if self._purses else inf  # by the wall clock, the periods hold
        self.periods: Mapping[Meter, int] = {}

    def end(self) -> None:
        """Other limits hold from now on: what is open is settled with care."""
        self._until_s = -inf

    def take(self, prompt: int, answer: int, now: float) -> bool:
        """Hold what a request of so many tokens may need, of every limit; nothing if one of them is in the way."""
        if now + self._wall.offset_s >= self._until_s:
            self._turn(now)
        now_us = int(now * MICRO)
        for flat, per_input, _, per_output, meters in self._groups:
            amount = flat or per_input * prompt + per_output * answer
            need = amount * MINUTE_S
            for meter in meters:
                base, end = now_us * meter.rate, meter.end
                if end < base:
                    end = base
                end += need
                if end - base > meter.full:
                    self._put_back(prompt, answer, meter)
                    return False
                meter.end = end
                meter.reserved += amount
        return True

    def _turn(self, now: float) -> None:
        """The period of a budget is over, or none is known yet."""
        self.periods = {purse: purse.look(now) for purse in self._purses}
        self._until_s = float(min(purse.ends_s for purse in self._purses))

    def soft(self, now: float) -> tuple[str, ...]:
        """Budgets of which so much is used that the client is told."""
        if now + self._wall.offset_s >= self._until_s:
            self._turn(now)
        return tuple([purse.rule.metric for purse in self._purses if purse.end >= purse.soft_end])

    def _put_back(self, prompt: int, answer: int, until: Meter) -> None:
        """What was taken before this meter was not."""
        for meter, amount in self.holdings(prompt, answer):
            if meter is until:
                return
            meter.end -= amount * MINUTE_S
            meter.reserved -= amount

    def holdings(self, prompt: int, answer: int) -> Iterator[tuple[Meter, int]]:
        """What is held of each meter for so many tokens."""
        for flat, per_input, _, per_output, meters in self._groups:
            for meter in meters:
                yield meter, flat or per_input * prompt + per_output * answer

    def charge(
        self, held: tuple[int, int], used: tuple[int, int, int], periods: Mapping[Meter, int], now: float
    ) -> None:
        """What was held for so many tokens of prompt and answer has cost input tokens that were not cached, cached ones,
        and output tokens."""
        prompt, answer = held
        uncached, cached, output = used
        usual = periods is self.periods and now + self._wall.offset_s < self._until_s
        for flat, per_input, per_cached, per_output, meters in self._groups:
            if flat:  # it was one request, and is
                for meter in meters:
                    meter.settled += flat
                continue
            amount = per_input * prompt + per_output * answer
            actual = per_input * uncached + per_cached * cached + per_output * output
            if usual and actual <= amount:
                less = amount - actual
                end_less = less * MINUTE_S
                for meter in meters:
                    meter.settled += actual
                    meter.refunded += less
                    meter.end -= end_less
                continue
            for meter in meters:
                meter.settle(amount, actual, periods.get(meter, 0), now)

    def refund(self, held: tuple[int, int], periods: Mapping[Meter, int], now: float) -> None:
        """It has cost nothing, and counts as no request."""
        for meter, amount in self.holdings(*held):
            meter.settle(amount, 0, periods.get(meter, 0), now)
