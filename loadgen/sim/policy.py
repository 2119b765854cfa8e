"""The part of forebay.yaml that decides: classes, pools, admission, affinity, length, retries, timeouts.

Names and defaults are those of tenancy.md 1.1. What belongs to processes, sockets and keys is the gateway's to check
and is passed over; an unknown section is an error, and so is an unknown key inside of those that are read. Keys that the core has no use for
are named in `WITHOUT_EFFECT`.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from loadgen.workload.yaml_source import plain
from policies.settings import SettingsError, settings_from
from policies.types import Affinity, Band, Fairness, Pool, Settings

SEED = 7
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "": 1}


class PolicyError(ValueError):
    """A configuration that cannot be used; the text says where and why."""


class Promise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`classes.<c>.slo`."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    ttft_per_token_ms: float = 0.25
    free_tokens: int = 2048


class PriorityClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`classes.<c>`."""

    rank: int
    queue_timeout_s: float
    max_queued: int = 5000
    age_after_s: float = 30.0
    sheddable: bool = False
    on_late: str = "queue"
    slo: Promise = Promise()
    ceiling: float = 1.0
    reserved: float = 0.0
    min_share: float = 0.0


class Fair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`admission.fairness`."""

    kind: str = "deficit"
    quantum: int = 8192
    input: float = 1.0
    cached: float = 0.1
    output: float = 2.0
    lead_quanta: int = 4


class Admission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`admission`."""

    max_queued: int = 10_000
    max_queued_bytes: int | str = 512 << 20
    drain_lag_s: float = 5.0
    drain_grace_s: float = 120.0
    ordering: str = "by_length"
    shed: str = "auto"
    fairness: Fair = Fair()


class Cache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`affinity`. `enabled: false` is the simulator's own: place without regard to prefixes."""

    block_tokens: Annotated[int, msgspec.Meta(ge=16, multiple_of=16)] = 64
    index_bytes: int | str = 256 << 20
    ttl_s: float = 1800.0
    max_load_ratio: float = 1.25
    kv_tiers: float = 1.0
    enabled: bool = True


class Length(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`length`."""

    kind: str = "learned"
    state_file: str | None = None


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """`retries`, as far as the core counts attempts."""

    max_attempts: int = 2


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """`timeouts`: the deadline of a request, and how long an engine may be silent before it answers."""

    total_s: float = 1800.0
    first_byte_s: float = 120.0


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """`upstream`, as far as it says how often engines are probed."""

    probe_s: float = 2.0


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`pools.<p>`; its model is the fleet's, whatever it is called."""

    model: str = ""
    max_total_tokens: int = 0
    borrow: tuple[str, ...] = ()
    lanes: str = "auto"
    long_prompt_tokens: int = 0


CLASSES = {
    "critical": PriorityClass(
        rank=0,
        reserved=0.05,
        queue_timeout_s=30,
        max_queued=512,
        age_after_s=5,
        on_late="reject",
        slo=Promise(ttft_ms=400, itl_ms=50),
    ),
    "interactive": PriorityClass(
        rank=1,
        ceiling=0.95,
        reserved=0.05,
        queue_timeout_s=30,
        age_after_s=5,
        on_late="reject",
        slo=Promise(ttft_ms=400, itl_ms=50),
    ),
    "standard": PriorityClass(
        rank=2, ceiling=0.9, min_share=0.1, queue_timeout_s=60, slo=Promise(ttft_ms=2000, itl_ms=100)
    ),
    "batch": PriorityClass(rank=3, ceiling=0.85, min_share=0.05, queue_timeout_s=300, age_after_s=120, sheddable=True),
}
PASSED_OVER = frozenset(
    (
        "version", "listen", "admin", "isolation", "models", "partitions", "endpoints",
        "limits", "redis", "telemetry", "tenant_defaults",
    )
)  # fmt: skip
WITHOUT_EFFECT = (
    "drain_lag_s",
    "drain_grace_s",
    "lead_quanta",
    "state_file",
)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The sections that are read."""

    classes: dict[str, dict[str, Any]] = {}
    pools: dict[str, PoolSpec] = {}
    admission: Admission = Admission()
    affinity: Cache = Cache()
    length: Length = Length()
    retries: Retries = Retries()
    timeouts: Timeouts = Timeouts()
    upstream: Upstream = Upstream()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What the core is told, and what the gateway adds to a request: its deadline and the cap of its answer.

    `first_byte_s`: how long it waits for an engine to begin; `probe_s`: how often it asks whether one is well.
    """

    settings: Settings
    total_s: float
    first_byte_s: float = 120.0
    probe_s: float = 2.0
    max_output_tokens: int = 8192


def read(path: Path | None) -> dict[str, Any]:
    """The plain values of a configuration file; of none, nothing. Raises PolicyError."""
    if path is None:
        return {}
    try:
        raw = plain(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise PolicyError(f"{path}: {error}") from error
    if not isinstance(raw, dict):
        raise PolicyError(f"{path}: not a mapping")
    return raw


def policy(raw: Mapping[str, Any], pools: Mapping[str, Pool]) -> Policy:
    """The policy of plain values for a fleet with these pools. Raises PolicyError."""
    unknown = [name for name in raw if name not in PASSED_OVER and name not in Document.__struct_fields__]
    if unknown:
        raise PolicyError(f"{unknown[0]}: there is no such section")
    try:
        document = msgspec.convert(dict(raw), Document)
        classes = {**CLASSES, **{name: _class(name, told) for name, told in document.classes.items()}}
    except msgspec.ValidationError as error:
        raise PolicyError(str(error)) from error
    admission = document.admission
    settings = Settings(
        pools=_pools(document.pools, pools),
        bands={name: _band(name, spec) for name, spec in classes.items()},
        max_queued=admission.max_queued,
        max_queued_bytes=_bytes("admission.max_queued_bytes", admission.max_queued_bytes),
        max_attempts=document.retries.max_attempts,
        seed=SEED,
        ordering=_one_of("admission.ordering", admission.ordering, ("by_length", "edf", "fcfs")),
        shed=_one_of("admission.shed", admission.shed, ("auto", "llmd", "off")),
        length=_one_of("length.kind", document.length.kind, ("learned", "declared")),
        affinity=_affinity(document.affinity) if document.affinity.enabled else None,
        fairness=_fairness(admission.fairness),
    )
    return Policy(
        settings=_checked(settings),
        total_s=document.timeouts.total_s,
        first_byte_s=document.timeouts.first_byte_s,
        probe_s=document.upstream.probe_s,
    )


def _class(name: str, told: dict[str, Any]) -> PriorityClass:
    """A built-in class with what the file says over it, or a new one."""
    built_in = CLASSES.get(name)
    before = msgspec.to_builtins(built_in) if built_in else {}
    slo = {**before.get("slo", {}), **(told.get("slo") or {})}
    return msgspec.convert({**before, **told, "slo": slo}, PriorityClass)


def _band(name: str, spec: PriorityClass) -> Band:
    return Band(
        name=name,
        rank=spec.rank,
        queue_timeout_s=spec.queue_timeout_s,
        max_queued=spec.max_queued,
        slo_ttft_s=spec.slo.ttft_ms / 1e3,
        slo_itl_s=spec.slo.itl_ms / 1e3,
        ttft_per_token_s=spec.slo.ttft_per_token_ms / 1e3,
        free_tokens=spec.slo.free_tokens,
        sheddable=spec.sheddable,
        on_late=_one_of(f"classes.{name}.on_late", spec.on_late, ("queue", "downgrade", "reject")),
        age_after_s=spec.age_after_s,
        ceiling=spec.ceiling,
        reserved=spec.reserved,
        min_share=spec.min_share,
    )


def _fairness(told: Fair) -> Fairness:
    return Fairness(kind=told.kind, quantum=told.quantum, input=told.input, cached=told.cached, output=told.output)


def _pools(told: Mapping[str, PoolSpec], fleet: Mapping[str, Pool]) -> dict[str, Pool]:
    """The fleet's pools, as the file has them if it has any."""
    if not told:
        return dict(fleet)
    missing = [name for name in fleet if name not in told]
    if missing:
        raise PolicyError(f"pools: the engines are in {', '.join(fleet)}; the configuration has no {missing[0]}")
    model = next(iter(fleet.values())).model
    return {
        name: Pool(
            name=name,
            model=model,
            max_total_tokens=told[name].max_total_tokens,
            borrow=told[name].borrow,
            lanes=_one_of(f"pools.{name}.lanes", told[name].lanes, ("auto", "off", "fixed")),
            long_prompt_tokens=told[name].long_prompt_tokens,
        )
        for name in fleet
    }


def _affinity(told: Cache) -> Affinity:
    return Affinity(
        block_tokens=told.block_tokens,
        index_bytes=_bytes("affinity.index_bytes", told.index_bytes),
        ttl_s=told.ttl_s,
        max_load_ratio=told.max_load_ratio,
        kv_tiers=told.kv_tiers,
    )


def _checked(settings: Settings) -> Settings:
    """By the same rules as the gateway's own."""
    try:
        return settings_from(_plain(settings))
    except SettingsError as error:
        raise PolicyError(str(error)) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _one_of(path: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise PolicyError(f"{path}: {value!r} is not one of {', '.join(allowed)}")
    return value


def _bytes(path: str, value: int | str) -> int:
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB|)", value)
    if match is None:
        raise PolicyError(f"{path}: {value!r} is not a size like 512MiB")
    return int(match[1]) * _UNITS[match[2]]
