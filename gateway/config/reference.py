"""The field tables of docs/configuration.md, made from the schema: `python -m gateway.config.reference FILE` renews them.

A test compares the page with the schema, so the page cannot fall behind.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.config.kinds import size_text
from gateway.config.schema import Schema, inner, resolved, schema
from gateway.config.section import Section
from gateway.config.tenant import Tenant
from gateway.config.tree import Config

BEGIN = "<!-- made by `make docs`: begin -->\n"
END = "<!-- made by `make docs`: end -->\n"
_TABLE = ("| field | value | default | meaning |", "|---|---|---|---|")


def reference() -> str:
    """One table per section of forebay.yaml, and one for a tenant's file, as Markdown."""
    lines: list[str] = []
    for name, section in schema()["properties"].items():
        rows = list(_rows(name, section, Config))
        about = resolved(section).get("description", "")
        lines += [f"### `{name}`", "", about, ""] if len(rows) > 1 else [f"### `{name}`", ""]
        lines += [*_TABLE, *rows, ""]
    lines += ["### A tenant's file", "", schema(Tenant)["description"], "", *_TABLE]
    for name, section in schema(Tenant)["properties"].items():
        lines += _rows(name, section, Tenant)
    return "\n".join([*lines, ""])


def renewed(page: str) -> str:
    """The page with the tables between its two marks made anew."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{reference()}\n{END}{tail}"


def _rows(path: str, field: Schema, root: type[Section]) -> Iterator[str]:
    """A row for a plain field, the rows of everything inside for a mapping or a list of mappings."""
    node = resolved(field, root)
    prefix, section = _inside(path, node, root)
    for name, held in section.get("properties", {}).items():
        yield from _rows(f"{prefix}.{name}", held, root)
    if section:
        return
    if "patternProperties" in node:  # names of one's choice for plain values
        node = {**inner(node, root), **{word: node[word] for word in ("default", "description") if word in node}}
        path += ".NAME"
    yield f"| `{path}` | {_value(node)} | {_default(node)} | {_meaning(node)} |"


def _inside(path: str, node: Schema, root: type[Section]) -> tuple[str, Schema]:
    """The section a field holds, and how the path to its fields begins; an empty one for a plain value."""
    if "properties" in node:
        return path, node
    held = inner(node, root)
    listed = "items" in node or "anyOf" in node
    return path + ("[]" if listed else ".NAME"), held if "properties" in held else {}


def _value(node: Schema) -> str:
    """What may be written, in words."""
    if "enum" in node or "const" in node:
        return " \\| ".join(f"`{option}`" for option in node.get("enum", [node.get("const")]))
    if "anyOf" in node:
        return _either(node)
    if node.get("x-ref"):
        return "secret, may be `${NAME}`"
    match node.get("type"):
        case "integer" | "number":
            return _band(node)
        case "boolean":
            return "`true` \\| `false`"
        case "array":
            return f"list of {_value(resolved(node['items']))}"
        case _:
            return "text"


def _either(node: Schema) -> str:
    if node.get("x-size"):
        plain = node["anyOf"][0]
        return f"size, {size_text(plain['minimum'])} – {size_text(plain['maximum'])}"
    options = [_value(resolved(option)) for option in node["anyOf"] if option.get("type") != "null"]
    return " or ".join(options)


def _band(node: Schema) -> str:
    if node["minimum"] == node["maximum"]:
        return f"{node['minimum']}"
    return f"{node['minimum']:,} – {node['maximum']:,}"


def _meaning(node: Schema) -> str:
    meaning: str = node.get("description", "")
    return f"{meaning} A change needs a restart." if node.get("x-restart") else meaning


def _default(node: Schema) -> str:
    if "x-default" in node:
        return str(node["x-default"])
    if "default" not in node:
        return "required"
    default = node["default"]
    if node.get("x-size"):
        return f"`{size_text(default)}`"
    if isinstance(default, list):
        return f"`[{', '.join(str(item) for item in default)}]`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return "none" if default is None or default == {} else f"`{default}`"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
