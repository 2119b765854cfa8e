"""What a tenant may use and how far it has: the body of `/v1/usage` for itself, and of the admin API with all counters."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.metering import Metering
from policies.state.views import FlowView, MeterView, ShareView

ORDER = ("reserved", "extra", "refunded", "settled", "written_off", "held", "used", "soft", "denied", "denied_shadow")
COUNTERS = ("held", "reserved", "extra", "refunded", "settled", "written_off")


def of_caller(metering: Metering, tenant: str, key: str) -> dict[str, Any]:
    """What a client may see: its tenant's and its own key's, nothing of other keys."""
    now, hidden = time.monotonic(), {"key"}
    meters = [view for view in metering.meters_of(tenant, now) if view.scope not in hidden or view.part == key]
    slots = [view for view in metering.slots_of(tenant) if view.scope not in hidden or view.part == key]
    return {
        "tenant": tenant,
        "key": key,
        "limits": [_meter(view) for view in meters if view.period == "minute"],
        "budgets": [_meter(view) for view in meters if view.period != "minute"],
        "concurrency": [_slots(view.scope, view.part, view.cap, view.used) for view in slots],
        "queue": _queue(metering, tenant),
    }


@dataclass(frozen=True, slots=True)
class Seen:
    """What the core shows at one moment, of all tenants together: `flows` by tenant, and every share with all it was served."""

    flows: Mapping[str, Sequence[FlowView]]
    shares: Sequence[tuple[ShareView, float, float]]  # with the sums of costs and of weights


def seen(flows: Iterable[FlowView], shares: Iterable[ShareView]) -> Seen:
    """Grouped and added up once, however many tenants are looked at."""
    by_tenant: dict[str, list[FlowView]] = {}
    for flow in flows:
        by_tenant.setdefault(flow.tenant, []).append(flow)
    return Seen(by_tenant, [(view, sum(view.served.values()), sum(view.weights.values())) for view in shares])


def of_tenant(metering: Metering, tenant: str, seen: Seen) -> dict[str, Any]:
    """What an operator sees: of all keys, with the sums since the start."""
    meters = metering.meters_of(tenant, time.monotonic())
    return {
        "tenant": tenant,
        "mode": metering.mode_of(tenant),
        "degraded": metering.leasing.down,
        "replicas": replicas(metering),
        "limits": [_counted(view) for view in meters if view.period == "minute"],
        "budgets": [_counted(view) for view in meters if view.period != "minute"],
        "concurrency": [_slots(view.scope, view.part, view.cap, view.used) for view in metering.slots_of(tenant)],
        "queue": {**_queue(metering, tenant), "classes": _classes(seen.flows.get(tenant, ()))},
        "shares": [
            _share(tenant, *share) for share in seen.shares if share[0].partition == metering.partition_of(tenant)
        ],
    }


def replicas(metering: Metering) -> dict[str, int]:
    """How many gateways an answer speaks for, and how many there are: what each has for itself the others are not told."""
    return {"here": 1, "live": metering.leasing.replicas}


def _share(tenant: str, view: ShareView, all_served: float, all_weights: float) -> dict[str, Any]:
    """What it had of a class, and what its weight gives it beside the others; null: it asked for nothing."""
    served, weight = view.served.get(tenant, 0.0), view.weights.get(tenant)
    return {
        "pool": view.pool,
        "class": view.band,
        "cost": round(served, 3),
        "of": round(all_served, 3),
        "share": part(served, all_served),
        "fair_share": None if weight is None else part(weight, all_weights),
    }


def part(some: float, whole: float) -> float:
    """What part of the whole it is, in ten-thousandths."""
    return round(some / whole, 4) if whole else 0.0


def _classes(flows: Iterable[FlowView]) -> dict[str, dict[str, int]]:
    """What waits in each class, of all pools together."""
    made: dict[str, dict[str, int]] = {}
    for flow in flows:
        held = made.setdefault(flow.band, {"queued": 0, "queued_bytes": 0})
        held["queued"] += flow.queued
        held["queued_bytes"] += flow.queued_bytes
    return made


def _meter(view: MeterView) -> dict[str, Any]:
    return {
        "scope": f"{view.scope}.{view.metric}",
        **({"of": view.part} if view.part else {}),
        "limit": view.limit,
        "period": view.period,
        "capacity": view.capacity,
        "used": round(view.used, 3),
        "left": round(view.left, 3),
        "reset_s": round(view.reset_s, 3),
    }


def _counted(view: MeterView) -> dict[str, Any]:
    sums = {name: round(getattr(view, name), 3) for name in COUNTERS}
    return {**_meter(view), **sums, "denied": {"enforce": view.denied, "shadow": view.denied_shadow}}


def _slots(scope: str, part: str, cap: int, used: int) -> dict[str, Any]:
    return {"scope": scope, **({"of": part} if part else {}), "limit": cap, "used": used}


def _queue(metering: Metering, tenant: str) -> dict[str, Any]:
    account = metering.account_of(tenant)
    return {
        "queued": account.queued,
        "queued_bytes": account.queued_bytes,
        "max_queued": account.max_queued,
        "max_queued_bytes": account.max_queued_bytes,
    }


class Sums:
    """The counters of all limits for the metrics, by (tenant, scope, metric): added up once for each scrape, which begins
    with the first of `ORDER`.

    `label` is the tenant's name in metrics.
    """

    def __init__(self, metering: Metering, label: Callable[[str], str]) -> None:
        self._metering = metering
        self._label = label
        self._sums: dict[tuple[str, str, str], dict[str, float]] = {}

    def of(self, name: str) -> Iterable[tuple[tuple[str, str, str], float]]:
        """One counter of each, as they were when it was asked for the first of `ORDER`."""
        if name == ORDER[0]:
            self._sums = {}
            for view in self._metering.meters(time.monotonic()):
                self._add(view)
        return [(key, sums[name]) for key, sums in self._sums.items()]

    def _add(self, view: MeterView) -> None:
        tenant = self._label(view.tenant) if view.tenant else ""  # of what all share there is no tenant
        sums = self._sums.setdefault((tenant, view.scope, view.metric), {})
        for name in ORDER:
            sums[name] = sums.get(name, 0.0) + getattr(view, name)
