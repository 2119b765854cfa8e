"""What one live request holds of its tenant's limits: reservations, slots, a place in the tenant's queue bounds.

A claim is made when the request comes and settled once, however it ends: `refund` where it used nothing, `charge` for
what it used. Slots are taken with each attempt and given back with it. Whoever finds no slot waits; where it waits is
noted at the slots, so that just there somebody looks again when one comes free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Final

from policies.decisions import Reason, Reject
from policies.state.drain import DRAIN_WINDOW_S, Drain
from policies.state.meters import Meter
from policies.state.standing import Standing
from policies.state.tariffs import Tariff
from policies.types import Reserve, record

if TYPE_CHECKING:
    from policies.state.queues import PoolQueue

FIRST_BYTES_PER_TOKEN = 3.0
CAUTION = 0.9  # of the mean
HALF_LIFE = 500  # requests
LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 1.0, 8.0
NO_PERIODS: Final[Mapping[Meter, int]] = {}
_NEW = log(2) / HALF_LIFE  # weight of the newest


class Density:
    """Bytes of text per token of one tenant's prompts to one model, as they are reserved for: rather too few."""

    __slots__ = ("_mean", "bytes_per_token")

    def __init__(self) -> None:
        self.bytes_per_token = FIRST_BYTES_PER_TOKEN
        self._mean = FIRST_BYTES_PER_TOKEN / CAUTION

    def learn(self, text_bytes: int, tokens: int) -> None:
        """A prompt of so many bytes was so many tokens."""
        self._mean += (text_bytes / tokens - self._mean) * _NEW
        self.bytes_per_token = min(MOST_BYTES_PER_TOKEN, max(LEAST_BYTES_PER_TOKEN, CAUTION * self._mean))


class Hurry:
    """Somebody waits for what a store may have."""

    __slots__ = ("wanted",)

    def __init__(self) -> None:
        self.wanted = False


class Slots:
    """How many requests of one scope may run at a time. Of `whole` in all `cap` may run here; those are fewer where
    replicas share them, and `missed` counts who found none since more were asked for. Until `vain_until_s` the store has
    no more."""

    __slots__ = ("blocked", "cap", "hurry", "missed", "part", "scope", "used", "vain_until_s", "whole")

    def __init__(self, scope: str, part: str, cap: int) -> None:
        self.scope = scope
        self.part = part  # the key or the model
        self.cap = self.whole = cap
        self.used = self.missed = 0
        self.vain_until_s = 0.0
        self.hurry: Hurry | None = None  # nothing is decided by it: the driver's asking is no event
        self.blocked: dict[object, PoolQueue] = {}  # where somebody waits for one

    def miss(self) -> None:
        """Somebody found none."""
        if self.cap < self.whole:
            self.missed += 1
            if self.hurry is not None:
                self.hurry.wanted = True

    def unblock(self) -> list[PoolQueue]:
        """Where somebody has waited for one. There is one now."""
        waiting = list(self.blocked.values())
        self.blocked = {}
        return waiting


class Account:
    """What waits of one tenant, and how much may."""

    __slots__ = ("drain", "max_queued", "max_queued_bytes", "queued", "queued_bytes")

    def __init__(self, max_queued: int | None, max_queued_bytes: int | None) -> None:
        self.drain = Drain(DRAIN_WINDOW_S)
        self.max_queued = max_queued
        self.max_queued_bytes = max_queued_bytes
        self.queued = 0
        self.queued_bytes = 0

    def takes(self, body_bytes: int) -> bool:
        """Whether one more may wait."""
        if self.max_queued is not None and self.queued >= self.max_queued:
            return False
        return self.max_queued_bytes is None or self.queued_bytes + body_bytes <= self.max_queued_bytes


@record
class Charge:
    """A meter, and what it counts in micro-units: for the request, and for each token. `own`: the tenant's, not one
    that all share."""

    meter: Meter
    own: bool
    flat: int = 0
    per_input: int = 0
    per_cached: int = 0
    per_output: int = 0


class Terms:
    """What limits the requests of one tenant with one key to one model.

    `most_unnamed` bounds the answer that is reserved for where the client names no most; None: nothing does.
    `slots`: one list for all that were ever made for them, so that those of a model come and go for whoever waits.
    `lane`: the key, where it has slots of its own and must not hide the tenant's other keys in a queue.
    `by_metric`: the meters of rates, one group a metric; `by_kind`: of requests, and of all that counts tokens;
    `budgets`: the other meters.
    `idle` and `idle_apart`: what a client is told while nothing is in use, once it was asked for.
    `without_store`: what holds when the store of several replicas cannot be asked; empty: there is none. Then there is a
    `tariff`.
    """

    __slots__ = (
        "account",
        "budgets",
        "by_kind",
        "by_metric",
        "charges",
        "context_tokens",
        "counts_tokens",
        "density",
        "idle",
        "idle_apart",
        "lane",
        "most_unnamed",
        "queue_timeout_s",
        "reserve",
        "shadow",
        "slots",
        "tariff",
        "without_store",
    )

    def __init__(self, account: Account, charges: Sequence[Charge], slots: list[Slots]) -> None:
        self.account = account
        self.charges = tuple(charges)
        self.slots = slots
        rates = [charge.meter for charge in charges if not charge.meter.is_budget]
        metrics = dict.fromkeys(meter.rule.metric for meter in rates)
        self.by_metric = [[meter for meter in rates if meter.rule.metric == metric] for metric in metrics]
        kinds = ([meter for meter in rates if (meter.rule.metric == "rpm") is one] for one in (True, False))
        self.by_kind = [meters for meters in kinds if meters]
        self.budgets = [charge.meter for charge in charges if charge.meter.is_budget]
        self.counts_tokens = any(charge.per_input or charge.per_output for charge in charges)
        caps = [charge.meter.capacity // (4 * charge.per_output) for charge in charges if charge.per_output]
        self.most_unnamed = min(caps) if caps else None
        self.reserve = Reserve()
        self.shadow = False
        self.queue_timeout_s: float | None = None
        self.context_tokens = 0
        self.density = Density()
        self.lane = ""
        self.idle: Standing | None = None
        self.idle_apart: Standing | None = None
        self.without_store = ""
        self.tariff: Tariff | None = None


class Claim:
    """What one request holds. `input_tokens` and `output_tokens`, of all `sequences`, is what was reserved for: of all meters of a
    `tariff`, in these `periods`; or of the meters that are `open`."""

    __slots__ = ("_holds", "input_tokens", "open", "output_tokens", "periods", "sequences", "tariff", "terms", "waited")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.tariff: Tariff | None = None
        self.periods = NO_PERIODS
        self.open: list[tuple[Charge, int, int]] = []  # amount and period of each reservation
        self.input_tokens = 0
        self.output_tokens = 0
        self.sequences = 1
        self.waited = False  # for a slot: its wait says nothing about the engines
        self._holds: tuple[Slots, ...] = ()

    # ---- reservations

    @property
    def holds(self) -> bool:
        """Whether anything is held."""
        return self.tariff is not None or bool(self.open)

    def holdings(self) -> Iterator[tuple[Meter, int]]:
        """What is held of each meter."""
        if self.tariff is not None:
            yield from self.tariff.holdings(self.input_tokens, self.output_tokens)
        for charge, amount, _ in self.open:
            yield charge.meter, amount

    def refund(self, now: float) -> None:
        """It has cost nothing, and counts as no request."""
        tariff, self.tariff = self.tariff, None
        if tariff is not None:
            tariff.refund((self.input_tokens, self.output_tokens), self.periods, now)
        for charge, amount, period in self.open:
            charge.meter.settle(amount, 0, period, now)
        self.open = []

    def charge(self, tokens: tuple[int, int, int], now: float) -> None:
        """It has cost so many input tokens that were not cached, cached ones, and output tokens."""
        tariff, self.tariff = self.tariff, None
        if tariff is not None:
            tariff.charge((self.input_tokens, self.output_tokens), tokens, self.periods, now)
            return
        uncached, cached, output = tokens
        for charge, amount, period in self.open:
            if charge.flat:  # it was one request, and is
                charge.meter.settled += amount
                continue
            actual = charge.per_input * uncached + charge.per_cached * cached + charge.per_output * output
            charge.meter.settle(amount, actual, period, now)
        self.open = []

    def charge_as_told(self, prompt: int, cached: int, output: int, now: float) -> None:
        """It has cost what its engine has counted."""
        if cached > prompt:  # no engine has more of a prompt than it has
            cached = prompt
        self.charge((prompt - cached, cached, output), now)

    # ---- slots, and the tenant's queues

    def slot_free(self) -> bool:
        """Whether it could run as far as slots go."""
        return all(slots.used < slots.cap for slots in self.terms.slots)

    def slots_to_come(self, now: float) -> bool:
        """Whether none that it lacks is taken for certain: the store may lease more."""
        lacking = self.lacking()
        return bool(lacking) and all(slots.cap < slots.whole and now >= slots.vain_until_s for slots in lacking)

    def lacking(self) -> list[Slots]:
        """Of which none is free."""
        return [slots for slots in self.terms.slots if slots.used >= slots.cap]

    def has_slot(self, pool: PoolQueue) -> bool:
        """The same; if it cannot, `pool` is looked at again when it can."""
        for slots in self.terms.slots:
            if slots.used >= slots.cap:
                slots.miss()
                slots.blocked[pool.key] = pool
                self.waited = pool.capped = True
                return False
        return True

    def take_slot(self) -> bool:
        """It runs. True when it has the last slot of some."""
        self._holds = tuple(self.terms.slots)
        last = False
        for slots in self._holds:
            slots.used += 1
            last = last or slots.used >= slots.cap
        return last

    def take_also(self, slots: Slots) -> None:
        """There are such slots now, and it runs."""
        self._holds = (*self._holds, slots)
        slots.used += 1

    def free_slot(self) -> list[PoolQueue]:
        """It runs no more, if it did. Where somebody has waited for that."""
        waiting: list[PoolQueue] = []
        for slots in self._holds:
            slots.used -= 1
            if slots.blocked:
                waiting += slots.unblock()
        self._holds = ()
        return waiting

    def may_not_wait(self, body_bytes: int) -> Reason | None:
        """Why it may not join its tenant's queue."""
        account = self.terms.account
        if account.takes(body_bytes):
            return None
        return Reason.CONCURRENCY if account.max_queued == 0 and not self.slot_free() else Reason.QUEUE_FULL

    def when_to_ask_again(self, refused: Reject, now: float) -> Reject:
        """Where its tenant's own queue was full: the time that takes to empty, at the pace at which it went lately."""
        if refused.reason is not Reason.QUEUE_FULL:
            return refused
        account = self.terms.account
        wait_s = account.drain.wait_s(account.queued, now)
        return Reject(request_id=refused.request_id, reason=refused.reason, retry_after_s=wait_s, why=refused.why)

    def went(self, now: float) -> None:
        """It has waited, and goes."""
        self.terms.account.drain.add(1, now)

    def count_queued(self, sign: int, body_bytes: int) -> None:
        """It waits, or waits no more."""
        self.terms.account.queued += sign
        self.terms.account.queued_bytes += sign * body_bytes
