"""What faults do to a run: engines die, refuse, hang and lie, and the gateway's prober finds out.

The prober has the gateway's rules (`gateway/endpoints`): a probe in each period, a tenth up or down; four a second once
a connection failed; down after three bad ones in a row, up after a good one.
"""

from dataclasses import dataclass
from random import Random

from loadgen.sim.call import Call, Flight
from loadgen.sim.loop import Floor
from loadgen.sim.router import Seen
from loadgen.sim.through_core import ThroughCore
from loadgen.sim.timeline import UNREACHABLE, UNWELL, Timeline
from policies.events import Cause

FAILURES = 3
SUSPECT_S = 0.25
_AGAIN_S = 0.05  # until what could not be done yet is tried again


@dataclass(slots=True)
class _Health:
    up: bool = True
    suspected: bool = False
    failures: int = 0
    probed_s: float = 0.0
    turn: int = 0  # a probe that was put off has another's


class Trouble:
    """The faults of one run on its floor. `probe_s` and `first_byte_s` are the gateway's settings."""

    def __init__(self, floor: Floor, timeline: Timeline, probe_s: float, first_byte_s: float, *, seed: int) -> None:
        front = floor.front
        self._floor = floor
        self._core = front if isinstance(front, ThroughCore) else None
        self._timeline = timeline
        self._probe_s, self._first_byte_s = probe_s, first_byte_s
        self._random = Random(seed)
        self._health = [_Health() for _ in floor.engines]
        self._looks: list[tuple[float, Seen] | None] = [None] * len(floor.engines)

    def begin(self) -> None:
        """Put everything that is to happen on the floor's heap."""
        for engine in range(len(self._floor.engines)):
            for when, begins, fault in self._timeline.moments(engine):
                self._floor.push(when, self._begins if begins else self._ends, (engine, fault.name))
            if self._core is not None and self._timeline.ever(UNWELL):
                self._next_probe(engine, self._random.random() * self._probe_s)

    # ---- requests

    def takes(self, call: Call, now: float) -> bool:
        """Whether this call meets a fault where it was sent, and which: the core is told."""
        engine, timeline = call.engine, self._timeline
        if timeline.any(engine, UNREACHABLE, now):
            self._suspect(engine, now)
            self._bounce(call, Cause.CONNECT, None, now)
            return True
        if timeline.any(engine, ("startup",), now):
            self._bounce(call, Cause.STATUS_503, None, now)
            return True
        fault = timeline.strike(engine, now)
        if fault is None:
            return False
        if fault.name == "status":
            retry_after = fault.number("retry_after", -1.0)
            self._answer(call, int(fault.amount), None if retry_after < 0 else retry_after, now)
        elif self._core is not None:
            self._floor.push(now + self._first_byte_s, self._silent, (call, call.attempt))
        return True

    def ignores_aborts(self, engine: int, now: float) -> bool:
        """Whether it goes on with answers whose client is gone."""
        return self._timeline.active(engine, "ignore_abort", now) is not None

    def _answer(self, call: Call, status: int, retry_after_s: float | None, now: float) -> None:
        if status == 400 and self._core is not None:
            self._core.broke(call, True, now)
        else:
            self._bounce(call, Cause(f"status_{status}"), retry_after_s, now)

    def _silent(self, about: tuple[Call, int], now: float) -> None:
        """No byte came for too long, if the call still waits for one there."""
        call, attempt = about
        if not call.ended and call.attempt == attempt:
            self._bounce(call, Cause.FIRST_BYTE_TIMEOUT, None, now)

    def _bounce(self, call: Call, cause: Cause, retry_after_s: float | None, now: float) -> None:
        if self._core is not None:
            self._core.bounced(call, cause, retry_after_s, now)

    # ---- engines

    def _begins(self, about: tuple[int, str], now: float) -> None:
        engine, name = about
        if name == "crash":
            self._die(engine, now)
        elif name == "kv_shrink":
            self._shrink(engine, now)
        self._pace(engine, now)

    def _ends(self, about: tuple[int, str], now: float) -> None:
        engine, name = about
        if name == "crash":
            self._forget(engine, now)
        elif name == "kv_shrink":
            self._floor.engines[engine].shrink_kv(0.0)
        self._pace(engine, now)

    def _pace(self, engine: int, now: float) -> None:
        model = self._floor.engines[engine]
        slow = [self._timeline.active(engine, name, now) for name in ("slow_prefill", "slow_decode")]
        model.prefill_factor, model.decode_factor = (1.0 if one is None else one.amount for one in slow)

    def _shrink(self, engine: int, now: float) -> None:
        """Take what is free of the blocks now, and of the rest what becomes free."""
        fault = self._timeline.active(engine, "kv_shrink", now)
        if fault is not None:
            self._floor.engines[engine].shrink_kv(fault.amount)
            self._floor.push(now + _AGAIN_S, self._shrink, engine)

    def _die(self, engine: int, now: float) -> None:
        """All it had is gone. What had begun to answer is broken, the rest may go elsewhere."""
        model = self._floor.engines[engine]
        lost = [one for one in (*model.running, *model.waiting) if isinstance(one, Flight)]
        for flight in lost:
            model.abort(flight)
            flight.call.sequence = None
        self._floor.kick(engine, now)
        for flight in lost:
            self._lose(flight, now)

    def _lose(self, flight: Flight, now: float) -> None:
        call = flight.call
        if call.ended:  # its client has left, and the engine did not care
            return
        if self._core is not None and call.sample.streamed and flight.known >= flight.opening:
            self._core.broke(call, False, now)
        else:
            self._bounce(call, Cause.RESET, None, now)

    def _forget(self, engine: int, now: float) -> None:
        """It is another process from here on: its cache is empty."""
        if not self._floor.engines[engine].scheduler.kv.clear():  # its last step has not ended
            self._floor.push(now + _AGAIN_S, self._forget, engine)

    # ---- metrics

    def looks(self, seen: list[Seen], now: float) -> list[Seen | None]:
        """What each engine shows at this look."""
        return [self._look(engine, look, now) for engine, look in enumerate(seen)]

    def _look(self, engine: int, look: Seen, now: float) -> Seen | None:
        timeline = self._timeline
        if timeline.any(engine, (*UNWELL, "absent"), now):
            return None
        before, stale = self._looks[engine], timeline.active(engine, "stale", now)
        frozen = timeline.active(engine, "freeze", now) is not None
        if before is not None and (frozen or (stale is not None and now - before[0] < stale.amount)):
            look = before[1]
        else:
            self._looks[engine] = now, look
        slow = timeline.active(engine, "slow", now)
        if slow is None:
            return look
        self._floor.push(now + slow.amount / 1e3, self._show, (engine, look, now))
        return None

    def _show(self, about: tuple[int, Seen, float], now: float) -> None:
        engine, look, looked_s = about
        alone: list[Seen | None] = [None] * len(self._health)
        alone[engine] = look
        self._floor.front.observed(alone, looked_s, now)

    # ---- the prober

    def _suspect(self, engine: int, now: float) -> None:
        health = self._health[engine]
        if health.up and not health.suspected:
            health.suspected = True
            self._next_probe(engine, max(now, health.probed_s + SUSPECT_S))

    def _next_probe(self, engine: int, when: float) -> None:
        health = self._health[engine]
        health.turn += 1
        self._floor.push(when, self._probe, (engine, health.turn))

    def _probe(self, about: tuple[int, int], now: float) -> None:
        engine, turn = about
        health = self._health[engine]
        if health.turn != turn:
            return
        health.probed_s = now
        before = health.up
        if self._timeline.any(engine, UNWELL, now):
            health.failures += 1
            health.up = health.up and health.failures < FAILURES
        else:
            health.failures, health.up, health.suspected = 0, True, False
        health.suspected = health.suspected and health.up
        if health.up is not before and self._core is not None:
            self._core.well(engine, health.up, now)
        pause_s = SUSPECT_S if health.suspected else self._probe_s * self._random.uniform(0.9, 1.1)
        self._next_probe(engine, now + pause_s)
