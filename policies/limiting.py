"""Which limits there are, and the terms that they make for each (tenant, key, model): put together once, kept until the settings change.

Terms may be made anew while requests wait or run under older ones. Both share the account of their tenant, and one list of slots: what
a model allows all tenants together changes in that list, so nobody who waits has to be looked at.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import chain

from policies.leasing import Leasing
from policies.state import limits
from policies.state.blocks import Block
from policies.state.claims import Account, Charge, Density, Slots, Terms
from policies.state.invariants import InvariantError
from policies.state.meters import Bucket, Meter, Purse, Rule, Wall
from policies.state.tariffs import Tariff
from policies.types import RATES, Budget, Cost, Model, Settings, Tenant

Whose = tuple[str, str, str]  # a tenant, its key, and the model
ScopeKey = tuple[str, str, str]  # scope, tenant, part
PLAIN = Cost()  # for limits that all tenants share


class Limiting:
    """Writes which meters, slots and accounts there are, and `unbooked`: where their sums are not up to date."""

    def __init__(self, leasing: Leasing) -> None:
        self.wall = Wall()
        self.slots: dict[ScopeKey, Slots] = {}
        self.accounts: dict[str, Account] = {}
        self._leasing = leasing
        self._settings: Settings | None = None
        self._unbooked: list[Tariff] = []
        self._meters: dict[str, dict[Rule, Meter]] = {}  # by tenant
        self._terms: dict[Whose, Terms | None] = {}
        self._unlimited: dict[Whose, Terms] = {}
        self._slots_of_terms: dict[Whose, list[Slots]] = {}
        self._densities: dict[tuple[str, str], Density] = {}

    # ---- terms

    def terms_of(self, whose: Whose) -> Terms | None:
        """What limits their requests; None: nothing does."""
        try:
            return self._terms[whose]
        except KeyError:
            terms = self._made(whose)
            limited = terms.charges or terms.slots or limits.bounds_queues(self._owner(whose[0]))
            found = self._terms[whose] = terms if limited else None
            return found

    def terms_of_none(self, whose: Whose) -> Terms:
        """For those that are limited by nothing any more, and hold something of what limited them."""
        terms = self._unlimited.get(whose)
        if terms is None:
            terms = self._unlimited[whose] = self._made(whose)
        return terms

    def _made(self, whose: Whose) -> Terms:
        tenant, key, model = whose
        owner, served, settings = self._owner(tenant), self._served(model), self._current
        scopes = list(limits.scopes(owner, key, served))
        charges = list(self._charges(owner, scopes))
        slots = self._slots_of_terms.get(whose)
        if slots is None:
            capped = [scope for scope in scopes if scope.limits.max_concurrency is not None]
            slots = self._slots_of_terms[whose] = [self.slots_of(scope) for scope in capped]
        terms = Terms(self.account(owner), charges, slots)
        terms.reserve, terms.shadow = owner.reserve, owner.mode == "shadow"
        terms.queue_timeout_s = owner.queue_timeout_s
        terms.without_store = self._leasing.policy(settings, tenant) if charges else ""
        terms.tariff = Tariff(charges, self.wall, self._unbooked) if charges and not terms.without_store else None
        terms.context_tokens = served.context_tokens
        terms.density = self._densities.setdefault((tenant, model), terms.density)
        terms.lane = key if any(each.scope == "key" for each in slots) else ""
        return terms

    def account(self, owner: Tenant) -> Account:
        """What waits of a tenant."""
        account = self.accounts.get(owner.id)
        if account is None:
            account = self.accounts[owner.id] = Account(owner.max_queued, owner.max_queued_bytes)
        return account

    def slots_of(self, scope: limits.Scope) -> Slots:
        """Those of a scope that has some."""
        key = (scope.name, scope.tenant, scope.part)
        slots = self.slots.get(key)
        if slots is None:
            slots = self.slots[key] = Slots(scope.name, scope.part, 0)
            self._cap(key, slots, scope.limits.max_concurrency or 0)
        return slots

    def _cap(self, key: ScopeKey, slots: Slots, cap: int) -> None:
        slots.cap = slots.whole = cap
        if self._leasing.fleet is not None:
            self._leasing.slots.take(key, slots)

    def _charges(self, owner: Tenant, scopes: list[limits.Scope]) -> Iterator[Charge]:
        for scope in scopes:
            for metric in RATES:
                if getattr(scope.limits, metric) is not None:
                    meter = self.meter(Rule(scope.name, scope.tenant, scope.part, metric))
                    yield limits.charge(meter, metric, owner.cost if scope.tenant else PLAIN)
        for budget in owner.budgets:
            yield limits.charge(self.meter(Rule("tenant", owner.id, "", budget.id)), "budget", owner.cost)

    def _owner(self, tenant: str) -> Tenant:
        return self._current.tenants.get(tenant) or Tenant(id=tenant)

    def _served(self, model: str) -> Model:
        return self._current.models.get(model) or Model(name=model)

    # ---- meters

    def meter(self, rule: Rule) -> Meter:
        """That of a limit."""
        meters = self._meters.setdefault(rule.tenant, {})
        meter = meters.get(rule)
        if meter is None:
            limit = self.limit(rule)
            if limit is None:
                raise InvariantError(f"there is no limit {rule}")
            is_budget = isinstance(limit, Budget)
            if self._leasing.fleet is not None:
                meter = self._leasing.block(rule, is_budget, self.wall)
            else:
                meter = Purse(rule, self.wall) if is_budget else Bucket(rule)
            meters[rule] = meter
            self._bound(meter, limit)
        return meter

    def limit(self, rule: Rule) -> limits.Limit | None:
        """What the settings say of it."""
        return limits.limit_of(self._settings, rule) if self._settings is not None else None

    def meters(self) -> Iterator[tuple[Rule, Meter]]:
        """Every limit of which anything was ever asked, with its sums up to date."""
        self.book()
        return chain.from_iterable(meters.items() for meters in self._meters.values())

    def book(self) -> None:
        """Bring the sums of all meters up to date."""
        while self._unbooked:
            self._unbooked.pop().book()

    def _bound(self, meter: Meter, limit: limits.Limit) -> None:
        if isinstance(meter, Block):
            meter.bound(limit, self._leasing.policy(self._current, meter.rule.tenant))
        else:
            limits.bound(meter, limit)

    # ---- the settings

    def change(
        self, settings: Settings, whose: Container[str], models: Container[str], now: float
    ) -> Mapping[str, Slots]:
        """The settings are these now, others than before for these tenants and models. Returns the slots of models that had none."""
        self._settings = settings
        self.book()
        for key in [key for key in self._terms if key[0] in whose or key[2] in models]:
            terms = self._terms.pop(key)
            if terms is not None and terms.tariff is not None:
                terms.tariff.end()
        self._unlimited.clear()
        for key in [key for key in self._slots_of_terms if key[0] in whose]:
            del self._slots_of_terms[key]
        for scope in [scope for scope in self.slots if scope[1] in whose]:
            del self.slots[scope]
            self._leasing.slots.drop(scope)
        for tenant in [tenant for tenant in self.accounts if tenant in whose]:
            del self.accounts[tenant]
        self._bound_meters(settings, limits.EVERYBODY if models is limits.EVERYBODY else whose, now)
        return self._change_shared_slots(settings, models)

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
                elif not tenant or tenant in settings.tenants or not meter.in_use:
                    del meters[rule]
                    self._leasing.forget(rule)
            if not meters:
                del self._meters[tenant]

    def _change_shared_slots(self, settings: Settings, models: Container[str]) -> Mapping[str, Slots]:
        """Slots of models: as many as now, none any more, or new ones, which are returned."""
        gone: dict[str, Slots] = {}
        for scope, slots in list(self.slots.items()):
            name = scope[2]
            if scope[0] == "model" and name in models:
                cap = limits.cap_of(settings, name)
                if cap is not None:
                    self._cap(scope, slots, cap)
                else:
                    gone[name] = self.slots.pop(scope)
                    self._leasing.slots.drop(scope)
        new = {
            name: self.slots_of(limits.Scope("model", "", name, model.limits))
            for name, model in settings.models.items()
            if name in models and model.limits.max_concurrency is not None and ("model", "", name) not in self.slots
        }
        for key, held in self._slots_of_terms.items() if gone or new else ():
            if key[2] in gone and gone[key[2]] in held:
                held.remove(gone[key[2]])
            elif key[2] in new:
                held.append(new[key[2]])
        return new

    @property
    def _current(self) -> Settings:
        if self._settings is None:
            raise InvariantError("the first event must be SettingsChanged")
        return self._settings
