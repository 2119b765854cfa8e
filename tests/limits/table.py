"""Every numeric field of the configuration, and what shows that it is enforced (tenancy.md 12, row 45).

A check sets its field to something else than the default and asserts that it holds. `without` then takes the field out:
the loader sees files in which it does not stand, so it does nothing, as a limit that was read and never enforced. Under
that each check must fail. A new numeric field without a check fails `test_row_45`.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.files import Texts
from gateway.config.schema import Schema, inner, resolved, schema
from gateway.config.section import Section
from gateway.config.tenant import Tenant
from gateway.config.tree import Config

Check = Callable[[Path], Any]
TENANT = "tenant."  # how the paths of a tenant's file begin here
NO_LIMITS = {"version", "listen.port", "admin.port", "tenant.version"}
CHECKS: dict[str, Check] = {}
INSTEAD: dict[str, object] = {}  # what stands there without a field that is required, or whose default is as strict


def holds(*paths: str, instead: object = None) -> Callable[[Check], Check]:
    """This function checks these fields; it may be a coroutine function."""

    def register(check: Check) -> Check:
        for path in paths:
            if path in CHECKS:
                raise ValueError(f"{path} has two checks")
            CHECKS[path] = check
            if instead is not None:
                INSTEAD[path] = instead
        return check

    return register


def on_sockets(path: str) -> bool:
    """Whether its check runs a gateway."""
    return inspect.iscoroutinefunction(CHECKS[path])


# -- the fields there are ----------------------------------------------------------------------------------------------


def numeric_fields() -> list[str]:
    """As `classes.batch.max_queued`, `models.NAME.limits.rpm`, `tenant.keys[].limits.rpm`."""
    roots: tuple[tuple[str, type[Section]], ...] = (("", Config), (TENANT, Tenant))
    return [path for start, root in roots for name, node in schema(root)["properties"].items()
            for path in _numeric(start + name, node, root)]  # fmt: skip


def _numeric(path: str, field: Schema, root: type[Section]) -> Iterator[str]:
    node = resolved(field, root)
    held = node
    if "properties" not in node:
        held = inner(node, root)
        path += "[]" if "items" in node or any("items" in option for option in node.get("anyOf", ())) else ""
        path += ".NAME" if "patternProperties" in node else ""
    if "properties" in held:
        for name, each in held["properties"].items():
            yield from _numeric(f"{path}.{name}", each, root)
    elif _is_number(node) or _is_number(held):
        yield path


def _is_number(node: Schema) -> bool:
    return node.get("type") in ("integer", "number") or any(_is_number(option) for option in node.get("anyOf", ()))


# -- taking one out ----------------------------------------------------------------------------------------------------


@contextmanager
def without(path: str) -> Iterator[None]:
    """Files are read as if this field did not stand in them."""
    module = import_module("gateway.config.load")  # the package has a function of that name
    judge = module.judge

    def forgetful(texts: Texts, environ: Any) -> Any:
        if path.startswith(TENANT):
            steps = path.removeprefix(TENANT).split(".")
            tenants = {file: _forgotten(text, steps, path) for file, text in (texts.tenants or {}).items()}
            return judge(Texts(file=texts.file, main=texts.main, tenants=tenants), environ)
        main = _forgotten(texts.main or "", path.split("."), path)
        return judge(Texts(file=texts.file, main=main, tenants=texts.tenants), environ)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "judge", forgetful)
        yield


def _forgotten(text: str, steps: Sequence[str], path: str) -> str:
    plain = yaml.safe_load(text)
    _forget(plain, steps, INSTEAD.get(path))
    return yaml.safe_dump(plain, sort_keys=False)


def _forget(held: Any, steps: Sequence[str], instead: object) -> None:
    step, rest = steps[0].removesuffix("[]"), steps[1:]
    if not isinstance(held, dict):
        return
    if step == "NAME":
        for each in held.values():
            _forget(each, rest, instead)
    elif not rest and step in held:
        if instead is None:
            del held[step]
        else:
            held[step] = instead
    elif rest and step in held:
        for each in held[step] if steps[0].endswith("[]") else [held[step]]:
            _forget(each, rest, instead)
