"""What must meet for hard partitions: endpoints, tenants and the partition itself name each other, and none stands alone.

As in checks.py these run on plain values, also where other fields are wrong.
"""

from collections.abc import Iterator

from gateway.config.document import Plain
from gateway.config.plain import Mapping, items, mapping, texts
from gateway.config.problems import Path, Problem, did_you_mean
from gateway.config.tenant_checks import File, Fleet, Found
from policies.types import SHARED


def contradictions(fleet: Fleet) -> Found:
    """What contradicts something else, in whichever file."""
    root = mapping(fleet.root)
    named = mapping(root.get("partitions"))
    for problem in (*_partitions(root, named, fleet), *_endpoints(root, named), *_without_files(root, fleet)):
        yield "", problem
    served = _served(root)
    for tenant in fleet.tenants or []:
        for problem in (*_membership(named, tenant), *_unserved(root, served, tenant), *_group(fleet, tenant)):
            yield tenant.file, problem


def partition_of(held: Plain) -> str:
    """The partition of an endpoint or of a tenant."""
    name = mapping(held).get("partition")
    return name if isinstance(name, str) else SHARED


def _partitions(root: Mapping, named: Mapping, fleet: Fleet) -> Iterator[Problem]:
    """Each has endpoints, and tenants who say so too."""
    tenants = {tenant.id: tenant for tenant in fleet.tenants or []}
    populated = [partition_of(endpoint) for _, endpoint in items(root.get("endpoints"))]
    for name, partition in named.items():
        path: Path = ("partitions", name)
        if name == SHARED:
            yield Problem(path=path, message="always exists, and is not hard: choose another name", at_key=True)
        elif name not in populated:
            yield Problem(path=path, message="no endpoint belongs to this partition", at_key=True)
        for position, tenant in enumerate(texts(mapping(partition).get("tenants"))):
            fault = _fault_of_member(name, tenant, tenants)
            if fault:
                yield Problem(path=(*path, "tenants", position), message=fault)


def _fault_of_member(name: str, tenant: str, tenants: dict[str, File]) -> str:
    if tenant not in tenants:
        return f"there is no tenant {tenant!r}{did_you_mean(tenant, list(tenants))}"
    partition = partition_of(tenants[tenant].merged)
    return f"the file of {tenant!r} says partition: {partition}" if partition != name else ""


def _endpoints(root: Mapping, named: Mapping) -> Iterator[Problem]:
    for index, endpoint in items(root.get("endpoints")):
        name = partition_of(endpoint)
        if name != SHARED and name not in named:
            hint = did_you_mean(name, [SHARED, *named])
            yield Problem(path=("endpoints", index, "partition"), message=f"there is no partition {name!r}{hint}")


def _without_files(root: Mapping, fleet: Fleet) -> Iterator[Problem]:
    given = partition_of(root.get("tenant_defaults"))
    if fleet.tenants is None and given != SHARED:
        message = f"{given} means nothing without tenants.d: there is one tenant, and no key is asked"
        yield Problem(path=("tenant_defaults", "partition"), message=message)


def _membership(named: Mapping, tenant: File) -> Iterator[Problem]:
    name = partition_of(tenant.merged)
    if name == SHARED:
        return
    if name not in named:
        hint = did_you_mean(name, [SHARED, *named])
        yield Problem(path=("partition",), message=f"there is no partition {name!r}{hint}")
    elif tenant.id not in texts(mapping(named[name]).get("tenants")):
        yield Problem(path=("partition",), message=f"partitions.{name}.tenants does not name {tenant.id!r}")


def _served(root: Mapping) -> set[tuple[str, str]]:
    """Partitions and the models that an endpoint serves there."""
    pools = mapping(root.get("pools"))
    return {
        (partition_of(endpoint), str(mapping(pools.get(name)).get("model")))
        for _, endpoint in items(root.get("endpoints"))
        for name in texts(endpoint.get("pools"))
    }


def _unserved(root: Mapping, served: set[tuple[str, str]], tenant: File) -> Iterator[Problem]:
    """A model that its partition does not serve would be refused for ever. One that nobody serves is said elsewhere."""
    partition, known = partition_of(tenant.merged), {model for _, model in served}
    if partition not in (SHARED, *(name for name, _ in served)):
        return  # that nothing belongs to it is said elsewhere
    for index, grant in items(mapping(tenant.merged).get("models")):
        model = str(grant.get("name"))
        if model in known and (partition, model) not in served:
            message = f"no endpoint of the partition {partition} serves {model!r}"
            yield Problem(path=("models", index, "name"), message=message)


def _group(fleet: Fleet, tenant: File) -> Iterator[Problem]:
    """Whoever shares a cache shares engines."""
    cache = mapping(mapping(tenant.merged).get("cache"))
    if cache.get("isolation") != "group":
        return
    for other in fleet.tenants or []:
        theirs = mapping(mapping(other.merged).get("cache"))
        if theirs.get("isolation") != "group" or theirs.get("group") != cache.get("group"):
            continue
        if partition_of(other.merged) != partition_of(tenant.merged):
            message = f"{cache.get('group')}: {other.id!r} is in another partition; no cache is shared across one"
            yield Problem(path=("cache", "group"), message=message)
            return
