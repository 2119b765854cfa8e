"""The store that several replicas of a gateway share their limits through (docs/replicas.md)."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, ValidationInfo, field_validator

from gateway.config.kinds import Number, Ref, Text, Whole
from gateway.config.section import RESTART, Section

WithoutStore = Literal["local_share", "open", "closed"]
ON_STORE_DOWN = (
    "When the store does not answer: `local_share`, each replica takes its part of the limits; `open`, rates and budgets"
    " refuse nobody; `closed`, who has any is refused with 503 `quota_store_unavailable`."
)


@dataclass(frozen=True)
class StoreUrl(Ref):
    """Where Redis is. It may hold a password, so it is never shown. Refused where redis-py is not installed."""

    what: str = "a URL like redis://10.0.0.5:6379/0, rediss://... or unix:///run/redis.sock"
    pattern: str = r"(rediss?://[!-~]{1,1000}|unix:///[!-~]{1,1000})"

    def _resolve(self, value: Any, info: ValidationInfo) -> str | bytes:
        found = super()._resolve(value, info)
        if find_spec("redis") is None:
            raise ValueError("needs redis-py, which is not installed: pip install 'forebay[redis]'")
        return found


class Redis(Section):
    """Limits of several replicas together. Every replica has the same `url`, `prefix` and tenants."""

    url: Annotated[str, StoreUrl()] = Field(
        description="`redis://`, `rediss://` or `unix://`. May hold a password, so it is best a `${NAME}`.",
        json_schema_extra={**RESTART},
        repr=False,
        exclude=True,
    )
    cluster: bool = Field(
        False,
        description="`url` names a node of a Redis Cluster. The others are found by it, and redirects are followed.",
        json_schema_extra=RESTART,
    )
    prefix: Annotated[str, Text("[A-Za-z0-9._-]{1,32}", "1 to 32 letters, digits, '.', '_' or '-'")] = Field(
        "fb", description="All keys begin with it: fleets that share a Redis differ in it.", json_schema_extra=RESTART
    )
    timeout_s: Annotated[float, Number(0.005, 1)] = Field(
        0.05, description="One call. None is repeated, and no request waits for one."
    )
    connect_timeout_s: Annotated[float, Number(0.005, 1)] = Field(0.1, description="Connecting to it.")
    sync_s: Annotated[float, Number(0.05, 5)] = Field(
        0.25, description="Period in which it is asked and told.", json_schema_extra=RESTART
    )
    lease_s: Annotated[float, Number(5, 300)] = Field(
        30.0,
        description="Slots are leased for so long: those of a replica that died are free after it. At least 20 `sync_s`.",
        json_schema_extra=RESTART,
    )
    expected_replicas: Annotated[int, Whole(1, 256)] = Field(
        1, description="How many replicas share the limits, until the store has told."
    )
    on_store_down: WithoutStore = Field("local_share", description=ON_STORE_DOWN)

    @field_validator("cluster")
    @classmethod
    def _one_database_on_the_network(cls, value: bool, info: ValidationInfo) -> bool:
        """A cluster has one database, and is no socket of this machine."""
        url = urlsplit(str(info.data.get("url", "")))
        if value and (url.scheme == "unix" or url.path not in ("", "/", "/0") or "db" in parse_qs(url.query)):
            raise ValueError("a cluster's url is redis:// or rediss://, without a database other than 0")
        return value

    def described(self, scale: float) -> dict[str, object]:
        """What the core needs to know of it, with times scaled."""
        return {
            "sync_s": self.sync_s * scale,
            "lease_s": self.lease_s * scale,
            "on_store_down": self.on_store_down,
            "replicas": self.expected_replicas,
        }
