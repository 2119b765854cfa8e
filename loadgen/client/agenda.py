"""What is sent next, and when; prompts are written out a little ahead, never all of them.

A turn of a conversation comes `think_s` after the end of the answer before, whatever that end was (refused, failed,
left): its user reads what came and asks on. It does not come when that is beyond the last planned time of the run.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from loadgen.client.exchange import Request
from loadgen.client.route import Route, Routes
from loadgen.workload.planned import Planned, Requests
from loadgen.workload.prompts import Prose

AHEAD_S, AHEAD_REQUESTS, AHEAD_BYTES = 2.0, 256, 64 << 20


@dataclass(frozen=True, slots=True)
class Item:
    """A request due at `t` of the run, written out, with the route it takes."""

    t: float
    planned: Planned
    route: Route
    request: Request


class Answers:
    """What was answered in conversations that say it again, until the last turn that does so has ended."""

    def __init__(self, last: Mapping[str, int]) -> None:
        """`last` such turn of each conversation."""
        self._last = last
        self._texts: dict[str, dict[int, str]] = defaultdict(dict)

    def wanted(self, planned: Planned) -> bool:
        """Whether the answer to it is said again."""
        return planned.turn < self._last.get(planned.session, 0)

    def of(self, planned: Planned) -> dict[int, str] | None:
        """What was answered before, by turn."""
        return self._texts.get(planned.session)

    def ended(self, planned: Planned, text: str | None) -> None:
        """It was answered with `text`, or badly (None)."""
        if text is not None and self.wanted(planned):
            self._texts[planned.session][planned.turn] = text
        elif planned.session in self._texts and not self.wanted(planned):
            del self._texts[planned.session]


class Writer:
    """Writes planned requests out."""

    def __init__(self, routes: Routes, prose: Prose, answers: Answers) -> None:
        """Routes are taken in the order of writing."""
        self._routes = routes
        self._prose = prose
        self._answers = answers

    def item(self, t: float, planned: Planned) -> Item:
        """`planned`, due at `t`."""
        route = self._routes.take(planned.tenant)
        return Item(t, planned, route, route.planned(planned, self._prose, self._answers.of(planned)))


class Agenda:
    """The requests of one process in the order in which they are due."""

    def __init__(self, requests: Requests, last_s: float, chained: frozenset[str], writer: Writer) -> None:
        """`requests` sorted by time; `last_s` is the last planned time of the run. In `chained` are the tenants some
        of whose requests come after others."""
        self._chained = chained
        self._source: Iterator[Planned] = iter(requests)
        self._next = next(self._source, None)
        self._last_s = last_s
        self._writer = writer
        self._ready: list[tuple[float, int, Item]] = []  # by time
        self._ready_bytes = 0
        self._later: list[tuple[float, int, Planned]] = []  # turns whose time is known, by time
        self._parked: dict[int, list[Planned]] = defaultdict(list)  # turns, by the id whose end they wait for
        self._ends: dict[int, float] = {}  # of turns of conversations

    @property
    def empty(self) -> bool:
        """Nothing is left but turns whose answer before has not ended."""
        return self._next is None and not self._ready and not self._later

    def due(self, now: float) -> Item | None:
        """The next request that is due by `now`, written out at once if it was not yet."""
        if self._ready and self._ready[0][0] <= now:
            _, _, item = heappop(self._ready)
            self._ready_bytes -= len(item.request.body)
            return item
        found = self._unwritten(now)
        return self._writer.item(*found) if found else None

    def write(self, now: float, budget_s: float) -> bool:
        """Write out what comes next, for `budget_s` at most; whether more could be written now."""
        end_s = time.monotonic() + budget_s
        while not self._full() and (found := self._unwritten(now + AHEAD_S)):
            item = self._writer.item(*found)
            heappush(self._ready, (item.t, item.planned.id, item))
            self._ready_bytes += len(item.request.body)
            if time.monotonic() > end_s:
                return True
        return False

    def wake_s(self) -> float | None:
        """When there is something to do again; None while only ends of answers can bring anything."""
        later = self._later[0][0] if self._later else math.inf
        unwritten = min(later, self._next.t if self._next is not None else math.inf)
        wake = min(unwritten - (0.0 if self._full() else AHEAD_S), self._ready[0][0] if self._ready else math.inf)
        return None if wake == math.inf else wake

    def ended(self, planned: Planned, end_s: float) -> bool:
        """The answer to `planned` ended at `end_s`; whether another turn is due after it now."""
        if planned.tenant not in self._chained:
            return False
        self._ends[planned.id] = end_s
        turns = self._parked.pop(planned.id, [])
        for turn in turns:
            self._follow(turn, end_s)
        return bool(turns)

    def _full(self) -> bool:
        return len(self._ready) >= AHEAD_REQUESTS or self._ready_bytes >= AHEAD_BYTES

    def _unwritten(self, until_s: float) -> tuple[float, Planned] | None:
        """The next one by `until_s` that is not written out yet."""
        while self._next is not None and self._next.t <= until_s and self._next.after is not None:
            self._park(self._next, self._next.after)
            self._next = next(self._source, None)
        if self._later and self._later[0][0] <= until_s and (self._next is None or self._later[0][0] <= self._next.t):
            t, _, planned = heappop(self._later)
            return t, planned
        if self._next is None or self._next.t > until_s:
            return None
        planned, self._next = self._next, next(self._source, None)
        return planned.t, planned

    def _park(self, turn: Planned, after: int) -> None:
        end_s = self._ends.get(after)
        if end_s is None:
            self._parked[after].append(turn)
        else:
            self._follow(turn, end_s)

    def _follow(self, turn: Planned, end_s: float) -> None:
        if end_s + turn.think_s < self._last_s:
            heappush(self._later, (end_s + turn.think_s, turn.id, turn))
