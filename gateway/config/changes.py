"""What a new configuration changes, and what of it only a restart could.

A field says itself that it needs a restart: `RESTART` where it is defined. One exception to "a changed
value": a value that was made at random at the start (`isolation.salt_secret` that no file gives) is kept.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator

from pydantic import BaseModel

from gateway.config.fleet import Isolation
from gateway.config.problems import Path, Problem
from gateway.config.tenant import Key
from gateway.config.tree import Config


def kept(old: Config, new: Config) -> Config:
    """The new configuration with what was drawn at the start of this process."""
    drawn = "salt_secret"
    if drawn in old.isolation.model_fields_set or drawn in new.isolation.model_fields_set:
        return new
    values = {**dict(new.isolation), drawn: old.isolation.salt_secret}
    isolation = Isolation.model_construct(set(new.isolation.model_fields_set), **values)  # still as if no file gave it
    made = new.model_copy(update={"isolation": isolation})
    return made if new.tenants is None else made.with_tenants(new.tenants)


def need_restart(old: Config, new: Config) -> Iterator[Problem]:
    """Changed values that a running gateway cannot take over."""
    if (old.tenants is None) is not (new.tenants is None):
        yield Problem(path=(), message="whether there is a tenants.d changed: only a restart can take that over")
    yield from _fixed(old, new, ())


def _fixed(old: BaseModel, new: BaseModel, path: Path) -> Iterator[Problem]:
    for name, field in type(old).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if isinstance(before, BaseModel) and isinstance(after, BaseModel):
            yield from _fixed(before, after, (*path, name))
        elif isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("x-restart"):
            yield Problem(path=(*path, name), message="changed: only a restart can take that over")


def reopened(old: Config, new: Config, ids: Collection[str]) -> list[str]:
    """Which of these keys were blocked by their file, and are active by it now."""
    shut = {key.id for key in _keys(old) if key.id in ids and key.state == "blocked"}
    return [key.id for key in _keys(new) if key.id in shut and key.state == "active"]


def _keys(config: Config) -> Iterator[Key]:
    return (key for tenant in (config.tenants or {}).values() for key in tenant.keys)


def fixed_checksum(config: Config) -> str:
    """The same where `need_restart` has nothing to say."""
    values = [f"tenants={config.tenants is not None}", *_fixed_values(config, "")]
    return hashlib.sha256("\n".join(values).encode()).hexdigest()[:16]


def _fixed_values(section: BaseModel, path: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        inside = isinstance(value, BaseModel)
        if inside:
            yield from _fixed_values(value, f"{path}.{name}")
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("x-restart"):
            yield f"{path}.{name}={'set' if inside else repr(value)}"


def differences(old: Config, new: Config) -> tuple[str, ...]:
    """The names of what is different, as `admission.max_queued`, `endpoints.s0`, `tenants.acme`."""
    sections = [name for section in Config.model_fields for name in _different(section, old, new)]
    return (*sections, *_names("tenants", dict(old.tenants or {}), dict(new.tenants or {})))


def _different(section: str, old: Config, new: Config) -> Iterator[str]:
    before, after = getattr(old, section), getattr(new, section)
    if isinstance(before, BaseModel):
        yield from _names(section, dict(before), dict(after))
    elif isinstance(before, dict):
        yield from _names(section, before, after)
    elif isinstance(before, tuple):
        yield from _names(section, {each.name: each for each in before}, {each.name: each for each in after})
    elif before != after:
        yield section


def _names(section: str, before: dict[str, object], after: dict[str, object]) -> Iterable[str]:
    names = dict.fromkeys([*before, *after])
    return [f"{section}.{name}" for name in names if before.get(name) != after.get(name)]
