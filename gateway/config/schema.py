"""The JSON Schema of forebay.yaml, for editors, and the way into it by path.

Beside the standard words it has `x-ref` (a secret that may name environment variables), `x-secret` (never shown),
`x-size` (bytes, may have a unit) and `x-default` (a default that depends on something else, in words).
"""

from functools import cache
from typing import Any

from gateway.config.problems import Path
from gateway.config.tree import Config

Schema = dict[str, Any]


@cache
def schema() -> Schema:
    """JSON Schema (2020-12) of the whole file."""
    made: Schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return made | Config.model_json_schema()


def resolved(node: Schema) -> Schema:
    """A part of the schema with its reference followed; words beside the reference stay."""
    name = node.get("$ref", "").removeprefix("#/$defs/")
    return {**schema()["$defs"][name], **node} if name else node


def at(path: Path) -> Schema:
    """The part of the schema that says what may stand at `path`; empty where nothing may."""
    node = schema()
    for step in path:
        node = resolved(_inside(node, step))
    return node


def inner(node: Schema) -> Schema:
    """What the items of a list, or the values of a mapping with free names, may be; empty for anything else."""
    by_name = list(node.get("patternProperties", {}).values())
    return resolved(node.get("items") or (by_name[0] if by_name else {}))


def _inside(node: Schema, step: str | int) -> Schema:
    fields: Schema = node.get("properties", {})
    return fields[step] if isinstance(step, str) and step in fields else inner(node)
