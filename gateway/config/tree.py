"""The whole of forebay.yaml and the tenants' files, validated, and what the rest of the program asks of them."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated

import xxhash
from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from gateway.config import process
from gateway.config.fleet import Endpoint, Isolation, Model, Partition, Pool
from gateway.config.kinds import Whole
from gateway.config.scheduling import Affinity, Classes, Length
from gateway.config.section import RESTART, ModelName, Name, Section, all_defaults, not_empty
from gateway.config.store import Redis
from gateway.config.tenant import Tenant, TenantDefaults
from gateway.config.timers import Timers
from policies.settings import settings_from
from policies.types import Settings


def _served(models: dict[str, Model]) -> dict[str, Model]:
    """An engine calls a model by its name here, unless `served_as` says otherwise."""
    return {
        name: model if model.served_as else model.model_copy(update={"served_as": name})
        for name, model in models.items()
    }


# What of `tenant_defaults` limits the one tenant there is without tenant files.
QUOTAS = ("limits", "reserve", "cost", "budgets", "mode", "models")


class Config(Section):
    """forebay.yaml. Sizes are bytes, times seconds before `timeouts.scale`."""

    version: Annotated[int, Whole(1, 1)] = Field(description="Version of this format.")
    listen: process.Listen = all_defaults(process.Listen)
    admin: process.Admin = all_defaults(process.Admin)
    isolation: Isolation = all_defaults(Isolation)
    models: Annotated[dict[ModelName, Model], BeforeValidator(not_empty), AfterValidator(_served)] = Field(
        description="Models by the name clients use.",
        json_schema_extra={"minProperties": 1, "additionalProperties": False},
    )
    pools: Annotated[dict[Name, Pool], BeforeValidator(not_empty)] = Field(
        description="Pools by name, at most 4 a model.",
        json_schema_extra={"minProperties": 1, "additionalProperties": False},
    )
    partitions: dict[Name, Partition] = Field(
        default_factory=dict,
        description="Hard partitions by name. `shared` always exists.",
        json_schema_extra={"default": {}, "additionalProperties": False},
    )
    endpoints: Annotated[tuple[Endpoint, ...], BeforeValidator(not_empty)] = Field(
        description="The engines.", json_schema_extra={"minItems": 1}
    )
    classes: Classes = all_defaults(Classes)
    admission: process.Admission = all_defaults(process.Admission)
    affinity: Affinity = all_defaults(Affinity)
    length: Length = all_defaults(Length)
    upstream: process.Upstream = all_defaults(process.Upstream)
    retries: process.Retries = all_defaults(process.Retries)
    timeouts: process.Timeouts = all_defaults(process.Timeouts)
    limits: process.Limits = all_defaults(process.Limits)
    redis: Redis | None = Field(
        None,
        description="The store that several replicas share their limits through. None: there is one replica.",
        json_schema_extra=RESTART,
    )
    telemetry: process.Telemetry = all_defaults(process.Telemetry)
    tenant_defaults: TenantDefaults = all_defaults(TenantDefaults)
    _tenants: Mapping[str, Tenant] | None = PrivateAttr(None)

    @property
    def tenants(self) -> Mapping[str, Tenant] | None:
        """The tenants by id. None: there are no tenant files, no key is asked and everybody is the tenant `default`."""
        return self._tenants

    def with_tenants(self, tenants: Mapping[str, Tenant]) -> "Config":
        """The same with these tenants."""
        made = self.model_copy()
        made._tenants = tenants
        return made

    def checksum(self) -> str:
        """Of every value in force but secrets: equal in two gateways that do the same."""
        made = xxhash.xxh3_64()
        for part in self._told():
            made.update(json.dumps(part, sort_keys=True).encode())
        return made.hexdigest()

    def _told(self) -> Iterator[object]:
        """Tenant by tenant: while the text of all of them is made at once no other thread can run."""
        yield self.model_dump(mode="json"), self.tenants is not None
        for name, tenant in sorted((self.tenants or {}).items()):
            yield name, tenant.model_dump(mode="json")

    def settings(self, seed: int = 0) -> Settings:
        """What the core needs to know, with times scaled. `seed` is that of the core's random numbers."""
        scale = self.timeouts.scale
        return settings_from(
            {
                "pools": {name: pool.described(name) for name, pool in self.pools.items()},
                "bands": self.classes.described(scale, self._most_urgent()),
                "fairness": self.admission.fairness.model_dump(),
                "max_queued": self.admission.max_queued,
                "max_queued_bytes": self.admission.max_queued_bytes,
                "max_attempts": self.retries.max_attempts,
                "seed": seed,
                "timer_scale": scale,
                "ordering": self.admission.ordering,
                "shed": self.admission.shed,
                "length": self.length.kind,
                "affinity": self.affinity.described(scale),
                "tenants": self._tenants_described(scale),
                "models": {name: model.described(name) for name, model in self.models.items()},
                "fleet": self.redis.described(scale) if self.redis is not None else None,
            }
        )

    def _most_urgent(self) -> str:
        """The most urgent class that a key may use: nothing is reserved for those above it."""
        ceilings = (tenant.class_ceiling for tenant in (self.tenants or {}).values())
        return min(ceilings, key=list(Classes.model_fields).index, default="critical")

    def _tenants_described(self, scale: float) -> dict[str, object]:
        if self.tenants is None:  # everybody is one tenant, with such limits as are written
            defaults = self.tenant_defaults
            if defaults.model_fields_set.isdisjoint(QUOTAS):
                return {}
            return {"default": {"id": "default", **defaults.quotas(scale, only_written=True)}}
        return {name: tenant.described(scale) for name, tenant in self.tenants.items()}

    def timers(self) -> Timers:
        """Every timer of the gateway, scaled."""
        engine, admission = self.timeouts, self.admission
        unscaled = {
            "connect_s": engine.connect_s,
            "tls_s": 2.0,
            "write_stall_s": 10.0,
            "first_byte_s": engine.first_byte_s,
            "idle_s": engine.idle_s,
            "total_s": engine.total_s,
            "upstream_keepalive_s": engine.upstream_keepalive_s,
            "stale_socket_s": 0.25,
            "probe_s": self.upstream.probe_s,
            "scrape_s": self.upstream.scrape_s,
            "first_byte_of_connection_s": engine.client_header_s,
            "head_s": engine.client_header_s,
            "keepalive_idle_s": 75.0,
            "body_gap_s": 10.0,
            "body_rate_after_s": engine.client_body_s,
            "body_total_s": 300.0,
            "client_stall_s": engine.client_stall_s,
            "lingering_s": 2.0,
            "sse_keepalive_s": self.limits.sse_keepalive_s,
            "sweep_s": 0.25,
            "drain_lag_s": admission.drain_lag_s,
            # From the lag's 5 s on: httpx, and so the openai client, uses no connection again after 5 s.
            "drain_idle_s": admission.drain_lag_s + 1.0,
            "drain_grace_s": admission.drain_grace_s,
        }
        return Timers(**{name: seconds * engine.scale for name, seconds in unscaled.items()})
