"""All keys of a configuration, by their hash: made anew from each configuration, never changed."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from gateway.callers import Caller, ServedModel
from gateway.config import Config, Tenant
from gateway.config.tenant import CLASSES, Allow, Key
from gateway.dialects.call import FieldRules
from gateway.tenants.salts import cache_salt
from policies.types import SHARED


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of the file, `key` its id. `caller` None: it opens nothing, because of `cause`."""

    digest: bytes
    caller: Caller | None
    cause: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Book:
    """Who is known. `anonymous`: everybody, where no key is asked for."""

    keys: Mapping[bytes, Entry]
    anonymous: Caller | None = None

    def without(self, blocked: Collection[str]) -> "Book":
        """The same, in which these keys open nothing."""
        if not blocked:
            return self
        shut = {
            digest: Entry(digest, None, "blocked", entry.key)
            for digest, entry in self.keys.items()
            if entry.caller is not None and entry.key in blocked
        }
        return Book({**self.keys, **shut}, self.anonymous) if shut else self

    def knows(self, key: str) -> bool:
        """Whether there is a key with this id, open or not."""
        return any(entry.key == key for entry in self.keys.values())

    def callers(self) -> dict[tuple[str, str], Caller]:
        """Everybody who may use the gateway, by tenant and key."""
        found = [self.anonymous, *(entry.caller for entry in self.keys.values())]
        return {(caller.tenant, caller.key): caller for caller in found if caller is not None}


def make_book(config: Config, models: Mapping[str, ServedModel]) -> Book:
    """The callers of a configuration; `models` by the names of the configuration."""
    maker = _Maker(config, models)
    if config.tenants is None:
        return Book({}, maker.anonymous())
    entries = (entry for tenant in config.tenants.values() for entry in maker.entries(tenant))
    return Book({entry.digest: entry for entry in entries})


class _Maker:
    """Makes the callers of one configuration."""

    def __init__(self, config: Config, models: Mapping[str, ServedModel]) -> None:
        self._config = config
        self._models = models

    def anonymous(self) -> Caller:
        """Everybody: the tenant `default`. Where nobody is told apart a class is bounded only if that is written."""
        defaults = self._config.tenant_defaults
        ceiling = defaults.class_ceiling or CLASSES[0]
        grants = defaults.models
        models = self._models if grants is None else {grant.name: self._models[grant.name] for grant in grants}
        most_tokens = defaults.limits.max_output_tokens
        models = {name: _bounded(model, most_tokens) for name, model in models.items()}
        aliases = {alias: models[grant.name] for grant in grants or () for alias in grant.aliases}
        return Caller(
            tenant="default",
            key="",
            partition=SHARED,
            salt=cache_salt(self._config.isolation.salt_secret, SHARED, "tenant", "default"),
            rules=self._rules(defaults.allow),
            routes=frozenset(defaults.allow.routes),
            models={**models, **aliases},
            band=_least_urgent(defaults.class_, ceiling),
            ceiling=ceiling,
        )

    def entries(self, tenant: Tenant) -> Iterator[Entry]:
        models: dict[str, ServedModel] = {}
        for grant in tenant.models:
            model = _bounded(self._models[grant.name], tenant.limits.max_output_tokens)
            models |= dict.fromkeys((grant.name, *grant.aliases), model)
        rules = self._rules(tenant.allow)
        for key in tenant.keys:
            digest = bytes.fromhex(key.sha256)
            if tenant.state == "disabled" or key.state == "blocked":
                yield Entry(digest, None, "disabled" if tenant.state == "disabled" else "blocked", key.id)
            else:
                yield Entry(digest, self._caller(tenant, key, models, rules), key=key.id)

    def _caller(self, tenant: Tenant, key: Key, models: Mapping[str, ServedModel], rules: FieldRules) -> Caller:
        ceiling = _least_urgent(tenant.class_ceiling, key.class_ceiling or tenant.class_ceiling)
        return Caller(
            tenant=tenant.id,
            key=key.id,
            partition=tenant.partition,
            salt=self._salt(tenant, key),
            rules=rules,
            routes=frozenset(tenant.allow.routes),
            models=models,
            band=_least_urgent(tenant.class_, ceiling),
            ceiling=ceiling,
            expires_s=key.expires.timestamp() if key.expires is not None else None,
        )

    def _salt(self, tenant: Tenant, key: Key) -> str:
        cache = tenant.cache
        names = {"tenant": tenant.id, "key": key.id, "group": cache.group or ""}
        secret = self._config.isolation.salt_secret
        return cache_salt(secret, tenant.partition, cache.isolation, names[cache.isolation])

    def _rules(self, allow: Allow) -> FieldRules:
        return FieldRules(
            parameters=frozenset(allow.parameters),
            media_hosts=frozenset(allow.media_hosts),
            reject_unknown=self._config.limits.unknown_fields == "reject",
        )


def _bounded(model: ServedModel, most_tokens: int | None) -> ServedModel:
    """The model with the bound of a tenant on its answers."""
    if most_tokens is None:
        return model
    most = min(model.max_output_tokens, most_tokens)
    return replace(model, max_output_tokens=most, most_asked=most_tokens)


def _least_urgent(*names: str) -> str:
    return max(names, key=CLASSES.index)
