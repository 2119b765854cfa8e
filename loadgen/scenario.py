"""A scenario: who sends what, how much of it, and what counts as good. Read from YAML, strictly.

Field names are those of loadgen.md 4.1. A field that is not known is an error, never ignored: a limit that nobody
reads makes a benchmark lie. `Scenario` is a value; the options of a command make a changed copy of it.
"""

from importlib import resources
from typing import Annotated, Any

import msgspec
import yaml

from loadgen.report.record import Slo
from loadgen.workload.arrivals import Arrivals
from loadgen.workload.lengths import Length, Positive

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
Duration = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?(ms|s|m)$")]


class ScenarioError(Exception):
    """A scenario that cannot be used; the message says where and why."""


class Prefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` shared system prompts of `tokens` tokens; the i-th most popular is used as 1/i^zipf."""

    count: Annotated[int, msgspec.Meta(ge=1)]
    tokens: Annotated[int, msgspec.Meta(ge=1)]
    zipf: float = 0.0


class Prompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a tenant's prompts are built: the name of a prefix, or none."""

    prefix: str | None = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A share `p` of requests whose client leaves `after` seconds from the intended arrival."""

    p: Annotated[float, msgspec.Meta(ge=0, le=1)]
    after: Length


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source of requests. `input` counts the user's own tokens; a shared prefix comes on top of it."""

    name: str
    priority: str
    arrivals: Arrivals
    input: Length
    output: Length
    max_tokens: Length | None = None
    prompt: Prompt = Prompt()
    cancel: Cancel | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is offered, and the SLO it is judged by. `warmup` is offered and not measured."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    name: str
    seed: int
    warmup: Duration
    duration: Duration
    slo: Slo
    tenants: tuple[Tenant, ...]
    prefixes: dict[str, Prefix] = {}

    @property
    def warmup_s(self) -> float:
        """Seconds of load before the measured window."""
        return seconds(self.warmup)

    @property
    def duration_s(self) -> float:
        """Seconds of the measured window."""
        return seconds(self.duration)

    @property
    def rate(self) -> float:
        """Requests/s of all tenants together."""
        return sum(tenant.arrivals.rate for tenant in self.tenants)

    def lasting(self, total_s: float) -> "Scenario":
        """The same load for `total_s` seconds in all, a tenth of it (5 s at most) as warm-up."""
        warmup_s = min(5.0, total_s / 10)
        return msgspec.structs.replace(self, warmup=f"{warmup_s:g}s", duration=f"{total_s - warmup_s:g}s")

    def at_rate(self, rate: float) -> "Scenario":
        """The same mix at `rate` requests/s in all."""
        factor = rate / self.rate
        return msgspec.structs.replace(self, tenants=tuple(_scaled(tenant, factor) for tenant in self.tenants))


def seconds(text: str) -> float:
    """`500ms`, `30s`, `10m` as seconds."""
    unit = "ms" if text.endswith("ms") else text[-1]
    return float(text[: -len(unit)]) * _UNITS[unit]


def standard(name: str) -> Scenario:
    """The scenario of that name that comes with the package."""
    return load(resources.files("loadgen").joinpath("scenarios", f"{name}.yaml").read_text("utf-8"))


def load(text: str) -> Scenario:
    """Read a scenario; ScenarioError on anything unknown, missing, mistyped or out of range."""
    try:
        raw: Any = yaml.safe_load(text)
        scenario = msgspec.convert(raw, Scenario)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ScenarioError(str(error)) from error
    _check(scenario)
    return scenario


def _check(scenario: Scenario) -> None:
    names = [tenant.name for tenant in scenario.tenants]
    if not names or len(names) != len(set(names)):
        raise ScenarioError("tenants: at least one, each with its own name")
    for tenant in scenario.tenants:
        prefix = tenant.prompt.prefix
        if prefix is not None and prefix not in scenario.prefixes:
            raise ScenarioError(f"tenants.{tenant.name}.prompt.prefix: no prefix is called {prefix}")


def _scaled(tenant: Tenant, factor: Positive) -> Tenant:
    arrivals = msgspec.structs.replace(tenant.arrivals, rate=tenant.arrivals.rate * factor)
    return msgspec.structs.replace(tenant, arrivals=arrivals)
