"""The configuration in force as plain values for JSON. Secrets are `***`."""

from datetime import datetime
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.tenant import Tenant
from gateway.config.tree import Config

SECRET = "***"
Json = str | int | float | bool | None | dict[str, "Json"] | list["Json"]


def effective(config: Config) -> dict[str, Any]:
    """Every field in force, and the tenants by id: each as JSON at once, for a thousand of them are too much for the collector."""
    made: dict[str, Any] = dict(_section(config))
    made["tenants"] = None
    if config.tenants is not None:
        made["tenants"] = {
            name: msgspec.Raw(msgspec.json.encode(_section(each))) for name, each in config.tenants.items()
        }
    return made


def tenant_in_force(tenant: Tenant) -> dict[str, Json]:
    """Every field of one tenant, with the ids of its keys alone."""
    return {**_section(tenant), "keys": [key.id for key in tenant.keys]}


def _section(section: BaseModel) -> dict[str, Json]:
    return {field.alias or name: _field(field, getattr(section, name)) for name, field in _fields(section).items()}


def _fields(section: BaseModel) -> dict[str, FieldInfo]:
    return type(section).model_fields


def _field(field: FieldInfo, value: object) -> Json:
    """A field that is left out of dumps (a reference to a secret), or marked as one, is not shown."""
    marked = isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("x-secret")
    return SECRET if value is not None and (field.exclude or marked) else _plain(value)


def _plain(value: object) -> Json:
    match value:
        case BaseModel():
            return _section(value)
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case tuple():
            return [_plain(each) for each in value]
        case bool() | int() | float() | None:
            return value
        case datetime():
            return value.isoformat()
        case _:
            return str(value)
