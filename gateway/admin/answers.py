"""The JSON bodies of the admin listener, described with examples in docs/admin-api.md. Fields are only ever added."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from gateway.admin.operations import Configured, Operations, Reloaded
from gateway.config import Config, ConfigError, Tenant
from gateway.config.effective import effective
from gateway.endpoints.scrape import Report
from gateway.tenants import KeyView
from policies.state.views import EndpointView, FlowView

TERMS = ("received", "completed", "rejected", "expired", "cancelled", "failed", "queued", "inflight")
FIXED = {"cache-control": "no-store", "x-content-type-options": "nosniff"}  # of every answer in JSON


def json_answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`body` as a JSON answer that nobody stores."""
    return web.Response(
        body=msgspec.json.encode(body) + b"\n",
        status=status,
        content_type="application/json",
        headers={**FIXED, **(headers or {})},
    )


def error_answer(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """`{"error": {"code", "message"}}`; the message is one of ours, never an echo."""
    return json_answer({"error": {"code": code, "message": message}}, status, headers)


def health(operations: Operations, version: str, uptime_s: float) -> dict[str, Any]:
    """Phase, request counts, and every endpoint with its load and what its probes say."""
    totals = operations.totals()
    return {
        "phase": operations.phase(),
        "version": version,
        "uptime_s": round(uptime_s, 1),
        "requests": {term: getattr(totals, term) for term in TERMS},
        "endpoints": _endpoints(operations),
    }


def _endpoints(operations: Operations) -> list[dict[str, Any]]:
    loads = {view.name: load_of(view) for view in operations.endpoints()}
    engines = {report.name: _engine(report) for report in operations.reports()}
    return [
        {
            "name": name,
            "up": standing.up,
            "suspected": standing.suspected,
            "failures": standing.failures,
            "cause": standing.cause,
            "outstanding": loads.get(name),  # null: it is down and holds nothing
            "engine": engines.get(name),
        }
        for name, standing in operations.standings()
    ]


def load_of(view: EndpointView) -> dict[str, int]:
    """What is outstanding on an endpoint, and how much may be."""
    return {
        "sequences": view.sequences,
        "max_seqs": view.max_seqs,
        "prefill_tokens": view.prefill_tokens,
        "max_prefill_tokens": view.max_prefill_tokens,
    }


def _engine(report: Report) -> dict[str, Any]:
    """What it said of itself; null for what it did not say, or not lately."""
    facts, load = report.facts, report.load
    return {
        "context_tokens": facts.context_tokens or None,
        "kv_tokens": facts.kv_tokens or None,
        "block_tokens": facts.block_tokens or None,
        "stale": report.stale,
        "running": load and load.running,
        "waiting": load and load.waiting,
        "kv_usage": load and load.kv_usage,
        "age_s": round(report.load_age_s, 3) if load else None,
    }


def reloaded(outcome: Reloaded) -> dict[str, Any]:
    """What a reload has changed, or everything that is wrong."""
    if outcome.errors:
        return {"errors": [_error(error) for error in outcome.errors]}
    return {"checksum": outcome.checksum, "changed": outcome.changed}


def config(configured: Configured) -> dict[str, Any]:
    """Every value in force, and what was wrong with the last files that were not taken over."""
    failure = configured.failure
    return {
        "checksum": configured.checksum,
        "loaded_at": moment(configured.loaded_s),
        "last_failure": failure and {"at": moment(failure.at_s), "errors": [_error(one) for one in failure.errors]},
        "config": effective(configured.config),
    }


def tenants(config: Config) -> dict[str, Any]:
    """Every tenant in a few words."""
    return {"tenants": [_tenant(tenant) for tenant in (config.tenants or {}).values()]}


def _tenant(tenant: Tenant) -> dict[str, Any]:
    return {
        "id": tenant.id,
        "name": tenant.name,
        "state": tenant.state,
        "class": tenant.class_,
        "class_ceiling": tenant.class_ceiling,
        "weight": tenant.weight,
        "partition": tenant.partition,
        "mode": tenant.mode,
        "models": [grant.name for grant in tenant.models],
        "keys": [key.id for key in tenant.keys],
    }


def keys(views: Iterable[KeyView]) -> dict[str, Any]:
    """Every key and when it was last used; neither it nor its hash."""
    return {"keys": [_key(view) for view in views]}


def _key(view: KeyView) -> dict[str, str | None]:
    return {
        "id": view.id,
        "tenant": view.tenant,
        "name": view.name,
        "state": view.state,
        "blocked_by": view.blocked_by,
        "expires": None if view.expires_s is None else moment(view.expires_s),
        "last_use": None if view.last_use_s is None else moment(view.last_use_s),
    }


def _error(error: ConfigError) -> dict[str, Any]:
    return {name: getattr(error, name) for name in ("file", "line", "column", "path", "message")}


def moment(at_s: float) -> str:
    """Unix time as it is written in answers."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def queues(operations: Operations) -> dict[str, Any]:
    """Every queue that holds something, what is outstanding on each endpoint, and the sums."""
    flows = operations.queues()
    now_s = time.monotonic()  # the clock the core is driven by
    return {
        "queued": sum(flow.queued for flow in flows),
        "queued_bytes": sum(flow.queued_bytes for flow in flows),
        "flows": [_flow(flow, now_s) for flow in flows],
        "endpoints": [{"name": view.name, "up": view.up, **load_of(view)} for view in operations.endpoints()],
    }


def _flow(flow: FlowView, now_s: float) -> dict[str, str | int | float]:
    return {
        "pool": flow.pool,
        "tenant": flow.tenant,
        "class": flow.band,
        "queued": flow.queued,
        "queued_bytes": flow.queued_bytes,
        "oldest_s": round(max(0.0, now_s - flow.oldest_s), 3),
    }
