"""What each request is given of the limits that hold for it, holds of them and has cost in the end.

When the settings change, the live requests of tenants that have changed are counted anew, but for the meters: what is used stays used
under a new limit (tenancy.md 11).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import inf
from typing import Final

from policies import quota
from policies.decisions import Reject
from policies.events import Cancelled, Finished, Outcome
from policies.leasing import Leasing
from policies.limiting import Limiting, Whose
from policies.state import limits
from policies.state.books import Books
from policies.state.claims import Account, Claim, Slots, Terms
from policies.state.endings import reject
from policies.state.invariants import audit_limits
from policies.state.ledger import Attempt
from policies.state.parked import Parked
from policies.state.standing import Standing
from policies.state.tickets import Ticket
from policies.state.views import AccountView, MeterView, SlotView
from policies.types import SHARED, InferenceRequest, Limits, Settings, Tenant

_REFUSED: Final = Outcome.REFUSED  # members found in their class cost as much as a call
_FAILED: Final = Outcome.FAILED


class Metering:
    """Writes meters and claims. `limited` False: nobody has any limit, and nothing else needs to be asked.
    `counts_tokens`: somebody has one of tokens."""

    def __init__(self, books: Books) -> None:
        self.limited = self.counts_tokens = False
        self.leasing = Leasing(books)
        self._books = books
        self._limiting = Limiting(self.leasing)
        self._settings: Settings | None = None

    # ---- what the core tells

    def reserve(self, request: InferenceRequest, now: float, due_s: float) -> Claim | Reject | Parked | None:
        """Hold what the request may need, or refuse it, or let it wait for the store; it waits until `due_s` already.

        None: nothing limits it.
        """
        terms = self._limiting.terms_of((request.tenant, request.key, request.model))
        if terms is None:
            return None
        claim = quota.reserve(terms, request, now, due_s)
        if isinstance(claim, Claim):
            if now >= due_s:
                self.leasing.waited(claim, now)
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
                claim.charge_as_told(prompt, event.cached_tokens or 0, output, now)
        if prompt:
            request = ticket.request
            if request.text_bytes and not request.media:
                claim.terms.density.learn(request.text_bytes, prompt)

    def cancelled(self, ticket: Ticket, event: Cancelled, now: float) -> None:
        """Its client has left: what the engine was given is paid for."""
        claim, attempt = ticket.claim, ticket.attempt
        if claim is None:
            return
        if attempt is None or not (event.sent or attempt.answered):
            claim.refund(now)
        elif event.prompt_tokens is None:
            claim.charge((claim.input_tokens, 0, event.seen_tokens), now)
        else:
            claim.charge_as_told(event.prompt_tokens, event.cached_tokens or 0, event.seen_tokens, now)

    def set_clock(self, offset_s: float) -> None:
        """UTC is so far ahead of the driver's clock."""
        self._limiting.wall.offset_s = offset_s

    # ---- the settings

    def change(self, settings: Settings, now: float) -> None:
        """The settings are these now. Only what they say of others than before is looked at."""
        was_limited, before, self._settings = self.limited, self._settings, settings
        whose, models = limits.changed(before, settings), limits.changed_models(before, settings)
        self.leasing.change(settings)
        new = self._limiting.change(settings, whose, models, now)
        self.limited = any(map(limits.is_limited, settings.tenants.values())) or any(
            model.limits != Limits() for model in settings.models.values()
        )
        self.counts_tokens = limits.counts_tokens(settings)
        if self.limited or was_limited:
            self._share_slots(settings, models, whose, new)
            self._judge_anew(whose)

    def _share_slots(
        self, settings: Settings, models: Container[str], whose: Container[str], new: Mapping[str, Slots]
    ) -> None:
        """What runs takes the `new` slots of its model, and who holds nothing holds a claim from now on. Those of `whose` are judged
        anew."""
        limited = {name for name, model in settings.models.items() if name in models and model.limits != Limits()}
        for ticket in self._books.tickets.values() if limited else ():
            request, claim = ticket.request, ticket.claim
            if request.model not in limited or request.tenant in whose:
                continue
            if claim is None:
                self._give(ticket, self._limiting.terms_of(_whose(ticket)))
            elif ticket.attempt is not None and request.model in new:
                claim.take_also(new[request.model])

    def _judge_anew(self, whose: Container[str]) -> None:
        """Count their live requests under the new settings. What they have reserved they settle as it was reserved."""
        if not whose:
            return
        books = self._books
        tickets = [ticket for ticket in books.tickets.values() if ticket.request.tenant in whose]
        found = [(ticket, self._limiting.terms_of(_whose(ticket))) for ticket in tickets]
        lanes = any(ticket.own_lane != (terms.lane if terms is not None else "") for ticket, terms in found)
        # From the head of each line on, so that none leaves a dead entry in a line to which it comes back.
        waiting = [ticket for queue in books.pools.values() for ticket in queue.waiting()] if lanes else []
        moved = [ticket for ticket in waiting if ticket.request.tenant in whose]
        for ticket in moved:
            books.dequeue(ticket)
        for ticket, terms in found:
            self._give(ticket, terms)
        for ticket in moved:
            books.enqueue(ticket)

    def _give(self, ticket: Ticket, terms: Terms | None) -> None:
        if terms is None:
            if ticket.claim is None:
                return
            terms = self._limiting.terms_of_none(_whose(ticket))
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

    # ---- out

    def standing(self, whose: tuple[str, str, str], now: float, *, apart: bool) -> Standing | None:
        """How far what limits the requests of this tenant, key and model is used, for a client to know; None: nothing does.

        `apart` as for `quota.standing`.
        """
        terms = self._limiting.terms_of(whose)
        return quota.standing(terms, now, apart=apart) if terms is not None and terms.charges else None

    def meters(self, now: float) -> list[MeterView]:
        """Every limit of which anything was ever asked."""
        limiting = self._limiting
        return [limits.view(meter, limiting.limit(rule), now) for rule, meter in limiting.meters()]

    def meters_of(self, tenant: str, now: float) -> list[MeterView]:
        """Every limit of a tenant, asked for or not."""
        owner, limiting = self._owner(tenant), self._limiting
        mine = limits.rules_of(owner) if owner is not None else ()
        limiting.book()
        return [limits.view(limiting.meter(rule), limiting.limit(rule), now) for rule in mine]

    def slots_of(self, tenant: str) -> list[SlotView]:
        """Its slots, and how many are taken."""
        owner = self._owner(tenant)
        scopes = limits.scopes_of(owner) if owner is not None else ()
        mine = [self._limiting.slots_of(scope) for scope in scopes if scope.limits.max_concurrency is not None]
        return [SlotView(scope=slots.scope, part=slots.part, cap=slots.whole, used=slots.used) for slots in mine]

    def mode_of(self, tenant: str) -> str | None:
        """Whether its rates and budgets are enforced or only counted; None: there is no such tenant."""
        owner = self._owner(tenant)
        return owner.mode if owner is not None else None

    def partition_of(self, tenant: str) -> str:
        """Where its requests go."""
        owner = self._owner(tenant)
        return owner.partition if owner is not None else SHARED

    def account_of(self, tenant: str) -> AccountView:
        """What waits of a tenant with limits."""
        owner = self._owner(tenant)
        account = self._limiting.account(owner) if owner is not None else Account(None, None)
        return AccountView(
            queued=account.queued,
            queued_bytes=account.queued_bytes,
            max_queued=account.max_queued,
            max_queued_bytes=account.max_queued_bytes,
        )

    def check(self) -> None:
        """Raise InvariantError unless all meters, slots and counts agree with the live requests (I1, I2)."""
        limiting = self._limiting
        audit_limits(self._books, limiting.meters(), limiting.slots, limiting.accounts)

    def _owner(self, tenant: str) -> Tenant | None:
        return self._settings.tenants.get(tenant) if self._settings is not None else None


def _whose(ticket: Ticket) -> Whose:
    request = ticket.request
    return request.tenant, request.key, request.model
