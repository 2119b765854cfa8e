"""What no tenant's file can know alone: names that must meet the fleet's, keys that must differ, who shares a cache.

As in checks.py these run on plain values, also where other fields are wrong. A problem comes with the file it stands
in, "" for forebay.yaml. `contradictions` are errors; `useless` is legal and warned of.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.config import quota_checks
from gateway.config.document import Plain
from gateway.config.plain import Mapping, items, mapping, texts
from gateway.config.problems import Path, Problem, did_you_mean
from gateway.config.tenant import CLASSES, ID
from gateway.engines import ENGINES
from policies.types import SHARED

Found = Iterator[tuple[str, Problem]]
_SALTED = ("chat", "completions", "responses", "messages")  # the routes on which prefixes are cached


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A tenant's file: what it says, and the same over `tenant_defaults`. `id` is the file's name."""

    file: str
    id: str
    own: Plain
    merged: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All files. `tenants` None: there is no folder for them."""

    root: Plain
    tenants: list[File] | None


def contradictions(fleet: Fleet) -> Found:
    """What contradicts something else, in whichever file."""
    root, tenants = mapping(fleet.root), fleet.tenants or []
    for problem in _of_tenant(root, mapping(root.get("tenant_defaults")), known_as=None):
        yield "", Problem(path=("tenant_defaults", *problem.path), message=problem.message)
    for tenant in tenants:
        for problem in (*_identity(tenant), *_of_tenant(root, mapping(tenant.merged), known_as=tenant.id)):
            yield tenant.file, problem
        for problem in _classes(tenant):
            yield tenant.file, problem
    yield from _twins(tenants)
    for problem in (
        *_groups(root, fleet),
        *_secret(root, fleet),
        *_nobody_is_asked(root, fleet),
        *_unsalted(root, fleet),
    ):
        yield "", problem


def useless(fleet: Fleet) -> Found:
    """What is legal, but does not do what somebody may have meant."""
    root = mapping(fleet.root)
    if fleet.tenants == []:
        yield "", Problem(path=(), message="tenants.d holds no file: nobody has a key, every request gets 401")
    for tenant in fleet.tenants or []:
        held = mapping(tenant.merged)
        if not held.get("keys"):
            yield tenant.file, Problem(path=("keys",), message="no keys: nobody can use this tenant")
        for problem in quota_checks.idle(root, held):
            yield tenant.file, problem
        ceiling = held.get("class_ceiling") or held.get("class") or "standard"
        for index, key in items(held.get("keys")):
            if _urgency(key.get("class_ceiling")) < _urgency(ceiling):
                message = f"is above the tenant's class_ceiling {ceiling}, which holds"
                yield tenant.file, Problem(path=("keys", index, "class_ceiling"), message=message)
    yield from _idle_members(root, fleet)
    yield from _half_salted(root, fleet)


# -- one tenant ----------------------------------------------------------------------------------------------------


def _identity(tenant: File) -> Iterator[Problem]:
    given, name = mapping(tenant.own).get("id"), tenant.id
    if not ID.fits(name):  # then no `id` is right
        hint = f", say to {name.lower()}.yaml" if ID.fits(name.lower()) else ""
        yield Problem(path=(), message=f"the file's name must be {ID.what}, not {name!r}: rename the file{hint}")
    elif isinstance(given, str) and given != name:
        yield Problem(path=("id",), message=f"must be {name!r}, the file's name without .yaml, not {given!r}")


def _of_tenant(root: Mapping, held: Mapping, known_as: str | None) -> Iterator[Problem]:
    """What must meet in a tenant, or in what all inherit (`known_as` None)."""
    yield from _models(root, held)
    yield from _cache(root, mapping(held.get("cache")), known_as)
    yield from quota_checks.wrong(held)
    if held.get("on_store_down") is not None and root.get("redis") is None:
        yield Problem(path=("on_store_down",), message="means nothing without redis: there is no store")


def _models(root: Mapping, held: Mapping) -> Iterator[Problem]:
    models = root.get("models")
    names: dict[str, str] = {}  # name or alias -> the model it stands for
    for index, grant in items(held.get("models")):
        name, path = grant.get("name"), ("models", index, "name")
        if not isinstance(name, str):
            continue
        if isinstance(models, dict) and name not in models:
            yield Problem(path=path, message=f"there is no model {name!r}{did_you_mean(name, list(models))}")
        if names.get(name) == name:
            yield Problem(path=path, message=f"model {name!r} is named twice")
        elif name in names:
            yield Problem(path=path, message=f"is also an alias of {names[name]!r}")
        names[name] = name
        for position, alias in enumerate(texts(grant.get("aliases"))):
            if alias in names:
                message = f"already names {names[alias]!r} here"
                yield Problem(path=("models", index, "aliases", position), message=message)
            names.setdefault(alias, name)


def _cache(root: Mapping, cache: Mapping, known_as: str | None) -> Iterator[Problem]:
    isolation, group = cache.get("isolation", "tenant"), cache.get("group")
    if isolation != "group":
        if group is not None:
            yield Problem(path=("cache", "group"), message=f"means nothing with isolation: {isolation}")
        return
    groups = mapping(mapping(root.get("isolation")).get("groups"))
    if group is None:
        yield Problem(path=("cache", "isolation"), message="group: name it, cache.group")
    elif isinstance(group, str) and group not in groups:
        hint = did_you_mean(group, list(groups))
        yield Problem(path=("cache", "group"), message=f"there is no group {group!r} in isolation.groups{hint}")
    elif isinstance(group, str) and known_as is not None and known_as not in texts(groups[group]):
        yield Problem(path=("cache", "group"), message=f"isolation.groups.{group} does not name {known_as!r}")


def _classes(tenant: File) -> Iterator[Problem]:
    own, held = mapping(tenant.own), mapping(tenant.merged)
    given, ceiling = held.get("class", "standard"), held.get("class_ceiling")
    if ceiling is not None and _urgency(given) < _urgency(ceiling) < len(CLASSES):
        if "class" in own:
            yield Problem(path=("class",), message=f"{given} is more urgent than class_ceiling, {ceiling}")
        else:
            yield Problem(path=("class_ceiling",), message=f"{ceiling} is less urgent than class, {given}")


# -- between tenants -----------------------------------------------------------------------------------------------


def _twins(tenants: list[File]) -> Found:
    """Keys must differ in id and hash in the whole fleet: the second one is at fault."""
    seen: dict[tuple[str, str], str] = {}
    for tenant, index, key in _keys(tenants):
        for name, word in (("id", "id"), ("sha256", "hash")):
            mark = (name, str(key.get(name)).lower())
            if mark in seen and isinstance(key.get(name), str):
                message = f"a key of {seen[mark]} has this {word}"
                yield tenant.file, Problem(path=("keys", index, name), message=message)
            seen.setdefault(mark, tenant.id)


def _keys(tenants: list[File]) -> Iterator[tuple[File, int, Mapping]]:
    for tenant in tenants:
        for index, key in items(mapping(tenant.own).get("keys")):
            yield tenant, index, key


def _groups(root: Mapping, fleet: Fleet) -> Iterator[Problem]:
    known = [tenant.id for tenant in fleet.tenants or []]
    for name, members in mapping(mapping(root.get("isolation")).get("groups")).items():
        names = texts(members)
        for position, member in enumerate(names):
            path: Path = ("isolation", "groups", name, position)
            if member not in known:
                yield Problem(path=path, message=f"there is no tenant {member!r}{did_you_mean(member, known)}")
            elif member in names[:position]:
                yield Problem(path=path, message=f"tenant {member!r} is named twice")


def _secret(root: Mapping, fleet: Fleet) -> Iterator[Problem]:
    if len(fleet.tenants or []) > 1 and "salt_secret" not in mapping(root.get("isolation")):
        yield Problem(path=("isolation", "salt_secret"), message="required with more than one tenant")
    elif root.get("redis") is not None and "salt_secret" not in mapping(root.get("isolation")):
        message = "required with redis: replicas must send engines the same salts"
        yield Problem(path=("isolation", "salt_secret"), message=message)


def _nobody_is_asked(root: Mapping, fleet: Fleet) -> Iterator[Problem]:
    """What contradicts that keys are asked for, or that they are not."""
    if fleet.tenants is not None:
        if mapping(root.get("listen")).get("allow_anonymous") is True:
            message = "means nothing beside tenants.d: every request needs a key"
            yield Problem(path=("listen", "allow_anonymous"), message=message)
        return
    isolation = mapping(mapping(root.get("tenant_defaults")).get("cache")).get("isolation")
    if isolation in ("key", "group"):
        message = f"{isolation} means nothing without tenants.d: there is one tenant, and no key is asked"
        yield Problem(path=("tenant_defaults", "cache", "isolation"), message=message)


# -- who shares an engine ------------------------------------------------------------------------------------------


def _unsalted(root: Mapping, fleet: Fleet) -> Iterator[Problem]:
    """An engine that takes no salt may serve only one isolation domain (tenancy.md 7)."""
    for index, endpoint in items(root.get("endpoints")):
        engine = ENGINES.get(str(endpoint.get("engine", "vllm")))
        if engine is None or engine.salted_routes:
            continue
        domains = sorted(_domains(root, fleet, endpoint))
        if len(domains) > 1:
            message = (
                f"{engine.name} takes no cache_salt: it may serve one cache domain, not {' and '.join(domains[:3])}"
            )
            yield Problem(path=("endpoints", index, "engine"), message=message)


def _half_salted(root: Mapping, fleet: Fleet) -> Found:
    for index, endpoint in items(root.get("endpoints")):
        engine = ENGINES.get(str(endpoint.get("engine", "vllm")))
        missing = [route for route in _SALTED if engine is not None and route not in engine.salted_routes]
        if engine is not None and engine.salted_routes and missing and len(_domains(root, fleet, endpoint)) > 1:
            message = f"{engine.name} takes no cache_salt on {', '.join(missing)}: there tenants share its prefix cache"
            yield "", Problem(path=("endpoints", index, "engine"), message=message)


def _domains(root: Mapping, fleet: Fleet, endpoint: Mapping) -> set[str]:
    """Whose prefix caches stand on an endpoint."""
    pools = mapping(root.get("pools"))
    models = {mapping(pools.get(name)).get("model") for name in texts(endpoint.get("pools"))}
    made: set[str] = set()
    for tenant in fleet.tenants or []:
        held = mapping(tenant.merged)
        if held.get("partition", SHARED) != endpoint.get("partition", SHARED):
            continue
        if any(grant.get("name") in models for _, grant in items(held.get("models"))):
            made |= _domains_of(tenant.id, held)
    return made


def _domains_of(tenant: str, held: Mapping) -> set[str]:
    cache = mapping(held.get("cache"))
    match cache.get("isolation"):
        case "key":
            return {f"key {key.get('id')}" for _, key in items(held.get("keys"))}
        case "group":
            return {f"group {cache.get('group')}"}
        case _:
            return {f"tenant {tenant}"}


def _idle_members(root: Mapping, fleet: Fleet) -> Found:
    using = {tenant.id: mapping(mapping(tenant.merged).get("cache")).get("group") for tenant in fleet.tenants or []}
    for name, members in mapping(mapping(root.get("isolation")).get("groups")).items():
        for position, member in enumerate(texts(members)):
            if using.get(member) != name:
                message = f"{member!r} does not use it: its file has no cache: {{isolation: group, group: {name}}}"
                yield "", Problem(path=("isolation", "groups", name, position), message=message)


def _urgency(name: Plain) -> int:
    return CLASSES.index(name) if name in CLASSES else len(CLASSES)
