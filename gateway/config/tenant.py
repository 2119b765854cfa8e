"""tenants.d/ID.yaml: one tenant to a file; and `tenant_defaults` of forebay.yaml, from which every tenant inherits.

What a tenant's file leaves out comes from `tenant_defaults` (mappings field by field, lists whole), else from the
default here. To add a field:

1. A line in `Inherited`, or in `Key` for what a single key has: kind, default, one line of meaning. A new mapping is a
   `Section` of its own and stands there with `all_defaults(...)`. Errors with their places, JSON Schema, `config show`
   and docs/configuration.md (`make docs`) follow from that line. A limit is `Annotated[int, Whole(1, n)] | None`:
   absent inherits, `null` in a tenant's file lifts what `tenant_defaults` says.
2. What contradicts another field or another file: `contradictions` of tenant_checks.py; what is legal but useless:
   `useless` there.
3. What the core has to know: `Tenant.described`. What the gateway does with it: `gateway/tenants.py`.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from gateway.config.kinds import Moment, Number, Text, Whole
from gateway.config.quotas import Budget, Cost, Rates, Reserve, TenantLimits, budgets_of, scopes
from gateway.config.section import ModelName, Name, Section, all_defaults
from gateway.config.store import ON_STORE_DOWN, WithoutStore
from policies.types import SHARED

CLASSES = ("critical", "interactive", "standard", "batch")  # by rank
ClassName = Literal["critical", "interactive", "standard", "batch"]
ID = Text("[a-z0-9][a-z0-9-]{0,47}", "a tenant's id (a to z, 0 to 9, '-'; at most 48 characters)")
TenantId = Annotated[str, ID]
KeyId = Annotated[str, Text("[0-9a-z]{12}", "a key's id: 12 of the characters 0 to 9 and a to z")]
Label = Annotated[str, Text(r"[^\x00-\x1f\x7f]{1,100}", "a name of 1 to 100 characters")]
Day = Annotated[
    str, Text(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]{5,15}(Z|[+-][0-9:]{5}))?", "a day like 2026-11-02, or a time")
]
Digest = Annotated[str, Text("[0-9a-fA-F]{64}", "the key's SHA-256: 64 hexadecimal digits", lower=True, secret=True)]
MediaHost = Annotated[str, Text(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,253}[A-Za-z0-9])?", "a host name", lower=True)]


class Allow(Section):
    """What is closed to clients unless granted."""

    routes: tuple[Literal["tokenize", "detokenize", "count_tokens"], ...] = Field(
        (), description="Routes that run on an engine's API process."
    )
    parameters: tuple[
        Literal[
            "chat_template_kwargs",
            "prompt_logprobs",
            "echo",
            "use_beam_search",
            "allowed_token_ids",
            "bad_words",
            "return_token_ids",
            "mm_processor_kwargs",
            "media_io_kwargs",
            "continuous_usage_stats",
        ],
        ...,
    ] = Field(("chat_template_kwargs",), description="Guarded body fields that may be used.")
    media_hosts: tuple[MediaHost, ...] = Field(
        (), description="Hosts an engine may be made to fetch media from. `data:` URLs always pass."
    )


class Grant(Section):
    """A model that a tenant may use."""

    name: ModelName = Field(description="A model of `models`.")
    aliases: tuple[ModelName, ...] = Field((), description="Further names by which this tenant may ask for it.")
    limits: Rates = all_defaults(Rates)


class Cache(Section):
    """Who shares prefix caches on the engines, and with that may see by timing what others asked."""

    isolation: Literal["tenant", "key", "group"] = Field(
        "tenant", description="All keys of the tenant share them, none do, or all tenants of a trust group do."
    )
    group: Name | None = Field(None, description="With `isolation: group`: the group of `isolation.groups`.")


class Key(Section):
    """An API key. The file holds its hash only; `forebay keys new` makes one."""

    id: KeyId = Field(description="Unique in the fleet. In logs; no secret.")
    sha256: Digest = Field(
        description="SHA-256 of the whole key, 64 hexadecimal digits. Unique in the fleet.",
        json_schema_extra={"x-secret": True},
        repr=False,
    )
    name: Label = Field(
        default_factory=lambda known: known.get("id", ""),
        description="What people call it.",
        json_schema_extra={"x-default": "its id"},
    )
    state: Literal["active", "blocked"] = Field("active", description="A blocked key is answered with 401.")
    created: Day | None = Field(None, description="When it was made. For people.")
    expires: Annotated[datetime, Moment()] | None = Field(
        None, description="Time like `2027-02-01T00:00:00Z`; from then on it is answered with 401. None: never."
    )
    class_ceiling: ClassName | None = Field(
        None,
        description="The most urgent class its requests get.",
        json_schema_extra={"x-default": "the tenant's"},
    )
    limits: Rates = all_defaults(Rates)


class Inherited(Section):
    """What `tenant_defaults` may say for every tenant."""

    class_: ClassName = Field(
        "standard", alias="class", description="Class of a request that names none with `x-forebay-priority`."
    )
    class_ceiling: ClassName | None = Field(
        None,
        description="The most urgent class its requests get, whatever they ask for.",
        json_schema_extra={"x-default": "the tenant's `class`; without tenant files no bound"},
    )
    weight: Annotated[float, Number(0.1, 100, unit="")] = Field(
        1.0, description="Share inside a class, beside other tenants that wait."
    )
    partition: Name = Field(
        SHARED,
        description="Whose endpoints it uses, and no others: `shared`, or one of `partitions`, which names it too.",
    )
    models: tuple[Grant, ...] | None = Field(
        None,
        description="The models a tenant may use. `[]`: none.",
        json_schema_extra={"x-default": "required in each tenant's file; without tenant files all models"},
    )
    limits: TenantLimits = all_defaults(TenantLimits)
    reserve: Reserve = all_defaults(Reserve)
    cost: Cost = all_defaults(Cost)
    budgets: tuple[Budget, ...] = Field((), description="Amounts for days, weeks and months.")
    mode: Literal["enforce", "shadow"] = Field(
        "enforce",
        description="`shadow`: rates and budgets are counted and refuse nobody; slots, queues and limits of a model hold.",
    )
    on_store_down: WithoutStore | None = Field(
        None, description=ON_STORE_DOWN, json_schema_extra={"x-default": "that of `redis`"}
    )
    allow: Allow = all_defaults(Allow)
    cache: Cache = all_defaults(Cache)

    def quotas(self, scale: float, *, only_written: bool = False) -> dict[str, object]:
        """What limits it, as the core's settings have it. `only_written`: without the bounds that are defaults."""
        return {
            "limits": self.limits.scope(only_written),
            "burst_s": self.limits.burst_s,
            **self.limits.queues(scale, only_written),
            "reserve": self.reserve.model_dump(),
            "cost": self.cost.model_dump(),
            "budgets": budgets_of(self.limits, self.budgets),
            "mode": self.mode,
            "on_store_down": self.on_store_down or "",
            "models": scopes({grant.name: grant.limits for grant in self.models or ()}),
        }


class TenantDefaults(Inherited):
    """What every tenant has whose file does not say otherwise."""


class Identity(Section):
    """What a tenant's file says of itself; nothing of it is inherited."""

    version: Annotated[int, Whole(1, 1)] = Field(description="Version of this format.")
    id: TenantId = Field(
        description="The file's name without `.yaml`. It stays for ever: salts and counters hang on it."
    )
    name: Label = Field(
        default_factory=lambda known: known.get("id", ""),
        description="What people call it.",
        json_schema_extra={"x-default": "its id"},
    )
    state: Literal["active", "disabled"] = Field(
        "active", description="Every key of a disabled tenant is answered with 401."
    )


def _models_may_be_inherited(schema: JsonDict) -> None:
    """Required is that somebody says them, which a file's schema cannot tell."""
    schema["required"] = ["version", "id"]


class Tenant(Inherited, Identity):
    """tenants.d/ID.yaml: a tenant, what it may use and its keys."""

    model_config = ConfigDict(json_schema_extra=_models_may_be_inherited)

    class_ceiling: ClassName = Field(
        default_factory=lambda known: known.get("class_", "standard"),
        description="The most urgent class its requests get, whatever they ask for.",
        json_schema_extra={"x-default": "its `class`"},
    )
    models: tuple[Grant, ...] = Field(description="The models it may use. `[]`: none.")
    keys: tuple[Key, ...] = Field((), description="Its API keys.")

    def described(self, scale: float) -> dict[str, object]:
        """The tenant as the core's settings have it; `scale` multiplies times of waiting."""
        keys = scopes({key.id: key.limits for key in self.keys})
        known = {"id": self.id, "weight": self.weight, "partition": self.partition}
        return {**known, **self.quotas(scale), "keys": keys}
