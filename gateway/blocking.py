"""Keys that an operator blocks at once: here, and through the store in every replica (tenancy.md 2).

One-way: a blocked key stays blocked whatever the files say, without a store until the restart, with one for BLOCKED_S
(store/block.lua). Requests of it that wait are refused as any with a bad key; those that run finish.
"""

from collections.abc import Collection

from gateway.errors import GatewayError
from gateway.run import Run
from gateway.services import Services
from gateway.syncer import Syncer
from policies.decisions import Reason


class Blocking:
    """Blocks keys for the requests of `services`, and tells the other replicas."""

    def __init__(self, services: Services, syncer: Syncer | None) -> None:
        self._services, self._syncer = services, syncer
        if syncer is not None:
            syncer.blocked = self._take

    def block(self, key: str) -> bool:
        """Block a key. False: there is none with this id."""
        if not self._services.tenants.knows(key):
            return False
        self._take((key,))
        if self._syncer is not None:
            self._syncer.block(key)
        return True

    def _take(self, keys: Collection[str]) -> None:
        if not self._services.tenants.block(keys):
            return
        for run in list(self._services.runs):
            if isinstance(run, Run) and run.waiting and run.caller.key in keys:
                run.revoke(GatewayError(Reason.BAD_KEY))
