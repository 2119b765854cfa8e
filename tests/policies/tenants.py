"""A core with tenants that have limits, and short ways to say what comes and what became of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from policies.decisions import Decision, Reject
from policies.events import Arrived, Bounced, Cancelled, Cause, Finished, FirstToken, Outcome
from policies.state.views import MeterView
from policies.types import Limits, Model, Settings, Tenant
from tests.policies import given


def limited(*tenants: Tenant, models: Sequence[Model] = (), **more: Any) -> Settings:
    return replace(
        given.settings(**more),
        tenants={tenant.id: tenant for tenant in tenants},
        models={model.name: model for model in models},
    )


def acme(burst_s: float = 60.0, **more: Any) -> Tenant:
    """A tenant whose rates are given as keywords beside the rest."""
    rates = {name: more.pop(name) for name in ("rpm", "tpm", "itpm", "otpm", "max_concurrency") if name in more}
    return Tenant(id="acme", burst_s=burst_s, limits=Limits(**rates), **more)


class Quotas(given.World):
    """One large endpoint, unless told otherwise; requests are acme's, of 10 tokens exactly and 30 at most to come."""

    def __init__(self, *tenants: Tenant, models: Sequence[Model] = (), seqs: int = 500, **more: Any) -> None:
        endpoint = given.endpoint("x", seqs=seqs, prefill=10_000_000)
        super().__init__(endpoint, settings=limited(*tenants, models=models, **more))

    def ask(self, name: str, at: float = 0.0, **facts: Any) -> Decision | None:
        facts = {"tenant": "acme", "tokens": 10, "max_output": 30, **facts}
        mine = [
            decision
            for decision in self.happen(Arrived(request=given.request(name, at=at, **facts)), at)
            if decision.request_id == name
        ]
        return mine[0] if mine else None

    def told(self, name: str, at: float = 0.0, **facts: Any) -> str:
        """`ok`, `queued`, or why not."""
        decision = self.ask(name, at, **facts)
        if decision is None:
            return "queued"
        return decision.reason.value if isinstance(decision, Reject) else "ok"

    def refused(self, name: str, at: float = 0.0, **facts: Any) -> Reject:
        decision = self.ask(name, at, **facts)
        assert isinstance(decision, Reject), decision
        return decision

    def end(self, name: str, at: float, outcome: Outcome = Outcome.COMPLETED, **counts: Any) -> list[Decision]:
        return self.happen(Finished(request_id=name, attempt=1, outcome=outcome, **counts), at)

    def leave(self, name: str, at: float, sent: bool = True, seen: int = 0, **told: int) -> list[Decision]:
        return self.happen(Cancelled(request_id=name, sent=sent, seen_tokens=seen, **told), at)

    def token(self, name: str, at: float) -> list[Decision]:
        return self.happen(FirstToken(request_id=name, attempt=1), at)

    def come_back(self, name: str, at: float, attempt: int = 1, cause: Cause = Cause.STATUS_500) -> list[Decision]:
        return self.happen(Bounced(request_id=name, attempt=attempt, cause=cause), at)

    def meter(self, metric: str, now: float, scope: str = "tenant") -> MeterView:
        return next(view for view in self.core.metering.meters(now) if (view.scope, view.metric) == (scope, metric))

    def used(self, metric: str, now: float, scope: str = "tenant") -> float:
        return self.meter(metric, now, scope).used
