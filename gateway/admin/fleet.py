"""The fleet as an operator sees it: what was configured, what is found, what runs. In steps that do not grow with the load."""

from typing import Any

from gateway.admin.answers import load_of, moment
from gateway.admin.operations import Operations
from gateway.config.fleet import Endpoint
from gateway.endpoints.directory import Standing
from gateway.endpoints.scrape import Report
from gateway.usage import replicas


def fleet(operations: Operations) -> dict[str, Any]:
    """Every configured endpoint."""
    standings = dict(operations.standings())
    outstanding = {view.name: load_of(view) for view in operations.endpoints()}
    reports = {report.name: report for report in operations.reports()}
    return {
        "endpoints": [
            {
                **_configured(endpoint),
                **_standing(standings[endpoint.name]),
                "outstanding": outstanding.get(endpoint.name),  # null: it gets nothing and holds nothing
                **_told(reports[endpoint.name]),
            }
            for endpoint in operations.configured().config.endpoints
        ]
    }


def member(operations: Operations, name: str) -> dict[str, Any]:
    """What has become of one of them."""
    standing = dict(operations.standings())[name]
    told = {"replicas": replicas(operations.metering())}
    return {"name": name, "state": _state(standing), "since": moment(standing.since_s), **told}


def _configured(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "url": endpoint.url,  # never with a user or a password: the configuration takes none
        "engine": endpoint.engine,
        "pools": endpoint.pools,
        "partition": endpoint.partition,
    }


def _standing(standing: Standing) -> dict[str, Any]:
    failed = {"at": moment(standing.failed_s), "cause": standing.failure} if standing.failure else None
    return {
        "state": _state(standing),
        "since": moment(standing.since_s),
        "healthy": standing.up,
        "suspected": standing.suspected,
        "last_failure": failed,
    }


def _state(standing: Standing) -> str:
    return "draining" if standing.drained else "up" if standing.up else "down"


def _told(report: Report) -> dict[str, Any]:
    """What it said of its load and of itself; null for what it did not say, or not lately."""
    load, facts = report.load, report.facts
    figures = load and {
        "running": load.running,
        "waiting": load.waiting,
        "kv_usage": load.kv_usage,
        "age_s": round(report.load_age_s, 3),
    }
    found = {
        "context_tokens": facts.context_tokens or None,
        "kv_tokens": facts.kv_tokens or None,
        "block_tokens": facts.block_tokens or None,
    }
    return {"load": figures, "stale": report.stale, "found": found}
