"""What no single field can know: names that must meet, addresses that must differ, what must not be open.

These run on the plain values, also where other fields are wrong, so that one run names every error. A value of the
wrong type is somebody else's complaint: here it is passed over.
"""

from collections import Counter
from collections.abc import Iterator

from gateway.config.document import Plain
from gateway.config.kinds import is_loopback, plain_host, url_parts
from gateway.config.plain import Mapping, items, mapping
from gateway.config.problems import Path, Problem, did_you_mean
from gateway.config.scheduling import Classes
from policies.types import SHARED

LAST_PORT = 65_535

POOLS_A_MODEL = 4  # tenancy.md 1.1
SYNCS_A_LEASE = 20  # so that a few lost calls lose no lease
MIN_SHARES = 0.5
ROUNDING = 1e-9


def contradictions(plain: Plain, *, keys_asked: bool = False) -> Iterator[Problem]:
    """Everything in the file that contradicts something else in it. `keys_asked`: there are tenant files."""
    root = mapping(plain)
    yield from _references(root)
    yield from _twins(root)
    yield from _exposure(root, keys_asked)
    yield from _outputs(root)
    yield from _lenders(root)
    yield from _idle_fields(root)
    yield from _short_leases(mapping(root.get("redis")))
    yield from _closed_to_long_prompts(root)
    yield from _classes(root)


def _short_leases(redis: Mapping) -> Iterator[Problem]:
    lease_s, sync_s = redis.get("lease_s", 30.0), redis.get("sync_s", 0.25)
    if not isinstance(lease_s, int | float) or not isinstance(sync_s, int | float) or not 0 < sync_s <= 5:
        return
    if lease_s < SYNCS_A_LEASE * sync_s:
        yield Problem(path=("redis", "lease_s"), message=f"must be at least {SYNCS_A_LEASE} times sync_s, {sync_s:g}")


def _references(root: Mapping) -> Iterator[Problem]:
    models, pools = root.get("models"), root.get("pools")
    if not isinstance(models, dict) or not isinstance(pools, dict):
        return
    serving: Counter[str] = Counter()
    for name, pool in pools.items():
        model = mapping(pool).get("model")
        if not isinstance(model, str):
            continue
        serving[model] += 1
        if model not in models:
            hint = did_you_mean(model, list(models))
            yield Problem(path=("pools", name, "model"), message=f"there is no model {model!r}{hint}")
        elif serving[model] > POOLS_A_MODEL:
            yield Problem(path=("pools", name, "model"), message=f"more than {POOLS_A_MODEL} pools for model {model!r}")
    broken_pool = any(not isinstance(mapping(pool).get("model"), str) for pool in pools.values())
    for model in models:
        if not serving[model] and not broken_pool:
            yield Problem(path=("models", model), message="no pool serves this model", at_key=True)
    yield from _members(root, pools)


def _members(root: Mapping, pools: Mapping) -> Iterator[Problem]:
    members: set[str] = set()
    unclear = not isinstance(root.get("endpoints"), tuple)
    for index, endpoint in _endpoints(root):
        names = endpoint.get("pools")
        if not isinstance(names, tuple):
            unclear = True
            continue
        for position, name in enumerate(names):
            path: Path = ("endpoints", index, "pools", position)
            if not isinstance(name, str):
                unclear = True
            elif name not in pools:
                yield Problem(path=path, message=f"there is no pool {name!r}{did_you_mean(name, list(pools))}")
            elif name in names[:position]:
                yield Problem(path=path, message=f"pool {name!r} is named twice")
            else:
                members.add(name)
    for name in pools:
        if name not in members and not unclear:
            yield Problem(path=("pools", name), message="no endpoint belongs to this pool", at_key=True)


def _twins(root: Mapping) -> Iterator[Problem]:
    """Values that must be unique but come twice: the second one is at fault."""
    names: dict[str, str] = {}
    addresses: dict[str, str] = {}
    feeds: dict[str, str] = {}
    for index, endpoint in _endpoints(root):
        path: Path = ("endpoints", index)
        parts = url_parts(endpoint.get("url"))
        address = f"{plain_host(parts[1])}:{parts[2]}" if parts else None
        yield from _twin(names, endpoint.get("name"), (*path, "name"), "another endpoint has this name")
        yield from _twin(addresses, address, (*path, "url"), f"another endpoint is at {address}")
        yield from _twin_feeds(feeds, endpoint, path)
    ids: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for index, token in items(mapping(root.get("admin")).get("tokens")):
        path = ("admin", "tokens", index)
        yield from _twin(ids, token.get("id"), (*path, "id"), "another token has this id")
        yield from _twin(hashes, token.get("sha256"), (*path, "sha256"), "another token has this hash")


def _twin_feeds(seen: dict[str, str], endpoint: Mapping, path: Path) -> Iterator[Problem]:
    """Each rank has ports of its own."""
    ranks = endpoint.get("kv_events_ranks", 1)
    for name in ("kv_events", "kv_events_replay"):
        url = endpoint.get(name)
        if not isinstance(url, str) or not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= 64:
            continue
        host, _, port = url.rpartition(":")
        if not port.isdecimal():
            continue
        if int(port) + ranks - 1 > LAST_PORT:
            yield Problem(path=(*path, name), message=f"{ranks} ranks need ports up to {int(port) + ranks - 1}")
        for rank in range(ranks):
            yield from _twin(seen, f"{host}:{int(port) + rank}", (*path, name), "there is another feed there")


def _twin(seen: dict[str, str], value: Plain, path: Path, message: str) -> Iterator[Problem]:
    if not isinstance(value, str):
        return
    if value in seen:
        yield Problem(path=path, message=message)
    seen[value] = value


def _exposure(root: Mapping, keys_asked: bool) -> Iterator[Problem]:
    listen, admin = mapping(root.get("listen")), mapping(root.get("admin"))
    host, admin_host = listen.get("host", "0.0.0.0"), admin.get("host", "127.0.0.1")
    meant = keys_asked or listen.get("allow_anonymous", False) is not False
    if isinstance(host, str) and not is_loopback(host) and not meant:
        yield Problem(
            path=("listen", "host"),
            message=f"{host} can be reached by others and no key is asked for:"
            " add tenants.d, listen on 127.0.0.1, or set listen.allow_anonymous: true",
        )
    if isinstance(admin_host, str) and not is_loopback(admin_host) and not admin.get("tokens"):
        yield Problem(path=("admin", "host"), message=f"{admin_host} can be reached by others: set admin.tokens")
    port, admin_port = listen.get("port", 8080), admin.get("port", 9090)
    if port == admin_port:
        path: Path = ("admin", "port") if "port" in admin else ("listen", "port")
        yield Problem(path=path, message=f"listen and admin both use port {port}")


def _outputs(root: Mapping) -> Iterator[Problem]:
    for name, model in mapping(root.get("models")).items():
        context, output = mapping(model).get("context_tokens"), mapping(model).get("max_output_tokens")
        if isinstance(context, int) and isinstance(output, int) and output > context:
            yield Problem(
                path=("models", name, "max_output_tokens"), message=f"{output} is more than context_tokens, {context}"
            )


def _lenders(root: Mapping) -> Iterator[Problem]:
    """Whom each pool borrows from."""
    pools = mapping(root.get("pools"))
    for name, pool in pools.items():
        lenders = mapping(pool).get("borrow")
        for position, lender in enumerate(lenders if isinstance(lenders, tuple) else ()):
            fault = _fault_of_lender(pools, name, lender)
            if not fault and isinstance(lenders, tuple) and lender in lenders[:position]:
                fault = f"pool {lender!r} is named twice"
            if fault:
                yield Problem(path=("pools", name, "borrow", position), message=fault)


def _fault_of_lender(pools: Mapping, name: str, lender: Plain) -> str:
    if not isinstance(lender, str):
        return ""
    if lender not in pools:
        return f"there is no pool {lender!r}{did_you_mean(lender, list(pools))}"
    if lender == name:
        return "a pool cannot borrow from itself"
    own, other = mapping(pools[name]).get("model"), mapping(pools[lender]).get("model")
    if isinstance(own, str) and isinstance(other, str) and own != other:
        return f"pool {lender!r} serves another model, {other!r}"
    return ""


def _closed_to_long_prompts(root: Mapping) -> Iterator[Problem]:
    lanes: dict[tuple[str, str], list[Plain]] = {}
    for _, endpoint in _endpoints(root):
        members = endpoint.get("pools")
        for name in members if isinstance(members, tuple) else ():
            if isinstance(name, str):
                lanes.setdefault((name, str(endpoint.get("partition", SHARED))), []).append(
                    endpoint.get("long_lanes", 1)
                )
    closed = {name: partition for (name, partition), each in lanes.items() if not any(each)}
    for name, pool in mapping(root.get("pools")).items():
        held = mapping(pool)
        if held.get("lanes") != "off" and not held.get("borrow") and name in closed:
            where = "" if closed[name] == SHARED else f" of {closed[name]}"
            message = (
                f"all its endpoints{where} have long_lanes: 0 and it borrows from none: nobody would take a long prompt"
            )
            yield Problem(path=("pools", name), message=message, at_key=True)


def _idle_fields(root: Mapping) -> Iterator[Problem]:
    """Fields about scheduling that nothing would look at beside the others."""
    for name, pool in mapping(root.get("pools")).items():
        if mapping(pool).get("lanes") == "off" and mapping(pool).get("long_prompt_tokens") is not None:
            yield Problem(path=("pools", name, "long_prompt_tokens"), message="means nothing with lanes: off")
    for index, endpoint in _endpoints(root):
        engine = endpoint.get("engine")
        if engine in ("trtllm", "openai") and endpoint.get("kv_events") is not None:
            message = f"means nothing with engine: {engine}, which publishes no such events"
            yield Problem(path=("endpoints", index, "kv_events"), message=message)
        if engine in ("trtllm", "openai") and endpoint.get("priority_field") is True:
            message = f"means nothing with engine: {engine}, which is sent no priority"
            yield Problem(path=("endpoints", index, "priority_field"), message=message)
        for name, nothing in (("kv_events_replay", None), ("kv_events_ranks", 1)):
            if endpoint.get(name, nothing) != nothing and endpoint.get("kv_events") is None:
                yield Problem(path=("endpoints", index, name), message="means nothing without kv_events")
    length = mapping(root.get("length"))
    if length.get("kind") == "declared" and length.get("state_file") is not None:
        yield Problem(path=("length", "state_file"), message="nothing is learned with kind: declared")
    batch = mapping(mapping(root.get("classes")).get("batch"))
    if batch.get("on_late") == "downgrade":
        yield Problem(path=("classes", "batch", "on_late"), message="no class is less urgent than batch")
    if _number(batch.get("reserved")) > 0:
        message = "no class is less urgent than batch, so none could leave anything free for it"
        yield Problem(path=("classes", "batch", "reserved"), message=message)


def _classes(root: Mapping) -> Iterator[Problem]:
    """What classes may hold of a pool: less and less, and never what more urgent ones have reserved."""
    told = mapping(root.get("classes"))
    most, reserved, shares = 1.0, 0.0, 0.0
    for name, default in Classes():
        held = mapping(told.get(name))
        ceiling, own, share = (
            _number(held.get(field, getattr(default, field))) for field in ("ceiling", "reserved", "min_share")
        )
        path: Path = ("classes", name, "ceiling")
        if ceiling > most:
            yield _at(root, path, f"{ceiling:g} is more than that of a more urgent class, {most:g}")
        elif ceiling > 1.0 - reserved + ROUNDING:
            yield _at(root, path, f"{ceiling:g} is more than more urgent classes leave: {reserved:g} is reserved")
        most, reserved, shares = ceiling, reserved + own, shares + share
    if shares > MIN_SHARES + ROUNDING:
        yield Problem(path=("classes",), message=f"min_share of all classes is {shares:g}, more than {MIN_SHARES:g}")
    fairness = mapping(mapping(root.get("admission")).get("fairness"))
    if fairness.get("kind") == "round_robin":
        for field in ("quantum", "input", "cached", "output"):
            if field in fairness:
                path = ("admission", "fairness", field)
                yield Problem(
                    path=path, message="means nothing with kind: round_robin, where every request costs the same"
                )


def _at(root: Mapping, path: Path, message: str) -> Problem:
    """At the field; at the classes if it is not in the file."""
    held: Plain = root
    for depth, step in enumerate(path):
        if step not in mapping(held):
            return Problem(path=path[:depth], message=f"{'.'.join(map(str, path[depth:]))}: {message}")
        held = mapping(held)[str(step)]
    return Problem(path=path, message=message)


def _number(value: Plain) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _endpoints(root: Mapping) -> Iterator[tuple[int, Mapping]]:
    return items(root.get("endpoints"))
