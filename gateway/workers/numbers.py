"""The metrics of all workers as those of one gateway, also over the death of some."""

from collections.abc import Iterator

from gateway.telemetry import families, snapshot
from gateway.telemetry.snapshot import Table


class Numbers:
    """The last known numbers of each worker, and what is left of those that have ended."""

    def __init__(self) -> None:
        self._last: dict[int, Table] = {}
        self._gone: Table = {}

    def take(self, index: int, data: bytes) -> None:
        """What worker `index` has just said."""
        self._last[index] = snapshot.decode(data)

    def ended(self, index: int) -> None:
        """Its process is no more. What it counted since it was asked last is lost with it."""
        last = self._last.pop(index, None)
        if last is not None:
            self._gone = snapshot.joined([self._gone, snapshot.after_death(last)])

    def chunks(self, restarts: int) -> Iterator[bytes]:
        """The exposition, in pieces."""
        own: Table = {families.WORKER_RESTARTS.name: {(): restarts}}
        return snapshot.chunks(snapshot.joined([own, self._gone, *self._last.values()]))
