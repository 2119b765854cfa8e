"""The JSON Schema of forebay.yaml and of a tenant's file, for editors, and the way into it by path.

Beside the standard words it has `x-ref` (a secret that may name environment variables), `x-secret` (never shown),
`x-size` (bytes, may have a unit) and `x-default` (a default that depends on something else, in words).
"""

from functools import cache
from typing import Any

from gateway.config.problems import Path
from gateway.config.section import Section
from gateway.config.tree import Config

Schema = dict[str, Any]


@cache
def schema(root: type[Section] = Config) -> Schema:
    """JSON Schema (2020-12) of a whole file: that of a Config, or of a Tenant."""
    made: Schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return made | root.model_json_schema()


def resolved(node: Schema, root: type[Section] = Config) -> Schema:
    """A part of the schema with its reference followed, also that of a section that may be null; words beside it stay."""
    optional = [option["$ref"] for option in node.get("anyOf", ()) if "$ref" in option]
    name = str(node.get("$ref", optional[0] if optional else "")).removeprefix("#/$defs/")
    return {**schema(root)["$defs"][name], **node} if name else node


def at(path: Path, root: type[Section] = Config) -> Schema:
    """The part of the schema that says what may stand at `path`; empty where nothing may."""
    node = schema(root)
    for step in path:
        node = resolved(_inside(node, step, root), root)
    return node


def inner(node: Schema, root: type[Section] = Config) -> Schema:
    """What the items of a list, or the values of a mapping with free names, may be; empty for anything else."""
    for option in node.get("anyOf", ()):  # of a list that may be null
        if "items" in option:
            node = option
    by_name = list(node.get("patternProperties", {}).values())
    return resolved(node.get("items") or (by_name[0] if by_name else {}), root)


def _inside(node: Schema, step: str | int, root: type[Section]) -> Schema:
    fields: Schema = node.get("properties", {})
    return fields[step] if isinstance(step, str) and step in fields else inner(node, root)
