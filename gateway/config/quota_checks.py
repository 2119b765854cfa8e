"""What contradicts itself or does not do what somebody may have meant in the limits of a tenant. On plain values."""

from collections.abc import Iterator

from gateway.config.document import Plain
from gateway.config.plain import Mapping, items, mapping
from gateway.config.problems import Path, Problem
from gateway.config.quotas import BURST_S, RATES, SLOTS

_SHARED = ("rpm", "tpm", "max_concurrency")  # what tenant, key and model have alike


def wrong(held: Mapping) -> Iterator[Problem]:
    """What contradicts something else in a tenant."""
    limits, cost = mapping(held.get("limits")), mapping(held.get("cost"))
    if cost and all(cost.get(name, 1.0) == 0 for name in ("input", "cached", "output")):
        yield Problem(path=("cost",), message="every token is worth 0: no limit of tokens would ever be reached")
    for rate, parts in (("itpm", ("input", "cached")), ("otpm", ("output",))):
        if limits.get(rate) is not None and all(cost.get(name, 1.0) == 0 for name in parts):
            yield Problem(path=("limits", rate), message="counts nothing: what it counts is worth 0 (cost)")
    seen = {*RATES} | ({"tpd"} if limits.get("tpd") is not None else set())
    for index, budget in items(held.get("budgets")):
        name, path = budget.get("id"), ("budgets", index, "id")
        if name in RATES:
            yield Problem(path=path, message=f"{name} is the name of a rate")
        elif name in seen and isinstance(name, str):
            yield Problem(path=path, message="another budget has this id" if name != "tpd" else "limits.tpd is that")
        seen.add(str(name))


def idle(root: Mapping, held: Mapping) -> Iterator[Problem]:
    """What is legal, but will hardly be meant."""
    limits = mapping(held.get("limits"))
    for part in ("keys", "models"):
        for index, item in items(held.get(part)):
            yield from _above(
                (part, index, "limits"), mapping(item.get("limits")), {"max_concurrency": SLOTS, **limits}
            )
    if held.get("mode") == "shadow" and not _is_limited(held):
        yield Problem(path=("mode",), message="shadow: there is no rate and no budget to try out")
    yield from _too_small(root, held, limits)


def _above(path: Path, own: Mapping, limits: Mapping) -> Iterator[Problem]:
    for name in _SHARED:
        mine, whole = own.get(name), limits.get(name)
        if isinstance(mine, int) and isinstance(whole, int) and mine > whole:
            yield Problem(path=(*path, name), message=f"is above the tenant's {whole}, which holds")


def _is_limited(held: Mapping) -> bool:
    scopes = [mapping(held.get("limits")), *(mapping(item.get("limits")) for item in _parts(held))]
    rates = (*RATES, "tpd")
    return bool(held.get("budgets")) or any(scope.get(rate) is not None for scope in scopes for rate in rates)


def _parts(held: Mapping) -> Iterator[Mapping]:
    for part in ("keys", "models"):
        for _, item in items(held.get(part)):
            yield item


def _too_small(root: Mapping, held: Mapping, limits: Mapping) -> Iterator[Problem]:
    """A rate of tokens at which an answer of the longest kind can never begin."""
    burst_s, weight = limits.get("burst_s", BURST_S), mapping(held.get("cost")).get("output", 1.0)
    models, own = mapping(root.get("models")), limits.get("max_output_tokens")
    if not isinstance(burst_s, int | float) or not isinstance(weight, int | float):
        return
    for rate in ("tpm", "otpm"):
        limit = limits.get(rate)
        for _, grant in items(held.get("models")):
            name = grant.get("name")
            longest = _longest(mapping(models.get(str(name))), own)
            if isinstance(limit, int) and longest and limit * burst_s / 60 < longest * weight:
                message = f"holds less than one answer of {longest} tokens, the most of {name}: such a wish is refused"
                yield Problem(path=("limits", rate), message=message)
                break


def _longest(model: Mapping, own: Plain) -> int:
    context, written = model.get("context_tokens"), model.get("max_output_tokens")
    most = written if isinstance(written, int) else min(context, 8192) if isinstance(context, int) else 0
    return min(most, own) if isinstance(own, int) else most
