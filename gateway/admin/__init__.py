"""The admin API of tenancy.md 10."""

from gateway.admin.app import make_app
from gateway.admin.listener import Listener, listen
from gateway.admin.operations import Operations, Phase

__all__ = ["Listener", "Operations", "Phase", "listen", "make_app"]
