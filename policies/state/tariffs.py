"""What requests of one tenant with one key to one model count against their limits, held and settled with few steps for each.

Meters that count the same are one group: what they count is worked out once for all of them. Nothing is looked at before: a meter's
`over` is brought up to the time and moved. Only that decides; the sums of a meter (reserved, refunded, settled) follow from how many
tokens were held and used in all, so those are added up here and booked when somebody wants to know. Whatever is not the usual case is
done meter by meter, as everywhere else: a limit in the way, more used than was held, a budget whose period is over, other limits than
those under which it was held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from policies.state.meters import MICRO, MINUTE_S, Bucket, Meter, Purse, Wall

if TYPE_CHECKING:
    from policies.state.claims import Charge

Take = tuple[int, int, int, tuple[Bucket, ...], tuple[Purse, ...]]
"""As `over` counts, for the request, for a token of input and one of output; and the rates and budgets that count so."""
Back = tuple[int, int, int, tuple[Meter, ...]]
"""The same for a token of input, a cached one and one of output, where tokens count; and the meters that count so."""


class Tariff:
    """`periods`: those of the budgets in it, another mapping when one of them is another. `unbooked`: those of all tenants of
    which anything is not booked."""

    __slots__ = (
        "_backs",
        "_buckets",
        "_cached",
        "_charges",
        "_closed",
        "_closed_answer",
        "_closed_prompt",
        "_held",
        "_held_answer",
        "_held_prompt",
        "_output",
        "_purses",
        "_takes",
        "_unbooked",
        "_uncached",
        "_until_s",
        "_wall",
        "periods",
    )

    def __init__(self, charges: Sequence[Charge], wall: Wall, unbooked: list[Tariff]) -> None:
        groups: dict[tuple[int, int, int, int], list[Meter]] = {}
        for each in charges:
            amounts = (each.flat, each.per_input, each.per_cached, each.per_output)
            groups.setdefault(amounts, []).append(each.meter)
        self._takes: list[Take] = []
        self._backs: list[Back] = []
        for (flat, per_input, per_cached, per_output), meters in groups.items():
            buckets = tuple([meter for meter in meters if isinstance(meter, Bucket)])
            purses = tuple([meter for meter in meters if isinstance(meter, Purse)])
            self._takes.append((flat * MINUTE_S, per_input * MINUTE_S, per_output * MINUTE_S, buckets, purses))
            if not flat:
                tokens = (per_input * MINUTE_S, per_cached * MINUTE_S, per_output * MINUTE_S)
                self._backs.append((*tokens, (*buckets, *purses)))
        self._charges = tuple(charges)
        self._buckets = [each.meter for each in charges if isinstance(each.meter, Bucket)]
        self._purses = [each.meter for each in charges if isinstance(each.meter, Purse)]
        self._wall = wall
        self._unbooked = unbooked
        self._until_s = -inf if self._purses else inf  # by the wall clock, the periods hold
        self.periods: Mapping[Meter, int] = {}
        self._forget_sums()

    def _forget_sums(self) -> None:
        """Nothing was held or settled that is not booked."""
        self._held = self._held_prompt = self._held_answer = 0
        self._closed = self._closed_prompt = self._closed_answer = 0
        self._uncached = self._cached = self._output = 0

    def end(self) -> None:
        """Other limits hold from now on: what is open is settled with care."""
        self._until_s = -inf

    def take(self, prompt: int, answer: int, now: float) -> bool:
        """Hold what a request of so many tokens may need, of every limit; nothing if one of them is in the way."""
        if now + self._wall.offset_s >= self._until_s:
            self._turn(now)
        now_us = int(now * MICRO)
        for flat, per_input, per_output, buckets, purses in self._takes:
            need = flat + per_input * prompt + per_output * answer
            for meter in buckets:
                over = meter.over - (now_us - meter.seen_us) * meter.rate
                over = need if over < 0 else over + need
                if over > meter.full:
                    self._put_back(prompt, answer, meter)
                    return False
                meter.over = over
                meter.seen_us = now_us
            for purse in purses:
                over = purse.over + need
                if over > purse.full:
                    self._put_back(prompt, answer, purse)
                    return False
                purse.over = over
        if not self._held:
            self._unbooked.append(self)
        self._held += 1
        self._held_prompt += prompt
        self._held_answer += answer
        return True

    def _turn(self, now: float) -> None:
        """The period of a budget is over, or none is known yet."""
        self.periods = {purse: purse.look(now) for purse in self._purses}
        self._until_s = float(min(purse.ends_s for purse in self._purses))

    def soft(self, now: float) -> tuple[str, ...]:
        """Budgets of which so much is used that the client is told."""
        if now + self._wall.offset_s >= self._until_s:
            self._turn(now)
        for purse in self._purses:
            if purse.over >= purse.soft_over:
                return tuple([each.rule.metric for each in self._purses if each.over >= each.soft_over])
        return ()

    def idle(self, now: float) -> bool:
        """Whether nothing is in use of any rate, and of no budget so much that the client is told."""
        now_us = int(now * MICRO)
        for meter in self._buckets:
            if meter.over > (now_us - meter.seen_us) * meter.rate:
                return False
        return not self._purses or not self.soft(now)

    def _put_back(self, prompt: int, answer: int, until: Meter) -> None:
        """What was taken before this meter was not."""
        for flat, per_input, per_output, buckets, purses in self._takes:
            for meter in (*buckets, *purses):
                if meter is until:
                    return
                meter.over -= flat + per_input * prompt + per_output * answer

    def holdings(self, prompt: int, answer: int) -> Iterator[tuple[Meter, int]]:
        """What is held of each meter for so many tokens."""
        for each in self._charges:
            yield each.meter, each.flat or each.per_input * prompt + each.per_output * answer

    def charge(
        self, held: tuple[int, int], used: tuple[int, int, int], periods: Mapping[Meter, int], now: float
    ) -> None:
        """What was held for so many tokens of prompt and answer has cost input tokens that were not cached, cached ones,
        and output tokens."""
        if periods is not self.periods or now + self._wall.offset_s >= self._until_s:
            self._settle(held, used, periods, now)
            return
        prompt, answer = held
        uncached, cached, output = used
        if not self._closed:
            self._unbooked.append(self)
        self._closed += 1
        self._closed_prompt += prompt
        self._closed_answer += answer
        self._uncached += uncached
        self._cached += cached
        self._output += output
        for per_input, per_cached, per_output, meters in self._backs:
            # Only what is not negative is multiplied: compiled, anything else takes the slow way.
            cost = per_input * uncached + per_cached * cached + per_output * output
            less = per_input * prompt + per_output * answer - cost
            if less >= 0:
                for meter in meters:
                    meter.over -= less
            else:
                for meter in meters:
                    meter.exceed(-less // MINUTE_S, periods.get(meter, 0), now)

    def _settle(
        self, held: tuple[int, int], used: tuple[int, int, int], periods: Mapping[Meter, int], now: float
    ) -> None:
        """The same with care."""
        uncached, cached, output = used
        for each, (meter, amount) in zip(self._charges, self.holdings(*held), strict=True):
            if each.flat:  # it was one request, and is
                meter.settled += amount
                continue
            actual = each.per_input * uncached + each.per_cached * cached + each.per_output * output
            meter.settle(amount, actual, periods.get(meter, 0), now)

    def refund(self, held: tuple[int, int], periods: Mapping[Meter, int], now: float) -> None:
        """It has cost nothing, and counts as no request."""
        for meter, amount in self.holdings(*held):
            meter.settle(amount, 0, periods.get(meter, 0), now)

    def book(self) -> None:
        """Have the sums of the meters say what was held and settled here."""
        for each in self._charges:
            meter = each.meter
            meter.reserved += (
                each.flat * self._held + each.per_input * self._held_prompt + each.per_output * self._held_answer
            )
            tokens = each.per_input * self._uncached + each.per_cached * self._cached + each.per_output * self._output
            meter.settled += each.flat * self._closed + tokens
            meter.refunded += each.per_input * self._closed_prompt + each.per_output * self._closed_answer - tokens
        self._forget_sums()
