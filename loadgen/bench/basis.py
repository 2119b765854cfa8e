"""run.json of a run: what its report stands on besides the requests. No key, no userinfo of a URL."""

import os
import platform
import resource
import time
from importlib.metadata import PackageNotFoundError, version

import msgspec

from loadgen import offer
from loadgen.bench.extra import PROBE
from loadgen.bench.facts import Facts, facts
from loadgen.bench.options import BenchOptions, shown
from loadgen.bench.preflight import Ready
from loadgen.report.folder import Basis
from loadgen.scenario import Scenario
from loadgen.schedule import Schedule


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered, and the goals it is judged by. Sending ends at `total_s`."""

    scenario: Scenario
    schedule: Schedule
    facts: Facts
    total_s: float

    @property
    def window_s(self) -> tuple[float, float]:
        """Start and end of what is measured."""
        return self.schedule.window_start_s, self.schedule.window_end_s


def plan(scenario: Scenario, schedule: Schedule, *, drawn: bool = True) -> Plan:
    """With what is to be known of it; a schedule that was not `drawn` from the scenario has its own end."""
    known = facts(schedule)
    total_s = max(schedule.window_end_s, known.last_s, scenario.total_s if drawn else 0.0)
    return Plan(scenario=scenario, schedule=schedule, facts=known, total_s=total_s)


def basis(options: BenchOptions, plan: Plan, ready: Ready, salt: str, began_s: float) -> Basis:
    """All of it; how the run ends is added when it has."""
    return msgspec.structs.replace(
        offer.basis(plan.scenario, plan.schedule, plan.facts.cells),
        started=utc(began_s),
        target=_target(options, ready),
        environment=environment(),
        salt=salt,
        length_control=ready.control,
        allowed=options.allow,
        warnings=(*ready.warnings, *_warnings(options, plan.scenario, salt)),
        template_tokens=ready.sizes.template_tokens,
    )


def utc(moment_s: float) -> str:
    """ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment_s))


def environment() -> dict[str, object]:
    """The client's machine."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        forebay = version("forebay")
    except PackageNotFoundError:
        forebay = ""
    return {
        "forebay": forebay,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "open_files": soft,
    }


def _target(options: BenchOptions, ready: Ready) -> dict[str, object]:
    by_tenant = {tenant: [one.shown for one in those] for tenant, those in ready.targets.items() if tenant != PROBE}
    every = list(dict.fromkeys(url for urls in by_tenant.values() for url in urls))
    own = {tenant: urls for tenant, urls in by_tenant.items() if urls != every}
    any_target = next(iter(ready.targets.values()))[0]
    return {
        "driver": "bench",
        "urls": every,
        **({"urls_by_tenant": own} if own else {}),
        "model": any_target.model,
        "api": options.api,
        "context_tokens": ready.context_tokens,
        "prompts": msgspec.to_builtins(ready.sizes),
        "workers": options.workers,
        "timeout_s": options.timeout_s,
        "max_open": options.max_open,
        "retries": options.retries,
        "honour_retry_after": options.honour_retry_after,
        "primed": options.prime,
        "probe_per_s": options.probe,
        "scraped": [shown(url) for url in options.scrape],
    }


def _warnings(options: BenchOptions, scenario: Scenario, salt: str) -> list[str]:
    told = []
    if options.allow:
        told.append(f"broken rules that are allowed: {', '.join(options.allow)} (--allow)")
    if not salt:
        told.append("no salt: what other runs have left in caches is measured too (--salt none)")
    if scenario.telling:
        told.append(
            f"max_tokens follows from the planned answer for {', '.join(scenario.telling)}: "
            "the server is told lengths that no client knows"
        )
    if options.retries:
        told.append(f"retries of a request, at most {options.retries}: latency still counts from the intended arrival")
    return told
