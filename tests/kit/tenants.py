"""Tenant files with keys that tests can present."""

import hashlib
from typing import Any


def secret(name: str) -> str:
    """A key as `forebay keys new` makes them, the same for the same name."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"fbk-{digest[:12]}-{digest[12:55]}"


def key(name: str, **fields: Any) -> dict[str, Any]:
    """The record of that key in a tenant's file."""
    presented = secret(name)
    return {"id": presented[4:16], "sha256": hashlib.sha256(presented.encode()).hexdigest(), "name": name, **fields}


def tenant(name: str, *keys: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A tenant's file. With no key given it has one of its own name; model `m` is granted."""
    made = {"version": 1, "id": name, "models": [{"name": "m"}], "keys": list(keys or (key(name),))}
    return {**made, **fields}


def bearer(name: str) -> tuple[str, str]:
    """The header that presents a key."""
    return "authorization", f"Bearer {secret(name)}"
