"""How a tenant's file and `tenant_defaults` become one: mappings field by field, anything else whole, the file first."""

from collections.abc import Mapping

from gateway.config.document import Node, Plain
from gateway.config.problems import Path


def merged(defaults: Plain, own: Plain) -> Plain:
    """The values of `own` over those of `defaults`. A `null` in `own` is a value."""
    if not isinstance(defaults, dict) or not isinstance(own, dict):
        return own
    both = {**defaults, **own}
    return {key: merged(defaults.get(key, value), value) for key, value in both.items()}


def is_inherited(path: Path, own: Node, defaults: Node | None) -> bool:
    """Whether what stands at `path` of the merged values came from `defaults`."""
    for step in path:
        beneath = defaults.child(step) if defaults is not None else None
        found = own.child(step)
        if found is None:
            return beneath is not None and isinstance(own.value, Mapping)
        own, defaults = found, beneath
    return False
