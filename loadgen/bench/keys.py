"""API keys of tenants, from `--keys FILE` or the environment, and keeping them out of whatever is written.

The file is YAML, tenant to key; `"*"` is for every tenant that has none there. A key that a scenario wants from a
variable that is not set is no error: the server may ask for none, and if it does, preflight says which is missing.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import yaml

from loadgen.bench.exits import BenchError

EVERY = "*"


class Keys(msgspec.Struct, frozen=True):
    """`by_tenant` has those that are known, `origin` where each tenant's comes from, or would."""

    by_tenant: dict[str, str]
    origin: dict[str, str]

    def of(self, tenant: str) -> str:
        """Its key, "" without one."""
        return self.by_tenant.get(tenant, self.by_tenant.get(EVERY, ""))

    def advice(self, tenant: str) -> str:
        """What to do about its key when the server does not take it."""
        where = self.origin.get(tenant, self.origin.get(EVERY, ""))
        if not where:
            return "it has no key: give one with --keys FILE, or `key_env` in the scenario"
        return f"its key comes from {where}" + ("" if self.of(tenant) else ", which is not set")

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


def keys(file: Path | None, variables: Mapping[str, str], environ: Mapping[str, str]) -> Keys:
    """Those of `file`, and of `variables` (tenant to the name of one) for tenants that it has none for. BenchError."""
    given = {} if file is None else _read(file)
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
    return Keys(given, origin)


def _read(file: Path) -> dict[str, str]:
    try:
        raw = yaml.safe_load(file.read_text("utf-8"))
        return msgspec.convert(raw or {}, dict[str, str])
    except OSError as error:
        raise BenchError(f"--keys {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        # Neither error is repeated: both may show what is in the file.
        raise BenchError(f"--keys {file}: not a mapping of tenants to keys, one `tenant: key` a line") from error
