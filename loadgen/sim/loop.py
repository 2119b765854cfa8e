"""Virtual time: a heap of what happens next, engines that step, and whatever stands in front of them.

Rules:
- Nothing waits for anything real. Time jumps to the next thing in the heap; equal times go in the order of pushing.
- The front (the core or a router) decides where a request goes; the loop alone moves requests, engines and time.
- A request takes `net_s` from the front to its engine; what comes back takes no time.
- Engines are looked at every `poll_s`; the front sees that `poll_delay_s` later.
- A turn of a conversation comes some time after the end of the answer before, whatever end that was.
- The run is over when the window is, and every request that was due in it has ended: at the latest when its client
  loses patience.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol, cast

import msgspec

from loadgen.report.record import Outcome, Sample
from loadgen.schedule import Planned, Schedule
from loadgen.sim.call import BLOCK_TOKENS, Call, Flight
from loadgen.sim.engine import EngineModel, QueueFull
from loadgen.sim.kv import InvariantError
from loadgen.sim.router import Seen

_SPINS = 1000


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `net_s` from front to engine (our choice), `poll_s` between looks at the engines, 0 for none.

    `patience_s`: how long a client waits for the end of its answer (loadgen.md 1.2, --timeout). From `frozen_s` on the
    engines' figures stand still: every look shows what the last one before showed.
    """

    net_s: float = 0.0003
    poll_s: float = 0.1
    poll_delay_s: float = 0.005
    patience_s: float = 120.0
    frozen_s: float = math.inf


class Front(Protocol):
    """What decides. It answers through `Floor.send` and `Floor.refuse`, at once or later.

    `isolates`: it gives each tenant's prompts a salt, so that tenants share nothing in an engine's cache.
    """

    isolates: bool

    def arrived(self, call: Call, now: float) -> None:
        """A request comes."""

    def first_token(self, call: Call, now: float) -> None:
        """The first token of a streamed answer."""

    def finished(self, call: Call, now: float) -> None:
        """The answer is complete; its sample has the usage."""

    def left(self, call: Call, now: float) -> None:
        """The client is gone."""

    def refused(self, call: Call, full: bool, now: float) -> None:
        """The engine did not take it: its queue is `full`, or the prompt does not fit its context."""

    def observed(self, seen: Sequence[Seen | None], observed_s: float, now: float) -> None:
        """All engines, as they were at `observed_s`; None: this one says nothing."""

    def next_wakeup(self) -> float | None:
        """When `tick` is due."""

    def tick(self, now: float) -> None:
        """It is that late now."""


class Troubles(Protocol):
    """What may go wrong with engines (`loadgen.sim.trouble`)."""

    def begin(self) -> None:
        """Before anything happens."""

    def takes(self, call: Call, now: float) -> bool:
        """Whether this call does not reach its engine."""

    def ignores_aborts(self, engine: int, now: float) -> bool:
        """Whether it goes on with answers whose client is gone."""

    def looks(self, seen: list[Seen], now: float) -> list[Seen | None]:
        """What the engines show at this look."""


class Floor:
    """One run of one schedule. `run` once; then `samples`, in order of arrival, and the engines tell what happened."""

    def __init__(
        self, schedule: Schedule, engines: list[EngineModel], timing: Timing, front: Callable[["Floor"], Front]
    ) -> None:
        """`front` makes what stands in front of the engines; it gets the floor that it acts on."""
        self.engines = engines
        self.samples: list[Sample] = []
        self.sent = [0] * len(engines)
        self.events = 0
        self.now = 0.0
        self.names = [str(number) for number in range(len(engines))]
        self.settled: Callable[[Sample], bool] | None = None  # told of each measured end; True stops the run
        self.trouble: Troubles | None = None
        self._schedule = schedule
        self._timing = timing
        self._heap: list[tuple[float, int, Callable[[Any, float], None], Any]] = []
        self._order = count()
        self._seen: list[Seen | None] = []
        self._seen_blocks: set[int] = set()
        self._arrivals = (planned for planned in schedule.requests if planned.after is None)
        self._followers = _followers(schedule.requests)
        self._until_s = max([schedule.window_end_s, *(planned.t for planned in schedule.requests)])
        self._open = 0
        self._over = False
        self.front = front(self)

    def run(self) -> None:
        """Let everything happen."""
        front = self.front
        if self.trouble is not None:
            self.trouble.begin()
        self._next_arrival()
        if self._timing.poll_s > 0:
            self.push(0.0, self._poll, None)
        heap, spins = self._heap, 0
        end_s = self._schedule.window_end_s
        while heap and (self.now < end_s or self._open > 0) and not self._over:
            self.events += 1
            wakeup = front.next_wakeup()
            if wakeup is not None and wakeup <= heap[0][0]:
                spins += 1
                if spins > _SPINS:
                    raise InvariantError(f"{spins} ticks and still one is due at {wakeup}")
                self.now = max(self.now, wakeup)
                front.tick(self.now)
                continue
            spins = 0
            self.now, _, what, about = heappop(heap)
            what(about, self.now)

    # ---- what a front may do

    def send(self, call: Call, engine: int, now: float) -> None:
        """Let this call go to that engine."""
        call.engine = engine
        call.sample.endpoint = self.names[engine]
        call.sample.queued_s = now - call.arrived_s
        self.sent[engine] += 1
        self.push(now + self._timing.net_s, self._submit, call)

    def refuse(self, call: Call, outcome: Outcome, reason: str, now: float) -> None:
        """Tell its client that there is no answer."""
        if not call.ended:
            call.sample.reason = reason
            self._end(call, outcome, now)

    # ---- requests

    def push(self, when: float, what: Callable[[Any, float], None], about: Any) -> None:
        """Let `what(about, when)` happen then."""
        heappush(self._heap, (when, next(self._order), what, about))

    def _next_arrival(self) -> None:
        planned = next(self._arrivals, None)
        if planned is not None:
            self.push(planned.t, self._arrive_and_next, planned)

    def _arrive_and_next(self, planned: Planned, now: float) -> None:
        self._next_arrival()
        self._arrive(planned, now)

    def _arrive(self, planned: Planned, now: float) -> None:
        window = self._schedule
        salt = planned.tenant if self.front.isolates else ""
        call = Call(planned, now, window.window_start_s <= now < window.window_end_s, salt)
        self._open += call.sample.measured
        call.sample.ideal_tokens = self._ideal(call)
        self.samples.append(call.sample)
        leaves = planned.cancel_after_s
        limit_s = self._timing.patience_s
        self.push(now + (limit_s if leaves is None else min(leaves, limit_s)), self._leave, call)
        self.front.arrived(call, now)

    def _ideal(self, call: Call) -> int:
        """What an unlimited cache of all engines together would hold of this prompt; remembers the rest."""
        seen, hashes = self._seen_blocks, call.hashes
        known = 0
        while known < len(hashes) and hashes[known] in seen:
            known += 1
        seen.update(hashes[known:])
        return min(known, (call.planned.input_tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS

    def _leave(self, call: Call, now: float) -> None:
        if call.ended:
            return
        self.front.left(call, now)
        if call.sequence is not None and not (self.trouble and self.trouble.ignores_aborts(call.engine, now)):
            self.engines[call.engine].abort(call.sequence)
        self._end(call, Outcome.CANCELLED if call.sample.leaves else Outcome.TIMEOUT, now)

    def _end(self, call: Call, outcome: Outcome, now: float) -> None:
        call.ended = True
        sample = call.sample
        sample.outcome = outcome
        sample.end_s = now
        for planned in self._followers.get(call.planned.id, ()):
            if now + planned.think_s < self._until_s:
                self.push(now + planned.think_s, self._arrive, planned)
        if sample.measured:
            self._open -= 1
            if self.settled is not None and self.settled(sample):
                self._over = True

    # ---- engines

    def _submit(self, call: Call, now: float) -> None:
        if call.ended or (self.trouble is not None and self.trouble.takes(call, now)):
            return
        engine = self.engines[call.engine]
        output = call.output_tokens(engine.settings.max_model_len)
        if output < 1:
            self.front.refused(call, False, now)
            return
        flight = Flight(call, output)
        try:
            engine.submit(flight, now)
        except QueueFull:
            self.front.refused(call, True, now)
            return
        call.sequence = flight
        self.kick(call.engine, now)

    def kick(self, number: int, now: float) -> None:
        """Let this engine begin a step, if it has any to do."""
        engine = self.engines[number]
        if engine.stepping:
            return
        end = engine.begin(now)
        if end is not None:
            self.push(end, self._step_over, number)
            return
        ready = engine.ready_at()
        if ready is not None:
            self.push(max(ready, now), self.kick, number)

    def _step_over(self, number: int, now: float) -> None:
        engine = self.engines[number]
        emitted = cast(list[Flight], engine.end())
        for flight in emitted:
            flight.read(now)
        turning = [one for one in emitted if one.known in (one.final, one.opening)] if engine.turning else []
        self.kick(number, now)
        for flight in turning:
            self._tell(flight, now)

    def _tell(self, flight: Flight, now: float) -> None:
        """Its first token, its last one, or both."""
        call, sample = flight.call, flight.call.sample
        if call.ended:  # its client is gone, and the engine goes on
            return
        if flight.known == flight.opening and sample.streamed:
            self.front.first_token(call, now)
        if flight.known == flight.final:
            if not sample.streamed:
                call.reads.append(now)
            sample.prompt_tokens = flight.prompt_tokens
            sample.cached_tokens = flight.cached
            sample.output_tokens = flight.generated
            self._end(call, Outcome.OK, now)
            self.front.finished(call, now)

    def _poll(self, _: None, now: float) -> None:
        if now < self._timing.frozen_s:
            seen = [_look(engine) for engine in self.engines]
            self._seen = [*seen] if self.trouble is None else self.trouble.looks(seen, now)
        self.push(now + self._timing.poll_delay_s, self._show, (self._seen, now))
        self.push(now + self._timing.poll_s, self._poll, None)

    def _show(self, look: tuple[list[Seen | None], float], now: float) -> None:
        self.front.observed(look[0], look[1], now)


def _followers(requests: Iterable[Planned]) -> dict[int, list[Planned]]:
    """The turns that wait for the end of another, by that one's id."""
    found: dict[int, list[Planned]] = defaultdict(list)
    for planned in requests:
        if planned.after is not None:
            found[planned.after].append(planned)
    return found


def _look(engine: EngineModel) -> Seen:
    return Seen(
        running=len(engine.running),
        waiting=len(engine.waiting),
        waiting_tokens=sum(sequence.known for sequence in engine.waiting),
        kv_usage=engine.kv_usage,
    )
