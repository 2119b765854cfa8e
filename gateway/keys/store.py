"""The keys of a configuration, and changes to them: judged with all other files before a byte is written, then put in
place in one step, so that a gateway reads the file as it was or as it is, and never one that is wrong."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from gateway.config import ConfigErrors, Loaded
from gateway.config.files import gather
from gateway.config.load import judge
from gateway.config.tenant import Key, Tenant
from gateway.keys import edit
from gateway.keys.make import BadInput, moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A key, where it stands."""

    tenant: Tenant
    key: Key
    index: int

    def state(self, now: datetime) -> str:
        """What becomes of who presents it: active, or why not."""
        if self.tenant.state == "disabled":
            return "disabled"
        if self.key.state == "blocked":
            return "blocked"
        return "expired" if self.key.expires is not None and now >= self.key.expires else "active"


class Store:
    """The files of a configuration; raises ConfigErrors where they are wrong already."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self._texts = gather(path)
        self._environ = environ
        self._loaded = judge(self._texts, environ)
        self._changed: dict[str, str] = {}  # by file

    def keys(self) -> dict[str, Found]:
        """Every key by its id."""
        tenants = (self._loaded.config.tenants or {}).values()
        return {
            key.id: Found(tenant=tenant, key=key, index=index)
            for tenant in tenants
            for index, key in enumerate(tenant.keys)
        }

    def admin(self) -> tuple[str, int]:
        """Where the admin listener of the gateway with these files is."""
        admin = self._loaded.config.admin
        return admin.host, admin.port

    def find(self, key_id: str) -> Found:
        """The key with this id; raises BadInput."""
        found = self.keys().get(key_id)
        if found is None:
            raise BadInput(f"there is no key {key_id!r}")
        return found

    def file_of(self, tenant: str) -> str:
        """The file of a tenant; raises BadInput."""
        if tenant not in self._loaded.tenants:
            known = ", ".join(self._loaded.tenants) or "none"
            raise BadInput(f"there is no tenant {tenant!r} (there are: {known}): write tenants.d/{tenant}.yaml first")
        return self._loaded.tenants[tenant][0]

    def add(self, tenant: str, key_id: str, record: str) -> None:
        """A further key."""
        file = self.file_of(tenant)
        self._change(file, edit.with_key(self._text(file), record))
        self._check(key_id in self.keys(), file)

    def block(self, key_id: str) -> None:
        """A key that opens nothing from now on."""
        self._set(key_id, "state", "blocked")
        self._check(self.find(key_id).key.state == "blocked", self.file_of(self.find(key_id).tenant.id))

    def expire(self, key_id: str, end: datetime) -> None:
        """A key that opens nothing from `end` on."""
        self._set(key_id, "expires", moment(end))
        self._check(self.find(key_id).key.expires == end, self.file_of(self.find(key_id).tenant.id))

    def write(self) -> list[str]:
        """Put the changed files in place; their names."""
        for file, text in self._changed.items():
            _replace(Path(file), text)
        return list(self._changed)

    def _text(self, file: str) -> str:
        return (self._texts.tenants or {})[file]

    def _set(self, key_id: str, name: str, value: str) -> None:
        found = self.find(key_id)
        file = self.file_of(found.tenant.id)
        self._change(file, edit.with_field(self._text(file), found.index, name, value))

    def _change(self, file: str, text: str) -> None:
        """Take a changed text, if it is right: the same as before but for what was meant."""
        before = self._loaded
        self._texts = replace(self._texts, tenants={**(self._texts.tenants or {}), file: text})
        try:
            self._loaded = judge(self._texts, self._environ)
        except ConfigErrors as errors:
            raise edit.CannotEdit(f"{file} would be wrong then: {errors}") from None
        self._check(_others(before, file) == _others(self._loaded, file), file)
        self._changed[file] = text

    def _check(self, is_right: bool, file: str) -> None:
        if not is_right:
            raise edit.CannotEdit(f"{file} would not say what is meant")


def _others(loaded: Loaded, file: str) -> object:
    """Everything but the keys of the tenant in that file."""
    tenants = (loaded.config.tenants or {}).items()
    changed = {name for name, (path, _) in loaded.tenants.items() if path == file}
    return {name: tenant.model_copy(update={"keys": ()}) if name in changed else tenant for name, tenant in tenants}


def _replace(path: Path, text: str) -> None:
    """In one step, beside the file itself: a temporary name that begins with a dot is no tenant's."""
    target = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, target.stat().st_mode & 0o7777)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
