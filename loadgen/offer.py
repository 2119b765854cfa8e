"""What a command's options make of a scenario: found by name, changed field by field, faster or slower; and in words.

`--set a.b.c=value` changes one field. Lists whose elements have names are entered by name
(`tenants.chat.arrivals.rate=5`). The value is YAML.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadgen import scenario as scenarios
from loadgen.report.folder import Basis, Goal
from loadgen.scenario import Scenario, ScenarioError
from loadgen.schedule import Schedule
from loadgen.workload.summary import quantile
from loadgen.workload.words import listed, suggestion
from loadgen.workload.yaml_source import plain

Changes = list[tuple[str, Any]]
SCHEMA = "forebay.offer/1"


def named(name: str) -> Scenario:
    """The standard scenario of that name, or the one in that file (.yaml, .yml). ScenarioError."""
    if not name.endswith((".yaml", ".yml")):
        return scenarios.standard(name)
    try:
        return scenarios.load(Path(name).read_text("utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{name}: {getattr(error, 'strerror', None) or error}") from error


def changed(scenario: Scenario, changes: Changes) -> Scenario:
    """With those fields set. ScenarioError for a field that is not there, or a value that cannot be."""
    if not changes:
        return scenario
    made = set_in(msgspec.to_builtins(scenario), changes, ScenarioError)
    return scenarios.checked(made, "--set")


def traced(scenario: Scenario, path: Path) -> Scenario:
    """With its traces read from `path`, a file or a folder. ScenarioError where it has none."""
    if not scenario.reads_files:
        raise ScenarioError(f"--trace {path}: scenario {scenario.name} reads no trace")
    return scenario.with_trace(path)


def parsed(change: str) -> tuple[str, Any]:
    """`a.b.c=value` as path and value. ScenarioError."""
    path, equals, text = change.partition("=")
    if not equals or not path:
        raise ScenarioError(f"--set {change}: expected a.b.c=value")
    try:
        return path, plain(text)
    except yaml.YAMLError as error:
        raise ScenarioError(f"--set {change}: {error}") from error


def set_in(raw: Any, changes: Changes, error: type[Exception]) -> Any:
    """Plain values, changed in place. Raises `error`."""
    for path, value in changes:
        *steps, last = path.split(".")
        place = raw
        for step in steps:
            place = _entered(place, step, path, error)
        if not isinstance(place, dict):
            raise error(f"--set {path}: there is no such field")
        place[last] = value
    return raw


def scaled(
    scenario: Scenario, *, rate: float | None = None, scale: float | None = None, tenants: Iterable[str] = ()
) -> Scenario:
    """At `rate` requests/s in all, then `scale` times that; `tenants` are `NAME=FACTOR` of single ones. ScenarioError."""
    if rate is not None:
        scenario = scenario.at_rate(rate)
    if scale is not None:
        scenario = scenario.scaled(scale)
    for one in tenants:
        name, equals, text = one.partition("=")
        try:
            factor = float(text)
        except ValueError:
            factor = 0.0
        if not equals or not 0 < factor < float("inf"):
            raise ScenarioError(f"--scale-tenant {one}: expected NAME=FACTOR, a number above 0")
        named = [tenant.name for tenant in scenario.tenants]
        if name not in named:
            close = suggestion(name, named)
            raise ScenarioError(f"--scale-tenant {one}: no tenant is called {name}; there are {listed(named)}{close}")
        scenario = scenario.scaled(factor, only=name)
    return scenario


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens: of all requests, and how many the measured ones have."""

    total: int
    mean: float
    p50: int
    p90: int
    p99: int


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What would be offered. Counts are of all requests, `classes` and what a cache would know of the measured ones.

    `rate` is that of measured requests per s, the most there can be in a closed loop. `cached` are prompt tokens known to a cache
    without a limit, and their share. `tenants`: the largest first. `think_s` is a mean of later requests of a session.
    `telling`: tenants whose max_tokens tells the length of the answer. `schedule` is the sha256 of the requests.
    """

    schema: str = SCHEMA
    scenario: str
    seed: int
    requests: int
    measured: int
    window_s: float
    rate: float
    closed: bool
    prompts: Sizes
    answers: Sizes
    cached_tokens: int
    cached_share: float
    tenants: dict[str, int]
    classes: dict[str, int]
    sessions: int
    requests_per_session: float
    think_s: float | None
    salt: str
    telling: list[str]
    schedule: str


def offer(scenario: Scenario, schedule: Schedule) -> Offer:
    """Counted."""
    summary = schedule.summary()
    totals = summary.totals()
    window_s = schedule.window_end_s - schedule.window_start_s
    return Offer(
        scenario=scenario.name,
        seed=schedule.seed,
        requests=totals.requests,
        measured=totals.measured,
        window_s=window_s,
        rate=totals.measured / window_s,
        closed=scenario.closed,
        prompts=_sizes(totals.input_tokens, summary.inputs),
        answers=_sizes(totals.output_tokens, summary.outputs),
        cached_tokens=totals.ideal_cached_tokens,
        cached_share=totals.ideal_share,
        tenants=dict(sorted(totals.tenants.items(), key=lambda item: (-item[1], item[0]))),
        classes={name: summary.classes[name] for name in scenario.classes},
        sessions=totals.sessions,
        requests_per_session=summary.in_sessions / totals.sessions if totals.sessions else 0.0,
        think_s=summary.think_s / summary.turns if summary.turns else None,
        salt=scenario.salt,
        telling=scenario.telling,
        schedule=schedule.digest(),
    )


def described(scenario: Scenario, schedule: Schedule, *, json: bool = False) -> str:
    """What would be offered, in a few lines or as JSON: for `--dry-run`."""
    made = offer(scenario, schedule)
    if json:
        return msgspec.json.format(msgspec.json.encode(made), indent=1).decode() + "\n"
    loop = " at most, in a closed loop" if made.closed else ""
    lines = [
        f"{made.scenario}, seed {made.seed}: {made.requests:,} requests, {made.measured:,} of them measured in "
        f"{made.window_s:g} s ({made.rate:.2f}/s{loop})",
        f"prompt tokens: {made.prompts.total:,}; a measured request {_words(made.prompts)}; "
        f"{made.cached_tokens:,} ({made.cached_share:.1%}) of the measured ones known to a cache without a limit",
        f"output tokens: {made.answers.total:,}; a measured request {_words(made.answers)}",
        *_more(made),
        f"schedule: sha256 {made.schedule}",
    ]
    return "".join(line + "\n" for line in lines)


def _sizes(total: int, counts: dict[int, int]) -> Sizes:
    mean = sum(value * number for value, number in counts.items()) / max(1, sum(counts.values()))
    p50, p90, p99 = (quantile(counts, share) for share in (0.5, 0.9, 0.99))
    return Sizes(total=total, mean=mean, p50=p50, p90=p90, p99=p99)


def _words(sizes: Sizes) -> str:
    return f"mean {sizes.mean:,.0f}, p50 {sizes.p50:,}, p90 {sizes.p90:,}, p99 {sizes.p99:,}"


def _more(made: Offer) -> Iterable[str]:
    if len(made.tenants) > 1:
        shown = ", ".join(f"{name} {count / made.requests:.1%}" for name, count in list(made.tenants.items())[:8])
        yield f"tenants: {len(made.tenants)}; {shown}{', ...' if len(made.tenants) > 8 else ''}"
    if sum(count > 0 for count in made.classes.values()) > 1:
        yield "classes: " + ", ".join(f"{name} {count:,}" for name, count in made.classes.items())
    if made.sessions:
        yield f"sessions: {made.sessions:,}, {made.requests_per_session:.1f} requests each"
    if made.think_s is not None:
        yield f"thinking: {made.think_s:.1f} s before a later request, on average"
    if made.salt == "none":
        yield "salt: none; a run may find in the caches what another one left there"
    if made.telling:
        yield f"max_tokens tells the length of the answer for {', '.join(made.telling)}"


def _entered(place: Any, step: str, path: str, error: type[Exception]) -> Any:
    if isinstance(place, list | tuple):
        found = [one for one in place if isinstance(one, dict) and one.get("name") == step]
        if found:
            return found[0]
    elif isinstance(place, dict):
        if place.get(step) is None:
            place[step] = {}
        return place[step]
    named = [one["name"] for one in place if isinstance(one, dict)] if isinstance(place, list | tuple) else []
    raise error(f"--set {path}: there is no {step}" + (f"; there are {listed(named)}" if named else ""))


def basis(scenario: Scenario, schedule: Schedule, cells: Iterable[tuple[str, str]]) -> Basis:
    """What a report needs of the plan; `cells` are all pairs of tenant and class. Who ran it, and where, is added to it."""
    pairs = sorted(cells)
    return Basis(
        started="",
        seed=schedule.seed,
        schedule=schedule.digest(),
        window_start_s=schedule.window_start_s,
        window_end_s=schedule.window_end_s,
        closed=scenario.closed,
        slo=scenario.slo,
        goals=tuple(
            Goal(
                tenant=tenant,
                cls=cls,
                slo=scenario.goal(tenant, cls),
                expect_rejects=scenario.source(tenant).expect_rejects,
            )
            for tenant, cls in pairs
        ),
        weights={tenant: scenario.source(tenant).weight for tenant, _ in pairs},
        cost=scenario.cost,
        scenario=msgspec.to_builtins(scenario),
        target={},
        environment={},
    )
