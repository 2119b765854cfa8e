"""What several workers answer as one answer. What is counted is added up; of the rest the one that worries most is shown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from gateway.usage import part

Body = Mapping[str, Any]


def health(bodies: Sequence[Body]) -> dict[str, Any]:
    """An endpoint is up where all workers find it up."""
    return {
        "phase": min((body["phase"] for body in bodies), key=_PHASES.index),
        "version": bodies[0]["version"],
        "uptime_s": max(body["uptime_s"] for body in bodies),
        "requests": _added([body["requests"] for body in bodies]),
        "endpoints": _by(["name"], bodies, "endpoints", _endpoint),
    }


def queues(bodies: Sequence[Body]) -> dict[str, Any]:
    """Queues of the same pool, tenant and class as one."""
    return {
        "queued": sum(body["queued"] for body in bodies),
        "queued_bytes": sum(body["queued_bytes"] for body in bodies),
        "flows": _by(["pool", "tenant", "class"], bodies, "flows", _flow),
        "endpoints": _by(["name"], bodies, "endpoints", _load),
    }


def fleet(bodies: Sequence[Body]) -> dict[str, Any]:
    """What runs on each endpoint is added up; its state is the worst that a worker knows of, its load what was seen last."""
    return {"endpoints": _by(["name"], bodies, "endpoints", _member)}


def member(bodies: Sequence[Body]) -> dict[str, Any]:
    """The worst state of one endpoint."""
    return {**_worst(bodies), "replicas": _replicas(bodies)}


def reload(bodies: Sequence[Body]) -> dict[str, Any]:
    """One worker may have seen the change before it was told: what any of them has changed."""
    changed = dict.fromkeys(name for body in bodies for name in body["changed"])
    return {"checksum": bodies[0]["checksum"], "changed": list(changed)}


def config(bodies: Sequence[Body]) -> dict[str, Any]:
    """The first one's, with the last failure of any; `checksums` where they differ, which a moment later they do not."""
    failures = [body["last_failure"] for body in bodies if body["last_failure"]]
    checksums = [body["checksum"] for body in bodies]
    made = {**bodies[0], "last_failure": failures[0] if failures else None}
    return made if len(set(checksums)) == 1 else {**made, "checksums": checksums}


def usage(bodies: Sequence[Body]) -> dict[str, Any]:
    """What is counted is added up. How full a limit is, each worker knows of the whole of it: the fullest sight is shown."""
    queues = [body["queue"] for body in bodies]
    classes = dict.fromkeys(name for queue in queues for name in queue["classes"])
    return {
        **bodies[0],
        "degraded": any(body["degraded"] for body in bodies),
        "replicas": _replicas(bodies),
        "limits": _by(["scope", "of"], bodies, "limits", _meter),
        "budgets": _by(["scope", "of", "period"], bodies, "budgets", _meter),
        "concurrency": _by(["scope", "of"], bodies, "concurrency", _slots),
        "shares": shares(bodies),
        "queue": {
            **queues[0],
            **_added([{name: queue[name] for name in ("queued", "queued_bytes")} for queue in queues]),
            "classes": {
                name: _added([queue["classes"][name] for queue in queues if name in queue["classes"]])
                for name in classes
            },
        },
    }


def shares(bodies: Sequence[Body]) -> list[dict[str, Any]]:
    """What one tenant had of what all have served."""
    return _by(["pool", "class"], bodies, "shares", _share)


def usages(bodies: Sequence[Body]) -> dict[str, Any]:
    """The usage of each tenant."""
    return {"tenants": _by(["tenant"], bodies, "tenants", usage)}


def keys(bodies: Sequence[Body]) -> dict[str, Any]:
    """A key was last used when any of them last saw it."""
    return {"keys": _by(["id"], bodies, "keys", _key)}


_COUNTED = ("held", "reserved", "extra", "refunded", "settled", "written_off")
_PHASES = ("serving", "starting", "draining")
_STATES = ("up", "down", "draining")  # the worst is last


def _worst(views: Sequence[Body]) -> Body:
    return max(views, key=lambda view: (_STATES.index(view["state"]), view["since"]))


def _replicas(bodies: Sequence[Body]) -> dict[str, int]:
    """Each worker is one replica, and knows how many there are."""
    here = sum(body["replicas"]["here"] for body in bodies)
    return {"here": here, "live": max(here, *(body["replicas"]["live"] for body in bodies))}


def _by(
    keys: Sequence[str], bodies: Sequence[Body], what: str, join: Callable[[list[Body]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The entries of all under `what`, those of equal keys joined."""
    groups: dict[tuple[Any, ...], list[Body]] = {}
    for body in bodies:
        for entry in body[what]:
            groups.setdefault(tuple(entry.get(key) for key in keys), []).append(entry)
    return [join(group) for group in groups.values()]


def _key(entries: list[Body]) -> dict[str, Any]:
    return {**entries[0], "last_use": max((entry["last_use"] for entry in entries if entry["last_use"]), default=None)}


def _added(entries: Iterable[Body]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for entry in entries:
        for name, value in entry.items():
            made[name] = made.get(name, 0) + value
    return made


def _endpoint(views: list[Body]) -> dict[str, Any]:
    return {
        "name": views[0]["name"],
        "up": all(view["up"] for view in views),
        "suspected": any(view["suspected"] for view in views),
        "failures": max(view["failures"] for view in views),
        "cause": next((view["cause"] for view in views if view["cause"]), ""),
        "outstanding": _outstanding(views),
        "engine": min((view["engine"] for view in views), key=_age_s),
    }


def _member(views: list[Body]) -> dict[str, Any]:
    worst = _worst(views)
    failures = [view["last_failure"] for view in views if view["last_failure"]]
    found = [view["found"] for view in views]
    return {
        **views[0],
        "state": worst["state"],
        "since": worst["since"],
        "healthy": all(view["healthy"] for view in views),
        "suspected": any(view["suspected"] for view in views),
        "last_failure": max(failures, key=itemgetter("at"), default=None),
        "outstanding": _outstanding(views),
        "load": min((view["load"] for view in views), key=_age_s),
        "stale": all(view["stale"] for view in views),
        "found": {name: next((each[name] for each in found if each[name]), None) for name in found[0]},
    }


def _outstanding(views: list[Body]) -> dict[str, Any] | None:
    loads = [view["outstanding"] for view in views if view["outstanding"] is not None]
    return _added(loads) if loads else None


def _age_s(engine: Body | None) -> float:
    """How old what an engine has said is; the freshest is shown."""
    age_s = engine["age_s"] if engine is not None else None
    return float(age_s) if age_s is not None else float("inf")


def _load(views: list[Body]) -> dict[str, Any]:
    counts = [{name: value for name, value in view.items() if name not in ("name", "up")} for view in views]
    return {"name": views[0]["name"], "up": all(view["up"] for view in views), **_added(counts)}


def _meter(views: list[Body]) -> dict[str, Any]:
    return {
        **views[0],
        "used": max(view["used"] for view in views),
        "left": min(view["left"] for view in views),
        "reset_s": max(view["reset_s"] for view in views),
        **{name: round(sum(view[name] for view in views), 3) for name in _COUNTED},
        "denied": _added([view["denied"] for view in views]),
    }


def _slots(views: list[Body]) -> dict[str, Any]:
    """Each knows how many there are, and how many run with it."""
    return {**views[0], "used": sum(view["used"] for view in views)}


def _share(views: list[Body]) -> dict[str, Any]:
    """Each knows what it has served itself. The fair part is that of the one which knows of the most who want one."""
    cost, of = sum(view["cost"] for view in views), sum(view["of"] for view in views)
    fair = [view["fair_share"] for view in views if view["fair_share"] is not None]
    return {
        **views[0],
        "cost": round(cost, 3),
        "of": round(of, 3),
        "share": part(cost, of),
        "fair_share": min(fair, default=None),
    }


def _flow(views: list[Body]) -> dict[str, Any]:
    return {
        **views[0],
        "queued": sum(view["queued"] for view in views),
        "queued_bytes": sum(view["queued_bytes"] for view in views),
        "oldest_s": max(view["oldest_s"] for view in views),
    }
