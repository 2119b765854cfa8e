"""forebay.yaml and tenants.d: what an operator may set, read strictly, with every error at once and each with its place."""

from gateway.config.load import Loaded, load, load_document, read
from gateway.config.problems import ConfigError, ConfigErrors
from gateway.config.schema import schema
from gateway.config.tenant import Tenant
from gateway.config.timers import Timers
from gateway.config.tree import Config

__all__ = [
    "Config", "ConfigError", "ConfigErrors", "Loaded", "Tenant", "Timers", "load", "load_document", "read", "schema",
]  # fmt: skip
