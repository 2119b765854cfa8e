"""API keys of tenants, from `--keys FILE` or the environment, and keeping them out of whatever is written.

The file is YAML, tenant to key; `"*"` is for every tenant that has none there. A name in it that no tenant has is an
error: its key would never be used. A tenant without a key is none, and told: the server may ask for none, and if it
does, preflight says which is missing. No message repeats what is in the file, names neither: they may be keys.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadgen.bench.exits import BenchError
from loadgen.workload import yaml_source
from loadgen.workload.words import listed, suggestion
from loadgen.workload.yaml_source import Source, SourceError

EVERY = "*"


class Keys(msgspec.Struct, frozen=True):
    """`by_tenant` has those that are known, `origin` where each tenant's comes from, or would. `file`: of --keys."""

    by_tenant: dict[str, str]
    origin: dict[str, str]
    file: str = ""

    def of(self, tenant: str) -> str:
        """Its key, "" without one."""
        return self.by_tenant.get(tenant, self.by_tenant.get(EVERY, ""))

    def advice(self, tenant: str) -> str:
        """What to do about its key when the server does not take it."""
        where = self.origin.get(tenant, self.origin.get(EVERY, ""))
        if not where and self.file:
            return f'it has no key: {self.file} has none for it, nor for "*", and no `key_env` in the scenario names another'
        if not where:
            return "it has no key: give one with --keys FILE, or `key_env` in the scenario"
        return f"its key comes from {where}" + ("" if self.of(tenant) else ", which is not set")

    def warning(self, tenants: Sequence[str]) -> str:
        """What is to be said of those of `tenants` for whom a file was given and has no key; "" of none."""
        without = [one for one in tenants if not self.of(one)] if self.file else []
        return f"--keys {self.file} has no key for {listed(without)}: sent without one" if without else ""

    def scrubbed(self, text: str) -> str:
        """`text` without any key: servers repeat them in error messages."""
        return scrubbed(text, self.by_tenant.values())


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """`text` with each secret, and each cut-off beginning of one at its end, replaced."""
    for secret in secrets:
        if len(secret) < _SHORTEST:
            continue
        text = text.replace(secret, _HIDDEN)
        cut = next((size for size in range(len(secret) - 1, _SHORTEST - 1, -1) if text.endswith(secret[:size])), 0)
        text = text[: len(text) - cut] + _HIDDEN if cut else text
    return text


_SHORTEST = 4  # of what is taken for a key in a text
_HIDDEN = "[key]"


def keys(
    file: Path | None,
    variables: Mapping[str, str],
    environ: Mapping[str, str],
    tenants: Collection[str] | None = None,
) -> Keys:
    """Those of `file`, and of `variables` (tenant to the name of one) for tenants that it has none for. BenchError.

    `tenants` are the names that the file may have; None: any.
    """
    given = {} if file is None else _read(file, tenants)
    origin = dict.fromkeys(given, str(file))
    for tenant, variable in variables.items():
        if tenant not in given and EVERY not in given:
            origin[tenant] = f"the variable {variable}"
            if environ.get(variable):
                given[tenant] = environ[variable]
    for tenant, key in given.items():
        if not key.isascii() or not key.isprintable() or key != key.strip() or not key:
            raise BenchError(
                f"the key of tenant {tenant}, from {origin[tenant]}, holds characters that no header carries"
            )
    return Keys(given, origin, str(file or ""))


def _read(file: Path, tenants: Collection[str] | None) -> dict[str, str]:
    try:
        source = yaml_source.read(file.read_text("utf-8"))
    except OSError as error:
        raise BenchError(f"--keys {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BenchError(f"--keys {file}: {_NO_KEYS}") from error
    except SourceError as error:
        raise BenchError(f"--keys {file}:{error.line}:{error.column}: {_NO_KEYS}") from error
    values: Any = {} if source.values is None else source.values
    if not isinstance(values, dict):
        raise BenchError(f"--keys {file}: {_NO_KEYS}")
    for name, key in values.items():
        if not isinstance(name, str) or not isinstance(key, str):
            raise BenchError(f"--keys {_place(file, source, name)}: {_NO_KEYS}, both of them text")
        if tenants is not None and name != EVERY and name not in tenants:
            what = f"no tenant of the scenario is called that; there are {listed(tenants)}{suggestion(name, tenants)}"
            raise BenchError(f"--keys {_place(file, source, name)}: {what}")
    return values


_NO_KEYS = "not a mapping of tenants to keys, one `tenant: key` a line, each tenant once"


def _place(file: Path, source: Source, name: object) -> str:
    line, column = source.keys.get((str(name),), (1, 1))
    return f"{file}:{line}:{column}"
