"""A scenario: who sends what, how much of it, and what counts as good. Read from YAML, strictly.

Field names are those of loadgen.md 4.1. A field that is not known is an error, never ignored: a limit that nobody
reads makes a benchmark lie. `Scenario` is a value; the options of a command make a changed copy of it.
"""

import hashlib
import math
import re
from collections.abc import Iterator
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loadgen.report.record import Slo, TokenCost, TtftLimit
from loadgen.workload import yaml_source
from loadgen.workload.arrivals import Arrivals, Closed, Sessions
from loadgen.workload.caps import TELLING, Absent, Cap
from loadgen.workload.choices import explained_by
from loadgen.workload.fields import Count, Duration, Fields, Positive, Share, duration, seconds
from loadgen.workload.fields import ScenarioError as ScenarioError
from loadgen.workload.lengths import Empirical, Length
from loadgen.workload.recipes import LEAST_TOOLS, Prefix, Prompt
from loadgen.workload.trace import Trace
from loadgen.workload.words import suggestion
from loadgen.workload.yaml_source import Path as Where
from loadgen.workload.yaml_source import Source, SourceError, written

EVERY_CLASS = "all"
Priority = Literal["critical", "interactive", "standard", "batch"]
"""Of the gateway: it takes any other word for its default, and a run would measure a class that nobody meant."""


class Cancel(Fields, frozen=True):
    """A share `p` of requests whose client leaves `after` seconds from the intended arrival."""

    p: Share
    after: Length


class Class(Fields, frozen=True):
    """Requests of at most `max_total_tokens` of planned prompt and answer; of any length without it."""

    max_total_tokens: Count | None = None


class Goal(Slo, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a good answer, and the share of requests (`target`) that must meet them."""

    target: Share = 0.95


class GoalChange(Fields, frozen=True):
    """What is different from the scenario's goal; None: the same."""

    ttft: TtftLimit | None = None
    tpot_ms: float | None = None
    stall_ms: float | None = None
    e2e_ms: float | None = None
    target: Share | None = None


class Tenant(Fields, frozen=True):
    """One source of requests, or many: a trace with `tenant_field` gives each its own name.

    `input` counts the request's own tokens; shared heads and tool results come on top. `reasoning` are tokens of the
    answer that are thought before anything is said, in addition to `output`. Input and output may be absent where a
    trace brings them. `slo` changes the goal by class; `all` stands for each class, and a target of 0 never fails a run.

    `weight` is its share against others where service is compared. `key_env` names the environment variable with its
    API key, `url` the server it talks to (None: the one of the command). `expect_rejects`: it is there to be refused,
    and its own goals fail no run.
    """

    name: str
    arrivals: Arrivals | Closed | Sessions | Trace
    priority: Priority = "standard"
    weight: Positive = 1.0
    key_env: str | None = None
    url: str | None = None
    expect_rejects: bool = False
    input: Length | None = None
    output: Length | None = None
    reasoning: Length | None = None
    max_tokens: Cap = Absent()
    prompt: Prompt = Prompt()
    cancel: Cancel | None = None
    slo: dict[str, GoalChange] = msgspec.field(default_factory=dict)
    stream: bool = True


class Scenario(Fields, frozen=True):
    """What is offered, and the goal it is judged by.

    `warmup` and `tail` are offered and not measured, before and after the window. `classes`: the first that fits is a
    request's. `cost` is what tokens count between tenants. `fleet` names the engines it is meant for. `salt` is new for
    each `run`, or a fixed text: then a run can measure what another one left in the caches. `length_control` is what
    sets the length of an answer: `auto` takes the first of `marker`, `ignore_eos` and `min_tokens` that the server
    understands, `none` leaves it to the model.
    """

    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    name: str
    seed: int
    warmup: Duration
    duration: Duration
    slo: Goal
    tenants: tuple[Tenant, ...]
    tail: Duration = "0s"
    classes: dict[str, Class] = msgspec.field(default_factory=lambda: {EVERY_CLASS: Class()})
    prefixes: dict[str, Prefix] = msgspec.field(default_factory=dict)
    cost: TokenCost = TokenCost()
    fleet: str = "ref4"
    salt: Annotated[str, msgspec.Meta(min_length=1)] = "run"
    length_control: Literal["auto", "marker", "ignore_eos", "min_tokens", "none"] = "auto"

    @property
    def warmup_s(self) -> float:
        """Seconds of load before the measured window."""
        return seconds(self.warmup)

    @property
    def duration_s(self) -> float:
        """Seconds of the measured window."""
        return seconds(self.duration)

    @property
    def total_s(self) -> float:
        """Seconds of load in all."""
        return self.warmup_s + self.duration_s + seconds(self.tail)

    @property
    def rate(self) -> float:
        """Requests/s of all tenants together, on average; ScenarioError if a trace cannot be read."""
        return sum(tenant.arrivals.mean_rate(self.total_s) for tenant in self.tenants)

    @property
    def closed(self) -> bool:
        """Whether some of the load waits for answers: rates then follow the system, and compare with no open loop."""
        return any(getattr(tenant.arrivals, "users", None) is not None for tenant in self.tenants)

    @property
    def reads_files(self) -> bool:
        """Whether some of it is in a trace."""
        return any(_reading(msgspec.to_builtins(self)))

    @property
    def telling(self) -> list[str]:
        """Tenants whose `max_tokens` follows from the planned answer: the system under test knows what it should not."""
        return [tenant.name for tenant in self.tenants if isinstance(tenant.max_tokens, TELLING)]

    def digest(self) -> str:
        """The sha256 of all it says, defaults included."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def lasting(self, total_s: float) -> "Scenario":
        """The same load for `total_s` seconds in all, a tenth of it (5 s at most) as warm-up, without a tail."""
        warmup_s = min(5.0, total_s / 10)
        times = {"warmup": duration(warmup_s), "duration": duration(total_s - warmup_s), "tail": "0s"}
        return msgspec.structs.replace(self, **times)

    def at_rate(self, rate: float) -> "Scenario":
        """The same mix at `rate` requests/s in all."""
        return self.scaled(rate / self.rate)

    def scaled(self, factor: float, only: str | None = None) -> "Scenario":
        """`factor` times the rate, of the tenant called `only` or of all.

        A trace is compressed in time, and with it all times of the scenario: there is no more of it than recorded.
        """
        tenants = [_scaled(tenant, factor) if only in (None, tenant.name) else tenant for tenant in self.tenants]
        times: dict[str, str] = {}
        if only is None and any(isinstance(one.arrivals, Trace) and one.arrivals.users is None for one in tenants):
            times = {name: duration(seconds(getattr(self, name)) / factor) for name in ("warmup", "duration", "tail")}
        return msgspec.structs.replace(self, tenants=tuple(tenants), **times)

    def with_trace(self, path: Path) -> "Scenario":
        """Traces are read from `path`: a file, or a folder with files of the names in the scenario."""
        values = msgspec.to_builtins(self)
        for one in _reading(values):
            one["file"] = str(path / Path(one["file"]).name if path.is_dir() else path)
        return msgspec.convert(values, Scenario)

    def class_of(self, total_tokens: int) -> str:
        """The class of a request with that many planned tokens of prompt and answer."""
        fitting = (
            name
            for name, one in self.classes.items()
            if one.max_total_tokens is None or total_tokens <= one.max_total_tokens
        )
        return next(fitting)

    def source(self, tenant: str) -> Tenant:
        """The tenant of that name, or the one whose trace brings names of its own; ScenarioError if there is neither."""
        named = [one for one in self.tenants if one.name == tenant]
        splits = [one for one in self.tenants if isinstance(one.arrivals, Trace) and one.arrivals.tenant_field]
        if not (named or splits):
            raise ScenarioError(f"scenario {self.name} has no tenant {tenant}")
        return (named or splits)[0]

    def goal(self, tenant: str, cls: str) -> Goal:
        """What a request of that tenant and class must meet."""
        goal, changes = self.slo, self.source(tenant).slo
        for name in (EVERY_CLASS, cls):
            change = changes.get(name, GoalChange())
            changed = {
                field: value for field in change.__struct_fields__ if (value := getattr(change, field)) is not None
            }
            goal = msgspec.structs.replace(goal, **changed)
        return goal


def names() -> list[str]:
    """The scenarios that come with the package."""
    files = resources.files("loadgen").joinpath("scenarios").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def standard(name: str) -> Scenario:
    """The scenario of that name that comes with the package; ScenarioError if there is none."""
    if name not in names():
        close = suggestion(name, names())
        raise ScenarioError(f"no scenario is called {name}; there are {', '.join(names())}, or a file (.yaml){close}")
    file = f"{name}.yaml"
    return load(resources.files("loadgen").joinpath("scenarios", file).read_text("utf-8"), file)


def about(name: str) -> str:
    """What the standard scenario of that name is, in a sentence: the first one of its file."""
    lines = resources.files("loadgen").joinpath("scenarios", f"{name}.yaml").read_text("utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    found = re.match(r".*?[.?](?= |$)", comment)
    return found[0] if found else comment


def schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file."""
    made = _without_infinity(msgspec.json.schema(Scenario))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Scenario of Forebay", **made}


def _without_infinity(node: Any) -> Any:
    """JSON has no word for the default of a bound that is none."""
    if isinstance(node, dict):
        return {key: _without_infinity(value) for key, value in node.items() if value != math.inf}
    return [_without_infinity(value) for value in node] if isinstance(node, list) else node


def load(text: str, file: str = "scenario") -> Scenario:
    """Read a scenario; ScenarioError `FILE:LINE:COLUMN: path: what` on anything unknown, missing or out of range."""
    try:
        source = yaml_source.read(text)
    except SourceError as error:
        raise ScenarioError(f"{file}:{error.line}:{error.column}: {error}") from error
    return checked(source.values, file, source)


def checked(values: Any, file: str, source: Source | None = None) -> Scenario:
    """The scenario of plain values that come from `file`. ScenarioError as `load`; without `source`, without the place."""
    try:
        scenario = msgspec.convert(values, Scenario)
    except msgspec.ValidationError as error:
        raise _located(file, source, *explained_by(Scenario, values, error)) from error
    for problem in _problems(scenario):
        raise _located(file, source, *problem)
    return scenario


def _located(file: str, source: Source | None, path: Where, what: str, words: str = "") -> ScenarioError:
    """`words`: what is said, if it is not `what`, which tells the place."""
    place = ":".join(map(str, (file, *(source.place(path, what) if source else ()))))
    return ScenarioError(": ".join(part for part in (place, written(path), words or what) if part))


def _problems(scenario: Scenario) -> Iterator[tuple[Where, str]]:
    """What no type tells, and where."""
    known = [tenant.name for tenant in scenario.tenants]
    if not known:
        yield ("tenants",), "at least one"
    if all(one.max_total_tokens is not None for one in scenario.classes.values()):
        yield ("classes",), "one of them takes requests of any length"
    if scenario.duration_s <= 0:
        yield ("duration",), "more than 0"
    for field, value in _limits(scenario.slo):
        if not 0 <= value < math.inf:
            yield ("slo", *field), f"{value} is no limit"
    for number, tenant in enumerate(scenario.tenants):
        if tenant.name in known[:number]:
            yield ("tenants", number, "name"), f"{tenant.name} is there twice"
        for where, what in _problems_of(scenario, tenant):
            yield ("tenants", number, *where), what


def _limits(goal: Goal | GoalChange) -> Iterator[tuple[Where, float]]:
    ttft = goal.ttft
    if ttft is not None:
        yield from ((("ttft", name), float(getattr(ttft, name))) for name in ttft.__struct_fields__)
    for name in ("tpot_ms", "stall_ms", "e2e_ms"):
        value = getattr(goal, name)
        if value is not None:
            yield (name,), value


def _problems_of(scenario: Scenario, tenant: Tenant) -> Iterator[tuple[Where, str]]:
    for field in ("prefix", "tools"):
        prefix = getattr(tenant.prompt, field)
        if prefix is not None and prefix not in scenario.prefixes:
            yield ("prompt", field), f"no prefix is called {prefix}"
        elif field == "tools" and prefix is not None and scenario.prefixes[prefix].tokens < LEAST_TOOLS:
            yield ("prompt", field), f"definitions of tools take {LEAST_TOOLS} tokens at least"
    for name in sorted(tenant.slo.keys() - scenario.classes.keys() - {EVERY_CLASS}):
        yield ("slo", name), f"no class is called {name}"
    for name, change in tenant.slo.items():
        for where, value in _limits(change):
            if not 0 <= value < math.inf:
                yield ("slo", name, *where), f"{value} is no limit"
    if isinstance(tenant.arrivals, Trace):
        given = [name for name in ("input", "output", "reasoning") if getattr(tenant, name) is not None]
        given += [f"prompt.{name}" for name in ("tools", "tool_results") if getattr(tenant.prompt, name) is not None]
        for name in given:
            yield tuple(name.split(".")), "lengths and prompts come from the trace; only prompt.prefix may be added"
    else:
        for name in ("input", "output"):
            if getattr(tenant, name) is None:
                yield (), f"`{name}` is missing"


def _scaled(tenant: Tenant, factor: float) -> Tenant:
    return msgspec.structs.replace(tenant, arrivals=tenant.arrivals.scaled(factor))


def _reading(value: Any) -> Iterator[dict[str, Any]]:
    """What in plain values has the `file` of a trace or an empirical length."""
    if isinstance(value, dict):
        if value.get("kind") in ("trace", Empirical.__struct_config__.tag):
            yield value
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for one in value:
        yield from _reading(one)
