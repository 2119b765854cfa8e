"""Keys that an operator blocks at once: here, and through the store in every replica (tenancy.md 2).

A blocked key stays blocked until its file has the last word: once that has said `state: blocked`, a reload that says
`active` opens the key again, everywhere. No other change of the files does. Without a store it ends with the process, with
one after BLOCKED_S (store/block.lua). Requests of the key that wait are refused as any with a bad key; those that run finish.
"""

from collections.abc import Collection

from gateway.config import Config
from gateway.config.changes import reopened
from gateway.errors import GatewayError
from gateway.run import Run
from gateway.services import Services
from gateway.syncer import Syncer
from policies.decisions import Reason

ELSEWHERE = "another replica"


class Blocking:
    """Blocks keys for the requests of `services`, and tells the other replicas."""

    def __init__(self, services: Services, syncer: Syncer | None) -> None:
        self._services, self._syncer = services, syncer
        if syncer is not None:
            syncer.heard = self._hear

    def block(self, key: str, by: str) -> bool:
        """Block a key. False: there is none with this id. `by`: who asked, for the log."""
        if not self._services.tenants.knows(key):
            return False
        self._shut((key,), by)
        if self._syncer is not None:
            self._syncer.tell_of_key(key, blocked=True)
        return True

    def follow(self, old: Config, new: Config) -> None:
        """Open again what the files had blocked and open now; before they are in force."""
        blocked = self._services.tenants.blocked()
        for key in reopened(old, new, blocked) if blocked else ():
            self._open((key,), "its file")
            if self._syncer is not None:
                self._syncer.tell_of_key(key, blocked=False)

    def _hear(self, blocked: Collection[str], opened: Collection[str]) -> None:
        self._open(opened, ELSEWHERE)
        self._shut(blocked, ELSEWHERE)

    def _shut(self, keys: Collection[str], by: str) -> None:
        shut = self._services.tenants.block(keys)
        for key in shut:
            self._services.events.warning("key blocked", key=key, by=by)
        for run in list(self._services.runs) if shut else ():
            if isinstance(run, Run) and run.waiting and run.caller.key in shut:
                run.revoke(GatewayError(Reason.BAD_KEY))

    def _open(self, keys: Collection[str], by: str) -> None:
        for key in self._services.tenants.unblock(keys):
            self._services.events.info("key no longer blocked by an operator", key=key, by=by)
