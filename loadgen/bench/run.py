"""One run: prime, warm-up, measure, tail, drain; its files; its report."""

import asyncio
import math
import secrets
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console

from loadgen import tasks
from loadgen.bench import ceiling, extra, scrape
from loadgen.bench.basis import Plan, basis, utc
from loadgen.bench.exits import BenchError, Exit
from loadgen.bench.facts import ideal
from loadgen.bench.keys import Keys
from loadgen.bench.options import BenchOptions
from loadgen.bench.preflight import Ready
from loadgen.bench.prepare import senders
from loadgen.bench.recorder import Recorder
from loadgen.bench.rules import rules
from loadgen.bench.stop import Stop
from loadgen.bench.vitals import HealthFile, vitals
from loadgen.client import Client, ClientError, ClientOptions
from loadgen.live.progress import Tally, View, shown
from loadgen.report import folder as files
from loadgen.report.document import Report
from loadgen.report.folder import Ending
from loadgen.report.lines import NAME as REQUESTS
from loadgen.report.outputs import rebuild
from loadgen.report.record import Outcome, Sample
from loadgen.scenario import Scenario
from loadgen.schedule import Schedule
from loadgen.workload.prompts import Prose


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What stays the same from run to run of one command."""

    options: BenchOptions
    keys: Keys
    ready: Ready
    screen: Console
    stop: Stop
    session: aiohttp.ClientSession


Settled = Callable[[Sample], bool]
"""Is told of each end; True from it stops the run there."""


async def measured(
    course: Course, plan: Plan, folder: Path, title: str, settled: Settled = lambda sample: False
) -> tuple[Report, tuple[str, ...]]:
    """Run the plan and report it, also when it is stopped: the report, and what is to be said of its files."""
    return await _Run(course, plan, folder, title, settled).run()


def salt_of(options: BenchOptions, scenario: Scenario) -> str:
    """What makes prompts differ from those of other runs; "" for nothing."""
    wanted = options.salt or scenario.salt
    return secrets.token_hex(8) if wanted == "run" else "" if wanted == "none" else wanted


class _Run:
    def __init__(self, course: Course, plan: Plan, folder: Path, title: str, settled: Settled) -> None:
        options = course.options
        self._settled = settled
        self._cut_s = math.inf
        self._course = course
        self._plan = plan
        self._folder = folder
        self._title = title
        self._began_s = time.time()
        self._salt = salt_of(options, plan.scenario)
        self._prose = Prose(self._salt, course.ready.sizes.words)
        self._basis = basis(options, plan, course.ready, self._salt, self._began_s)
        self._goal_of = self._basis.slo_of()
        self._prime = extra.prime(plan.facts, plan.schedule) if options.prime else None
        self._probe = extra.probe(options.probe, plan.schedule, plan.total_s) if options.probe else None
        self._pages = [scrape.Page(course.session, url) for url in options.scrape]
        told = (_too_much(plan, options.workers), course.keys.warning(senders(options, plan.facts.tenants)))
        self._warnings = [one for one in told if one]

    async def run(self) -> tuple[Report, tuple[str, ...]]:
        for page in self._pages:
            await page.begin()
        if not (self._folder / files.SCHEDULE).exists():
            self._plan.schedule.write(self._folder / files.SCHEDULE)
        files.begin(self._folder, self._basis)
        if self._prime is not None:
            await self._primed(self._prime)
        client = await self._sent()
        files.end(self._folder, self._ending(client))
        return rebuild(self._folder, rules, html=self._course.options.html)

    async def _sent(self) -> Client:
        """The load itself."""
        async with AsyncExitStack() as stack:
            recorder = self._recorder(stack, REQUESTS)
            client = self._client(self._plan.schedule, recorder)
            clients = [client]
            recorder.settled = partial(self._look, client)
            if self._probe is not None:
                clients.append(self._client(self._probe, self._recorder(stack, files.PROBES), workers=1))
            await stack.enter_async_context(self._watched(client, recorder))
            self._course.stop.sending(*clients)
            try:
                await asyncio.gather(*(one.run(self._prose) for one in clients))
            except ClientError as error:
                raise BenchError(str(error), Exit.INTERNAL) from error
            finally:
                self._course.stop.sending()
        return client

    def _look(self, client: Client, sample: Sample) -> None:
        """Stop when nothing can change any more what the run comes to."""
        if self._cut_s == math.inf and self._settled(sample):
            self._cut_s = client.now_s()
            client.stop(0.0)

    @asynccontextmanager
    async def _watched(self, client: Client, recorder: Recorder) -> AsyncIterator[None]:
        """Progress, health and scrapes while the block runs, and the last of each after it."""
        health = HealthFile(self._folder / files.HEALTH, client)
        for page in self._pages:
            await page.look(client.now_s)
        jobs = [tasks.start(health.run(), "health of the client")]
        if self._pages:
            jobs.append(tasks.start(scrape.watch(self._pages, client.now_s), "scrapes"))
        try:
            async with self._shown(client, recorder):
                yield
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.wait(jobs)
            health.write()
            await asyncio.gather(*(page.end(client.now_s) for page in self._pages))
            self._write_scrapes()

    @asynccontextmanager
    async def _shown(self, client: Client, recorder: Recorder) -> AsyncIterator[None]:
        course, known = self._course, self._plan.facts
        if course.options.quiet:
            yield
            return
        tally = Tally(known.tenants, self._goal_of, lambda sample: sample.tenant)
        recorder.counter = tally
        view = View(self._title, client, tally, self._plan.window_s, self._plan.total_s)
        view.offered = partial(bisect_right, known.due)
        view.vitals = partial(vitals, client, min(goal.slo.ttft.base_ms for goal in self._basis.goals))
        async with shown(course.screen, view):
            yield
        course.screen.print(view.line(ended=True), highlight=False, soft_wrap=True)

    async def _primed(self, prime: Schedule) -> None:
        """Each shared prefix once, before anything else is sent."""
        ended: list[Sample] = []
        tally = Tally(self._plan.facts.tenants, self._basis.slo, lambda sample: sample.tenant)
        watcher = _Gather(ended, tally)
        client = Client(prime, self._course.ready.targets, self._client_options(), watcher, keep=False)
        if not self._course.options.quiet:
            self._course.screen.print(f"{self._title}: priming {len(prime.requests)} shared prefixes", highlight=False)
        self._course.stop.sending(client)
        view = View(self._title, client, tally, (0.0, len(prime.requests) / extra.PRIMED_PER_S))
        view.phase = "prime"
        async with nullcontext() if self._course.options.quiet else shown(self._course.screen, view):
            await client.run(self._prose)
        self._course.stop.sending()
        bad = [one for one in ended if one.outcome is not Outcome.OK]
        if bad:
            why = self._course.keys.scrubbed(bad[0].reason or bad[0].outcome.value)
            self._warnings.append(f"{len(bad)} of {len(prime.requests)} shared prefixes were not primed: {why}")

    def _recorder(self, stack: AsyncExitStack, name: str) -> Recorder:
        file = stack.enter_context((self._folder / name).open("wb", buffering=0))
        recorder = Recorder(file, self._goal_of, self._plan.window_s[1], self._course.keys)
        if name == REQUESTS:
            recorder.ideal = ideal(self._prime.requests if self._prime else (), self._plan.schedule)
        return recorder

    def _client(self, schedule: Schedule, recorder: Recorder, workers: int | None = None) -> Client:
        """Its samples are on disk as they end, where the report finds them."""
        return Client(schedule, self._course.ready.targets, self._client_options(workers), recorder, keep=False)

    def _client_options(self, workers: int | None = None) -> ClientOptions:
        options = self._course.options
        return ClientOptions(
            timeout_s=options.timeout_s,
            connect_s=options.connect_timeout_s,
            max_open=options.max_open,
            retries=options.retries,
            honour_retry_after=options.honour_retry_after,
            length_control=self._course.ready.control,
            workers=workers or options.workers,
        )

    def _write_scrapes(self) -> None:
        rows = sorted((one for page in self._pages for one in page.looks), key=lambda one: one.t_s)
        if self._pages:
            (self._folder / files.SCRAPES).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in rows))
        for page in self._pages:
            for why, number in page.failures.most_common(1):
                self._warnings.append(f"{page.failures.total()} looks at {page.name} failed, {number} of them: {why}")

    def _ending(self, client: Client) -> Ending:
        stop = self._course.stop
        stopped_s = client.now_s() - (time.monotonic() - stop.first_s) if stop.asked else self._cut_s
        now_s = time.time()
        return Ending(
            finished=utc(now_s),
            took_s=round(now_s - self._began_s, 3),
            stopped_s=max(0.0, min(stopped_s, self._plan.total_s)),
            interrupted=bool(stop.asked),
            warnings=tuple(self._warnings),
        )


def _too_much(plan: Plan, workers: int) -> str | None:
    """What is to be said of a load that this machine can hardly measure."""
    totals = plan.schedule.totals
    return ceiling.warning(totals.requests / plan.total_s, totals.output_tokens / plan.total_s, workers)


class _Gather:
    """Keeps what has ended, and counts."""

    def __init__(self, ended: list[Sample], counter: Tally) -> None:
        self._ended = ended
        self._counter = counter
        self.sent = counter.sent

    def ended(self, sample: Sample) -> None:
        self._counter.ended(sample)
        self._ended.append(sample)
