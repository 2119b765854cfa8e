"""Which limits there are, and what of them each request is given, holds and has cost in the end.

The limits of a request are put together once for its (tenant, key, model) and kept until the settings change. Then all
is counted anew from the live requests, but for the meters: what is used stays used under a new limit (tenancy.md 11).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain
from math import inf
from typing import Final

from policies import quota
from policies.decisions import Reject
from policies.events import Cancelled, Finished, Outcome
from policies.leasing import Leasing
from policies.state import limits
from policies.state.blocks import Block
from policies.state.books import Books
from policies.state.claims import Account, Charge, Claim, Density, Slots, Terms
from policies.state.endings import reject
from policies.state.invariants import InvariantError, audit_limits
from policies.state.ledger import Attempt
from policies.state.meters import Bucket, Meter, Purse, Rule, Wall
from policies.state.parked import Parked
from policies.state.tariffs import Tariff
from policies.state.tickets import Ticket
from policies.state.views import AccountView, MeterView, SlotView, Standing
from policies.types import RATES, Budget, Cost, InferenceRequest, Limits, Model, Settings, Tenant

PLAIN = Cost()  # for limits that all tenants share
_REFUSED: Final = Outcome.REFUSED  # members found in their class cost as much as a call
_FAILED: Final = Outcome.FAILED


class Metering:
    """Writes meters and claims. `limited` False: nobody has any limit, and nothing else needs to be asked.
    `counts_tokens`: somebody has one of tokens."""

    def __init__(self, books: Books) -> None:
        self.limited = self.counts_tokens = False
        self.leasing = Leasing(books)
        self._books = books
        self._wall = Wall()
        self._unbooked: list[Tariff] = []
        self._settings: Settings | None = None
        self._meters: dict[str, dict[Rule, Meter]] = {}  # by tenant
        self._terms: dict[tuple[str, str, str], Terms | None] = {}
        self._slots: dict[tuple[str, str, str], Slots] = {}
        self._accounts: dict[str, Account] = {}
        self._densities: dict[tuple[str, str], Density] = {}

    # ---- what the core tells

    def reserve(self, request: InferenceRequest, now: float, due_s: float) -> Claim | Reject | Parked | None:
        """Hold what the request may need, or refuse it, or let it wait for the store; it waits until `due_s` already.

        None: nothing limits it.
        """
        terms = self._terms_of(request)
        if terms is None:
            return None
        claim = quota.reserve(terms, request, now, due_s)
        if isinstance(claim, Claim):
            return claim
        if isinstance(claim, quota.Short):
            return self.leasing.park(request, claim.needs, now, due_s)
        return self._refused(request, claim, now)

    def _refused(self, request: InferenceRequest, denied: quota.Denied, now: float) -> Reject:
        """A limit is in the way: say which, and when it will not be."""
        queues = self._books.closed.get(request.tenant, self._books.models).get(request.model)
        why = reject(self._books, request, queues[0] if queues else None, denied.reason, now).why
        return Reject(
            request_id=request.id,
            reason=denied.reason,
            retry_after_s=denied.wait_s if denied.wait_s < inf else None,
            why=why,
            shortage=denied.shortage,
        )

    def finished(self, ticket: Ticket, attempt: Attempt, event: Finished, now: float) -> None:
        """It has ended after it was answered, well or not: table 3.3."""
        claim = ticket.claim
        if claim is None or not claim.holds:
            return
        prompt, output, outcome = event.prompt_tokens, event.output_tokens, event.outcome
        if outcome is _REFUSED:
            claim.charge((0, 0, 0), now)
        elif outcome is _FAILED and not (attempt.answered or event.seen_tokens or prompt):
            claim.refund(now)
        else:
            if output is None:
                output = event.seen_tokens
            if prompt is None:
                claim.charge((max(1, claim.input_tokens), 0, output), now)
            else:
                cached = event.cached_tokens or 0
                claim.charge((prompt - cached if prompt > cached else 0, cached, output), now)
        if prompt:
            request = ticket.request
            if request.text_bytes and not request.media:
                claim.terms.density.learn(request.text_bytes, prompt)

    def cancelled(self, ticket: Ticket, event: Cancelled, now: float) -> None:
        """Its client has left: what the engine was given is paid for."""
        claim, attempt = ticket.claim, ticket.attempt
        if claim is None:
            return
        if attempt is not None and (event.sent or attempt.answered):
            claim.charge((claim.input_tokens, 0, event.seen_tokens), now)
        else:
            claim.refund(now)

    def set_clock(self, offset_s: float) -> None:
        """UTC is so far ahead of the driver's clock."""
        self._wall.offset_s = offset_s

    # ---- the settings

    def change(self, settings: Settings, now: float) -> None:
        """The settings are these now. Only what they say of others than before is looked at."""
        was_limited, before, self._settings = self.limited, self._settings, settings
        whose = limits.changed(before, settings)
        self.leasing.change(settings)
        self._book()
        self._forget_terms(whose)
        if before is not None and not isinstance(whose, limits.Everybody):
            self._change_models(limits.changed_models(before, settings), settings)
        tenants, models = settings.tenants.values(), settings.models.values()
        self.limited = any(map(limits.is_limited, tenants)) or any(model.limits != Limits() for model in models)
        self._bound_meters(settings, whose, now)
        self.counts_tokens = limits.counts_tokens(settings)
        if self.limited or was_limited:
            self._judge_anew(whose)

    def _change_models(self, names: list[str], settings: Settings) -> None:
        """New limits that all share, of models that had some: for who comes from now on. Slots are the same, more or fewer of them."""
        for key in [key for key in self._terms if key[2] in names]:
            del self._terms[key]
        for name in names:
            slots = self._slots.get(("model", "", name))
            model = settings.models.get(name)
            if slots is not None and model is not None and model.limits.max_concurrency is not None:
                slots.cap = slots.whole = model.limits.max_concurrency

    def _forget_terms(self, whose: Container[str]) -> None:
        """What was made of the limits of these tenants is made anew when it is asked for."""
        for key in [key for key in self._terms if key[0] in whose]:
            terms = self._terms.pop(key)
            if terms is not None and terms.tariff is not None:
                terms.tariff.end()
        for scope in [scope for scope in self._slots if scope[1] in whose]:
            del self._slots[scope]
            self.leasing.slots.drop(scope)
        for tenant in [tenant for tenant in self._accounts if tenant in whose]:
            del self._accounts[tenant]

    def _bound_meters(self, settings: Settings, whose: Container[str], now: float) -> None:
        """New limits for those that have one; what a tenant that is gone has used is kept until it has drained."""
        for tenant, meters in list(self._meters.items()):
            if tenant not in whose and tenant in settings.tenants:
                continue
            for rule, meter in list(meters.items()):
                meter.look(now)
                limit = limits.limit_of(settings, rule)
                if limit is not None:
                    self._bound(meter, limit)
                elif not tenant or tenant in settings.tenants or not meter.used:
                    del meters[rule]
                    self.leasing.forget(rule)
            if not meters:
                del self._meters[tenant]

    def _judge_anew(self, whose: Container[str]) -> None:
        """Count their live requests under the new settings. What they have reserved they settle as it was reserved."""
        if not isinstance(whose, limits.Everybody) and not whose:
            return
        books = self._books
        tickets = [ticket for ticket in books.tickets.values() if ticket.request.tenant in whose]
        found = [(ticket, self._terms_of(ticket.request)) for ticket in tickets]
        lanes = any(ticket.own_lane != (terms.lane if terms is not None else "") for ticket, terms in found)
        # From the head of each line on, so that none leaves a dead entry in a line to which it comes back.
        waiting = [ticket for queue in books.pools.values() for ticket in queue.waiting()] if lanes else []
        moved = [ticket for ticket in waiting if ticket.request.tenant in whose]
        for ticket in moved:
            books.dequeue(ticket)
        for ticket, terms in found:
            if terms is not None or ticket.claim is not None:
                self._give(ticket, terms or Terms(Account(None, None)))
        for ticket in moved:
            books.enqueue(ticket)

    def _give(self, ticket: Ticket, terms: Terms) -> None:
        claim, left_s = ticket.claim or Claim(terms), self._books.leaves_s(ticket)
        ticket.take_claim(claim, terms)
        if ticket.attempt is not None:
            claim.free_slot()  # those that all tenants share are the same as before
            claim.take_slot()
        elif ticket.line is not None:
            claim.count_queued(1, ticket.request.body_bytes)
            leaves_s = self._books.leaves_s(ticket)
            if leaves_s != left_s:
                self._books.timers.set(ticket, leaves_s)

    # ---- terms

    def _limit(self, rule: Rule) -> limits.Limit | None:
        return limits.limit_of(self._settings, rule) if self._settings is not None else None

    def _terms_of(self, request: InferenceRequest) -> Terms | None:
        key = (request.tenant, request.key, request.model)
        try:
            return self._terms[key]
        except KeyError:
            terms = self._terms[key] = self._made(*key)
            return terms

    def _made(self, tenant: str, key: str, model: str) -> Terms | None:
        settings = self._settings
        if settings is None:
            raise InvariantError("the first event must be SettingsChanged")
        owner = settings.tenants.get(tenant) or Tenant(id=tenant)
        served = settings.models.get(model) or Model(name=model)
        scopes = list(limits.scopes(owner, key, served))
        charges = list(self._charges(owner, scopes))
        slots = [self._slots_of(scope) for scope in scopes if scope.limits.max_concurrency is not None]
        if not charges and not slots and not limits.bounds_queues(owner):
            return None
        terms = Terms(self._account(owner), charges, slots)
        terms.reserve, terms.shadow = owner.reserve, owner.mode == "shadow"
        terms.queue_timeout_s = owner.queue_timeout_s
        terms.without_store = self.leasing.policy(settings, tenant) if charges else ""
        terms.tariff = Tariff(charges, self._wall, self._unbooked) if charges and not terms.without_store else None
        terms.context_tokens = served.context_tokens
        terms.density = self._densities.setdefault((tenant, model), terms.density)
        terms.lane = key if any(each.scope == "key" for each in slots) else ""
        return terms

    def _account(self, owner: Tenant) -> Account:
        account = self._accounts.get(owner.id)
        if account is None:
            account = self._accounts[owner.id] = Account(owner.max_queued, owner.max_queued_bytes)
        return account

    def _charges(self, owner: Tenant, scopes: list[limits.Scope]) -> Iterator[Charge]:
        for scope in scopes:
            for metric in RATES:
                if getattr(scope.limits, metric) is not None:
                    meter = self._meter(Rule(scope.name, scope.tenant, scope.part, metric))
                    yield limits.charge(meter, metric, owner.cost if scope.tenant else PLAIN)
        for budget in owner.budgets:
            yield limits.charge(self._meter(Rule("tenant", owner.id, "", budget.id)), "budget", owner.cost)

    def _slots_of(self, scope: limits.Scope) -> Slots:
        key = (scope.name, scope.tenant, scope.part)
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = Slots(scope.name, scope.part, scope.limits.max_concurrency or 0)
            if self.leasing.fleet is not None:
                self.leasing.slots.take(key, slots)
        return slots

    def _meter(self, rule: Rule) -> Meter:
        meters = self._meters.setdefault(rule.tenant, {})
        meter = meters.get(rule)
        if meter is None:
            limit = self._limit(rule)
            if limit is None:
                raise InvariantError(f"there is no limit {rule}")
            is_budget = isinstance(limit, Budget)
            if self.leasing.fleet is not None:
                meter = self.leasing.block(rule, is_budget, self._wall)
            else:
                meter = Purse(rule, self._wall) if is_budget else Bucket(rule)
            meters[rule] = meter
            self._bound(meter, limit)
        return meter

    def _all_meters(self) -> Iterator[tuple[Rule, Meter]]:
        return chain.from_iterable(meters.items() for meters in self._meters.values())

    def _bound(self, meter: Meter, limit: limits.Limit) -> None:
        if isinstance(meter, Block) and self._settings is not None:
            meter.bound(limit, self.leasing.policy(self._settings, meter.rule.tenant))
        else:
            limits.bound(meter, limit)

    # ---- out

    def standing(self, whose: tuple[str, str, str], now: float, *, apart: bool) -> Standing | None:
        """How far what limits the requests of this tenant, key and model is used, for a client to know; None: nothing does.

        `apart` as for `quota.standing`.
        """
        terms = self._terms.get(whose) or self._made(*whose)
        return quota.standing(terms, now, apart=apart) if terms is not None and terms.charges else None

    def _book(self) -> None:
        """Bring the sums of all meters up to date."""
        while self._unbooked:
            self._unbooked.pop().book()

    def meters(self, now: float) -> list[MeterView]:
        """Every limit of which anything was ever asked."""
        self._book()
        return [limits.view(meter, self._limit(rule), now) for rule, meter in self._all_meters()]

    def meters_of(self, tenant: str, now: float) -> list[MeterView]:
        """Every limit of a tenant, asked for or not."""
        owner = self._settings.tenants.get(tenant) if self._settings is not None else None
        mine = limits.rules_of(owner) if owner is not None else ()
        self._book()
        return [limits.view(self._meter(rule), self._limit(rule), now) for rule in mine]

    def slots_of(self, tenant: str) -> list[SlotView]:
        """Its slots, and how many are taken."""
        owner = self._settings.tenants.get(tenant) if self._settings is not None else None
        scopes = limits.scopes_of(owner) if owner is not None else ()
        mine = [self._slots_of(scope) for scope in scopes if scope.limits.max_concurrency is not None]
        return [SlotView(scope=slots.scope, part=slots.part, cap=slots.whole, used=slots.used) for slots in mine]

    def mode_of(self, tenant: str) -> str | None:
        """Whether its rates and budgets are enforced or only counted; None: there is no such tenant."""
        owner = self._settings.tenants.get(tenant) if self._settings is not None else None
        return owner.mode if owner is not None else None

    def account_of(self, tenant: str) -> AccountView:
        """What waits of a tenant with limits."""
        owner = self._settings.tenants.get(tenant) if self._settings is not None else None
        account = self._account(owner) if owner is not None else Account(None, None)
        return AccountView(
            queued=account.queued,
            queued_bytes=account.queued_bytes,
            max_queued=account.max_queued,
            max_queued_bytes=account.max_queued_bytes,
        )

    def check(self) -> None:
        """Raise InvariantError unless all meters, slots and counts agree with the live requests (I1, I2)."""
        self._book()
        audit_limits(self._books, self._all_meters(), self._slots, self._accounts)
