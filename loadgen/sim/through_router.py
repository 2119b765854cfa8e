"""A router that binds at once in front of simulated engines: the baselines of scheduling.md 13."""

from collections.abc import Sequence

from loadgen.report.record import Outcome
from loadgen.sim.call import Call
from loadgen.sim.loop import Floor
from loadgen.sim.router import Job, Router, Seen

ANY_LENGTH = 1 << 20  # what a router takes a request for that names no max_tokens


class ThroughRouter:
    """A front that asks `router` once for each request and sends it there, whatever happens."""

    isolates = False

    def __init__(self, floor: Floor, router: Router) -> None:
        self._floor = floor
        self._router = router
        self._jobs: dict[str, Job] = {}

    def arrived(self, call: Call, now: float) -> None:
        """Placed and sent."""
        planned = call.planned
        job = Job(
            id=call.id,
            tenant=planned.tenant,
            priority=planned.priority,
            arrived_s=now,
            prompt_tokens=planned.input_tokens,
            max_tokens=planned.max_tokens or ANY_LENGTH,
            hashes=call.hashes,
            session=planned.session,
        )
        self._jobs[call.id] = job
        self._floor.send(call, self._router.place(job, now), now)

    def first_token(self, call: Call, now: float) -> None:
        """Passed on."""
        self._router.first_token(self._jobs[call.id], call.engine, now)

    def finished(self, call: Call, now: float) -> None:
        """Passed on."""
        self._router.finished(self._jobs.pop(call.id), call.engine, now)

    def left(self, call: Call, now: float) -> None:
        """For a router, an end like any other."""
        self.finished(call, now)

    def refused(self, call: Call, full: bool, now: float) -> None:
        """Nobody tries again."""
        outcome = Outcome.REJECTED_CAPACITY if full else Outcome.ERROR_STATUS
        self._floor.refuse(call, outcome, "engine_full" if full else "too_long", now)
        self.finished(call, now)

    def observed(self, seen: Sequence[Seen | None], observed_s: float, now: float) -> None:
        """Passed on, one engine after the other."""
        for engine, look in enumerate(seen):
            if look is not None:
                self._router.observed(engine, look, now)

    def next_wakeup(self) -> float | None:
        """A router has no timers."""
        return None

    def tick(self, now: float) -> None:
        """Never due."""
