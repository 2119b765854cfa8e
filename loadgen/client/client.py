"""A run of a schedule, by this process or by several."""

import math
import time
from collections.abc import Mapping, Sequence

from loadgen.client.health import Healths, Pulse
from loadgen.client.sender import Sender, Share
from loadgen.client.survey import survey
from loadgen.client.values import OTHERS, ClientError, ClientOptions, Health, Target, Watcher
from loadgen.client.workers import Workers
from loadgen.report.record import Sample
from loadgen.schedule import Schedule
from loadgen.workload.prompts import Prose


class Client:
    """One run of one schedule. Several targets of a tenant are taken in turn."""

    def __init__(
        self,
        schedule: Schedule,
        targets: Mapping[str, Sequence[Target]],
        options: ClientOptions,
        watcher: Watcher,
        *,
        keep: bool = True,
    ) -> None:
        """`targets` by tenant; those under `OTHERS` are for every tenant that is not named. ClientError if one has none.

        Without `keep` the watcher alone gets the samples, and a request that has ended takes no memory.
        """
        known = survey(schedule.requests)
        without = sorted(one for one in known.tenants if not targets.get(one, targets.get(OTHERS)))
        if without:
            raise ClientError(f"tenant {without[0]} has no target to send to")
        self._options = options
        self._healths = Healths()
        self._zero = math.inf  # not begun
        share = Share(
            requests=schedule.requests,
            start_s=schedule.window_start_s,
            end_s=schedule.window_end_s,
            last_s=max(schedule.window_end_s, known.last_s),
            chained=known.chained,
            again=known.again,
        )
        held = {tenant: tuple(several) for tenant, several in targets.items() if several}
        beholder = _Beholder(watcher, self._healths)
        self._sends: Sender | Workers
        if options.workers == 1:
            self._sends = Sender(share, held, options, beholder, keep=keep)
        else:
            self._sends = Workers(share, held, options, beholder, keep=keep)

    @property
    def health(self) -> Health:
        """How well the client itself is, now and so far; renewed once a second."""
        return self._healths.health

    def now_s(self) -> float:
        """Seconds since time 0 of the schedule; negative before it."""
        return time.monotonic() - self._zero

    async def run(self, prose: Prose) -> list[Sample]:
        """Send everything and wait for the answers; one sample for each request that was due, by intended time,
        or none without `keep`.

        Once. Turns of a conversation that were not due before the last planned time have no sample. ClientError when a
        worker dies. Cancelling it ends everything at once.
        """
        return await self._sends.run(prose, self._begin)

    def stop(self, grace_s: float = 5.0) -> None:
        """Send nothing more; what is open may go on for `grace_s`, then it is `unfinished` and `run` returns."""
        self._sends.stop(grace_s)

    def _begin(self) -> float:
        self._zero = time.monotonic() + self._options.lead_s
        return self._zero


class _Beholder:
    def __init__(self, watcher: Watcher, healths: Healths) -> None:
        self.sent = watcher.sent
        self.ended = watcher.ended
        self._healths = healths

    def pulse(self, pulse: Pulse) -> None:
        self._healths.add(pulse)
