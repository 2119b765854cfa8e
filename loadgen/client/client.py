"""Sends a schedule on time, whatever the server does, and records what came back.

Open loop: a request goes out at its intended time on the absolute clock of the run, never because another one ended.
Several base URLs are taken in turn, which is all that round robin is. One session without a limit on connections:
the client never queues. Prompt text is made right before its request is due, one request ahead.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile

import aiohttp

from loadgen import tasks
from loadgen.client.answer import Answer, reason_of, refused
from loadgen.client.values import OTHERS, ClientError, ClientOptions, Health, Target, Watcher
from loadgen.report.record import Outcome, Sample
from loadgen.schedule import Planned, Schedule
from loadgen.workload.bodies import PATHS, Terms, body
from loadgen.workload.prompts import Prose

_IDLE_S = 3.0  # engines close idle connections after 5 s: never reuse one about to be closed


class Client:
    """One run of one schedule. Several targets of a tenant are taken in turn."""

    def __init__(
        self, schedule: Schedule, targets: Mapping[str, Sequence[Target]], options: ClientOptions, watcher: Watcher
    ) -> None:
        """`targets` by tenant; those under `OTHERS` are for every tenant that is not named. ClientError if one has none."""
        without = {one.tenant for one in schedule.requests if not targets.get(one.tenant, targets.get(OTHERS))}
        if without:
            raise ClientError(f"tenant {min(without)} has no target to send to")
        self._schedule = schedule
        self._targets = targets
        self._options = options
        self._watcher = watcher
        self._zero = math.inf  # not begun
        self._open: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    @property
    def health(self) -> Health:
        """How well the client itself is, now and so far."""
        return Health(open=len(self._open))

    def stop(self, grace_s: float = 5.0) -> None:
        """Send nothing more; what is open may go on for `grace_s`, then `run` returns."""
        self._stopping.set()

    def now_s(self) -> float:
        """Seconds since time 0 of the schedule; negative before it."""
        return time.monotonic() - self._zero

    async def run(self, prose: Prose) -> list[Sample]:
        """Send everything, wait for the answers; one sample for each request, in order."""
        self._zero = time.monotonic() + self._options.lead_s
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._options.connect_s)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
        samples: list[Sample] = []
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                for planned in takewhile(lambda _: not self._stopping.is_set(), self._schedule.requests):
                    content = self._body(planned, prose)
                    await self._until(planned.t)
                    samples.append(self._send(session, planned, content))
                await self._drain()
            finally:
                await self._close_open()
        return samples

    async def _until(self, t: float) -> None:
        while (left := t - self.now_s()) > 0:
            await asyncio.sleep(left)

    def _send(self, session: aiohttp.ClientSession, planned: Planned, body: bytes) -> Sample:
        sample = _sample(planned)
        task = tasks.start(self._one(session, planned, sample, body), f"request {planned.id}")
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return sample

    async def _drain(self) -> None:
        if self._open:
            await asyncio.wait(set(self._open), timeout=self._options.drain_s or self._options.timeout_s)

    async def _close_open(self) -> None:
        left = set(self._open)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _one(self, session: aiohttp.ClientSession, planned: Planned, sample: Sample, body: bytes) -> None:
        leaves = planned.cancel_after_s
        patience_s = self._options.timeout_s if leaves is None else min(self._options.timeout_s, leaves)
        sample.sent_s = self.now_s()
        self._watcher.sent(sample)
        try:
            async with asyncio.timeout(planned.t + patience_s - sample.sent_s):
                sample.outcome = await self._exchange(session, sample, body)
        except TimeoutError:
            sample.outcome = Outcome.TIMEOUT if leaves is None else Outcome.CANCELLED
        finally:
            sample.end_s = self.now_s()
            self._watcher.ended(sample)

    async def _exchange(self, session: aiohttp.ClientSession, sample: Sample, body: bytes) -> Outcome:
        target = self._target(sample.tenant, sample.id)
        url = target.shown.removesuffix("/v1") + PATHS[target.api]
        headers = {"content-type": "application/json", "x-forebay-priority": sample.priority}
        try:
            async with session.post(url, data=body, headers=headers) as response:
                sample.head_s = self.now_s()
                sample.status = response.status
                sample.request_id = response.headers.get("x-request-id", "")
                if response.status == 200:
                    return await self._read(response, sample)
                sample.reason = response.headers.get("x-forebay-reason", "")
                outcome = refused(response.status, sample.reason)
                sample.reason = sample.reason or reason_of(await response.read())
                return outcome
        except (aiohttp.ClientError, OSError) as error:
            sample.reason = (str(error) or type(error).__name__)[:80]
            no_answer = isinstance(error, (aiohttp.ClientConnectionError, OSError))
            return Outcome.ERROR_CONNECT if no_answer else Outcome.ERROR_PROTOCOL

    async def _read(self, response: aiohttp.ClientResponse, sample: Sample) -> Outcome:
        answer = Answer(sample)
        try:
            while data := await response.content.readany():
                answer.feed(data, self.now_s())
        except (aiohttp.ClientError, OSError) as error:
            sample.reason = (str(error) or type(error).__name__)[:80]  # a broken body; the end marker decides
        return answer.end()

    def _body(self, planned: Planned, prose: Prose) -> bytes:
        target = self._target(planned.tenant, 0)
        terms = Terms(model=target.model, api=target.api, control=self._options.length_control)
        return body(terms, planned, prose)

    def _target(self, tenant: str, number: int) -> Target:
        targets = self._targets.get(tenant, self._targets.get(OTHERS, ()))
        return targets[number % len(targets)]


def _sample(planned: Planned) -> Sample:
    return Sample(
        id=planned.id,
        tenant=planned.tenant,
        priority=planned.priority,
        measured=planned.measured,
        input_tokens=planned.input_tokens,
        planned_output=planned.output_tokens,
        leaves=planned.cancel_after_s is not None,
        sched_s=planned.t,
        cls=planned.cls,
    )
