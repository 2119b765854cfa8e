"""One heap of everything that will happen by itself. A request has one timer at a time: setting another replaces it.

Cancelling leaves a dead entry behind, never at the head; when the dead outnumber the living the heap is rebuilt. So
setting and cancelling cost O(log n), and what is due next is there to be read.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from policies.state.parked import Parked
from policies.state.tickets import Ticket

Timed = Ticket | Parked
DEAD_MIN: Final = 64  # below that, rebuilding is not worth it


class Timers:
    """Timers of tickets, soonest first; equal times in the order they were set."""

    __slots__ = ("_heap", "_set", "dead")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timed]] = []
        self._set = 0
        self.dead = 0

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, ticket: Timed, due_s: float) -> None:
        """Wake for `ticket` at `due_s`, and no more at the time set before."""
        if ticket.timer:
            self.cancel(ticket)
        self._set = ticket.timer = self._set + 1
        heappush(self._heap, (due_s, ticket.timer, ticket))

    def cancel(self, ticket: Timed) -> None:
        """Do not wake for `ticket`."""
        if not ticket.timer:
            return
        ticket.timer = 0
        heap = self._heap
        if heap[0][2] is ticket:
            heappop(heap)
            self._bury()
            return
        self.dead += 1
        if self.dead > DEAD_MIN:
            self._rebuild()

    def next_due(self) -> float | None:
        """When the soonest timer is due."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Timed:
        """The ticket whose timer is the soonest; only after `next_due` has named one."""
        ticket = heappop(self._heap)[2]
        ticket.timer = 0
        self._bury()
        return ticket

    def _bury(self) -> None:
        """Take away the dead that have come to the head."""
        if not self.dead:
            return
        heap = self._heap
        while self.dead and heap[0][2].timer != heap[0][1]:
            heappop(heap)
            self.dead -= 1
        self._rebuild()

    def _rebuild(self) -> None:
        """Keep only the living, where they are outnumbered."""
        heap = self._heap
        if self.dead > DEAD_MIN and self.dead * 2 > len(heap):
            self._heap = [entry for entry in heap if entry[2].timer == entry[1]]
            heapify(self._heap)
            self.dead = 0

    def count_dead(self) -> int:
        """The dead entries, counted one by one: for `Core.check`."""
        return sum(ticket.timer != number for _, number, ticket in self._heap)
