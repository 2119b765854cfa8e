"""`forebay bench selftest`: is the client of this machine fast enough to be believed, and up to which load? (loadgen.md 8.1)

Simulated engines that cost nothing stand on one core, the client on another. What the client's CPU spends on a request
and on a chunk says how much one worker can measure; `bench` warns of a plan that is more than half of that.
"""

import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from loadgen.bench.ceiling import SCHEMA, Costs, remember
from loadgen.bench.exits import Exit
from loadgen.bench.selftest_loads import STEP_MS, Figure, Load, Ran, gaps_ms, lag_ms, sent, ttft_ms
from loadgen.live.processes import LiveError, Processes, free_ports
from loadgen.live.serving import FOREBAY, flags, until_healthy
from loadgen.live.signals import INTERRUPTED, cancel_on_signal

_PLAIN_WIDTH = 120
_ENGINES = 10  # of test B, at their own beats: 1,000 streams of one engine would all speak at once
_STEPPED = f"""\
model: noop
step: {{t0_ms: {STEP_MS:g}, tw_ms: 0, c_us: 0, x_us: 0, k_ns: 0, a_ns: 0, s_us: 0}}
kv_tokens: null
max_model_len: 1048576
"""
Urls = Sequence[str]


class Test(msgspec.Struct, kw_only=True):
    """One test: its load in words, and what came of it."""

    name: str
    load: str
    figures: list[Figure]


class Report(msgspec.Struct, kw_only=True):
    """All of it, as `--json` prints it."""

    schema: str
    holds: bool
    quick: bool
    requests_per_s: float
    chunks_per_s: float
    costs: Costs
    tests: list[Test]
    notes: list[str]
    environment: dict[str, str]


def selftest_command(*, quick: bool, as_json: bool) -> int:
    """Run and print it. Exit status: 0 all holds, 1 something does not, 4 no engine starts, 130 interrupted."""
    screen = Console(stderr=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, tempfile.TemporaryDirectory() as folder:
            report = runner.run(_Selftest(Path(folder), screen, quick=quick).run())
    except LiveError as error:
        screen.print(f"forebay bench selftest: {error}", highlight=False, markup=False, soft_wrap=True)
        return Exit.UNREACHABLE
    except (asyncio.CancelledError, KeyboardInterrupt):
        screen.print("forebay bench selftest: interrupted; the engines are stopped.", highlight=False)
        return INTERRUPTED
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    else:
        _show(report)
    return Exit.MET if report.holds else Exit.MISSED


class _Selftest:
    def __init__(self, folder: Path, screen: Console, *, quick: bool) -> None:
        self._folder = folder
        self._screen = screen
        self._quick = quick
        self._notes: list[str] = []
        self._cores = _cores()

    async def run(self) -> Report:
        """Every test, one after the other."""
        cancel_on_signal()
        if self._cores is None:
            self._notes.append("fewer than two cores, or none can be chosen: engines and client share what there is")
        tests: list[Test] = []
        costs: dict[str, float] = {}
        async with self._engines("noop", 1) as urls:
            for test in (self._whole, self._long, self._burst, self._memory):
                tests.append(await self._told(test, urls, costs))
        stepped = self._folder / "stepped.yaml"
        stepped.write_text(_STEPPED, "utf-8")
        async with self._engines(str(stepped), _ENGINES) as urls:
            tests.append(await self._told(self._streams, urls, costs))
        tests.sort(key=lambda one: one.name)
        return self._report(tests, Costs(request_us=costs["request_us"], chunk_us=costs["chunk_us"]))

    async def _told(
        self, test: Callable[[Urls], Awaitable[tuple[Test, Ran]]], urls: Urls, costs: dict[str, float]
    ) -> Test:
        with _pinned(self._cores and self._cores[1]):
            done, ran = await test(urls)
        if done.name == "A":
            costs["request_us"] = ran.cpu_s * 1e6 / len(ran.samples)
        elif done.name == "B":
            costs["chunk_us"] = ran.cpu_s * 1e6 / max(1, ran.reads)
        self._screen.print(f"{done.name}: {done.load}: {'holds' if _holds(done) else 'does not hold'}", highlight=False)
        return done

    def _report(self, tests: list[Test], costs: Costs) -> Report:
        try:
            remember(costs)
        except OSError as error:
            self._notes.append(f"bench will not know of this: {error.filename}: {error.strerror}")
        return Report(
            schema=SCHEMA,
            holds=all(_holds(test) for test in tests),
            quick=self._quick,
            requests_per_s=round(costs.requests_per_s, 1),
            chunks_per_s=round(costs.chunks_per_s, 1),
            costs=costs,
            tests=tests,
            notes=self._notes,
            environment={
                "machine": platform.machine(),
                "cpus": str(os.cpu_count()),
                "python": platform.python_version(),
                "system": platform.platform(),
            },
        )

    @asynccontextmanager
    async def _engines(self, profile: str, count: int) -> AsyncIterator[Urls]:
        processes, port = Processes(self._folder), free_ports(count)
        argv = (*FOREBAY, "engine", *flags({"profile": profile, "port": port, "count": count}), "--allow-markers")
        urls = [f"http://127.0.0.1:{port + number}" for number in range(count)]
        try:
            with _pinned(self._cores and self._cores[0]):  # a child has its parent's cores
                processes.start("engines", argv)
            await until_healthy(processes, urls)
            yield urls
        finally:
            await processes.stop()

    # ---- the tests; a quick one is a quarter as long, but for memory, which takes longest

    def _seconds(self, whole: float) -> float:
        return whole / 4 if self._quick else whole

    async def _whole(self, urls: Urls) -> tuple[Test, Ran]:
        seconds = self._seconds(20)
        ran = await sent(Load(rate=2000, count=round(2000 * seconds)), urls)
        figures = [
            Figure(name="CPU per request", value=ran.cpu_s * 1e6 / len(ran.samples), unit="µs", most=150),
            Figure(name="send lag p99", value=ran.p(0.99, lag_ms), unit="ms", most=5),
            Figure(name="achieved", value=ran.achieved * 100, unit="%", least=99.5),
        ]
        return Test(name="A", load=f"2,000 requests/s, not streamed, {seconds:g} s", figures=figures), ran

    async def _streams(self, urls: Urls) -> tuple[Test, Ran]:
        seconds = self._seconds(30)
        answer = round((seconds + 5) * 1000 / STEP_MS)  # the last of them begins after 5 s
        ran = await sent(Load(rate=200, count=1000, answer=answer, stream=True), urls)
        figures = [
            Figure(name="CPU per chunk", value=ran.cpu_s * 1e6 / max(1, ran.reads), unit="µs", most=20),
            Figure(name="ITL p50", value=ran.p(0.5, gaps_ms), unit="ms", least=STEP_MS - 0.5, most=STEP_MS + 0.5),
            Figure(name="ITL p99", value=ran.p(0.99, gaps_ms), unit="ms", least=STEP_MS - 5, most=STEP_MS + 5),
            Figure(name="achieved", value=ran.achieved * 100, unit="%", least=99.5),
        ]
        return Test(name="B", load=f"1,000 open streams of 20 chunks/s, {seconds:g} s", figures=figures), ran

    async def _long(self, urls: Urls) -> tuple[Test, Ran]:
        seconds = self._seconds(20)
        # A simulated engine reads such a prompt for milliseconds: what it takes of a lonely one is not the client's.
        lonely = await sent(Load(rate=2, count=max(10, round(seconds)), tokens=50_000, stream=True), urls)
        ran = await sent(Load(rate=50, count=round(50 * seconds), tokens=50_000, stream=True), urls)
        longer = ran.p(0.5, ttft_ms) - lonely.p(0.5, ttft_ms)
        figures = [
            Figure(name="TTFT p50 more than of one at a time", value=longer, unit="ms", least=-3, most=3),
            Figure(name="loop lag p99", value=ran.health.loop_lag_p99_ms, unit="ms", most=10),
        ]
        return Test(name="C", load=f"50 requests/s of 50k tokens, {seconds:g} s", figures=figures), ran

    async def _burst(self, urls: Urls) -> tuple[Test, Ran]:
        ran = await sent(Load(rate=500, count=500, stream=True, answer=20), urls)
        bad = sum(not one.head_s for one in ran.samples)
        figures = [
            Figure(name="send lag p99", value=ran.p(0.99, lag_ms), unit="ms", most=20),
            Figure(name="connection errors", value=float(bad), unit="", most=0),
        ]
        return Test(name="D", load="500 arrivals in 1 s", figures=figures), ran

    async def _memory(self, urls: Urls) -> tuple[Test, Ran]:
        seconds = 30 if self._quick else 600
        ran = await sent(Load(rate=500, count=500 * seconds), urls, keep=False)
        grown = None if ran.growth is None else ran.growth * 100_000 / 1e6
        figures = [Figure(name="memory per 100,000 requests", value=grown, unit="MB", most=50)]
        return Test(name="E", load=f"500 requests/s, {seconds} s", figures=figures), ran


def _cores() -> tuple[int, int] | None:
    """One for the engines and one for the client."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    free = sorted(os.sched_getaffinity(0))
    return (free[0], free[1]) if len(free) > 1 else None


@contextmanager
def _pinned(core: int | None) -> Iterator[None]:
    """This process, and what it starts, on that core; on any for None."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _holds(test: Test) -> bool:
    return all(figure.holds for figure in test.figures)


def _show(report: Report) -> None:
    page = Console()
    if not page.is_terminal:
        page = Console(width=_PLAIN_WIDTH)
    table = Table(title="The load client on this machine" + (" (quick)" if report.quick else ""), title_justify="left")
    for name in ("test", "load", "figure"):
        table.add_column(name)
    for name in ("measured", "must be"):
        table.add_column(name, justify="right")
    table.add_column("")
    for test in report.tests:
        for number, figure in enumerate(test.figures):
            head = ("", "") if number else (test.name, test.load)
            verdict = "holds" if figure.holds else "[bold red]does not hold[/]"
            table.add_row(*head, figure.name, _number(figure.value, figure.unit), _bounds(figure), verdict)
    page.print(table)
    page.print(
        f"The highest load that one worker of this machine can measure: {report.requests_per_s:,.0f} requests/s that are "
        f"not streamed, or {report.chunks_per_s:,.0f} chunks/s of streams; plan for half of it at most.",
        highlight=False,
        soft_wrap=True,
    )
    for note in report.notes:
        page.print(note, highlight=False, soft_wrap=True)


def _number(value: float | None, unit: str) -> str:
    return "not known" if value is None else f"{value:,.1f} {unit}".rstrip()


def _bounds(figure: Figure) -> str:
    if figure.least is not None and figure.most is not None:
        return f"{figure.least:g} to {figure.most:g}"
    return f"<= {figure.most:g}" if figure.least is None else f">= {figure.least:g}"
