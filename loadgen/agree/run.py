"""`python -m loadgen.agree`: measure what is not simulated, run each case live and simulated, compare."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from loadgen.agree import case as cases
from loadgen.agree import compare, live
from loadgen.agree.case import Case
from loadgen.agree.compare import Row
from loadgen.agree.live import Ran
from loadgen.agree.table import note, table
from loadgen.agree.virtual import nearby, simulated
from loadgen.live.processes import LiveError
from loadgen.live.signals import INTERRUPTED, cancel_on_signal
from loadgen.scenario import ScenarioError
from loadgen.sim.fleet import FleetError

AGREE, OUT, WRONG, INVALID = 0, 1, 2, 3  # exit codes (loadgen.md 1.1)
WIDTH = 132
TRIES = 3  # of one run, until it is valid


class AgreeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. `seconds` of the window and `rate` None: as loadgen.md 10 has them. `allow`: limits that live runs
    may break, by their number there. `saturated`: with the tolerances for such a load. `out` None: files of a run stay in /tmp."""

    scenarios: tuple[str, ...] = ("smoke", "mixed-lengths", "spike")
    runs: int = 3
    seconds: float | None = None
    rate: float | None = None
    fleet: str | None = None
    saturated: bool = False
    allow: tuple[str, ...] = ()
    out: Path | None = None


def agree_command(options: AgreeOptions) -> int:
    """Run everything and print a table for each case; the exit code."""
    screen = Console(stderr=True)
    try:
        chosen = [cases.case(name, options.seconds, options.rate, options.fleet) for name in options.scenarios]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_Command(options, screen).run(chosen))
    except (ScenarioError, FleetError) as error:
        return _wrong(screen, error, WRONG)
    except LiveError as error:
        return _wrong(screen, error, error.status)


def _wrong(screen: Console, error: Exception, status: int) -> int:
    screen.print(f"agree: {error}", highlight=False, markup=False, soft_wrap=True)
    return status


class _Command:
    def __init__(self, options: AgreeOptions, screen: Console) -> None:
        self._options = options
        self._screen = screen
        self._invalid = False
        self._folder = options.out or Path(tempfile.mkdtemp(prefix="forebay-agree-"))

    async def run(self, chosen: Sequence[Case]) -> int:
        """Every case in turn; stopped by a signal it stops what it has started."""
        cancel_on_signal()
        try:
            return await self._all(chosen)
        except asyncio.CancelledError:
            self._screen.print("agree: interrupted; engines and gateway are stopped.", highlight=False)
            return INTERRUPTED

    async def _all(self, chosen: Sequence[Case]) -> int:
        code = AGREE
        for case in chosen:
            rows = await self._compared(case)
            if not all(row.agrees for row in rows):
                code = OUT
        if self._invalid:
            self._screen.print("INVALID: this machine is too busy; nothing follows from these figures", style="red")
            code = INVALID
        self._screen.print(f"Configuration, journals, one line per request: {self._folder}", soft_wrap=True)
        return code

    async def _compared(self, case: Case) -> list[Row]:
        net_s = await self._net_s(case)
        expected = nearby(case, net_s)
        runs = [await self._valid(case, f"run {number + 1}") for number in range(self._options.runs)]
        saturated = self._options.saturated or case.scenario.name in cases.SATURATED
        rows = [compare.net(net_s), *compare.rows(case, expected, runs, saturated)]
        page = Console(width=WIDTH)
        page.print(table(case.scenario.name, rows))
        page.print(note([one.report for one in (*expected, *(one.came for one in runs))]), highlight=False)
        told = [msgspec.to_builtins(row) | {"agrees": row.agrees} for row in rows]
        (self._folder / f"{case.scenario.name}.json").write_bytes(msgspec.json.encode(told) + b"\n")
        return rows

    async def _net_s(self, case: Case) -> float:
        """How much later a first token comes live than from an idle engine: the median of small requests."""
        alone = cases.unloaded(case)
        seen = (await self._valid(alone, "unloaded")).came.report.totals.ttft_p50_ms
        bare = simulated(alone, 0.0).report.totals.ttft_p50_ms
        if seen is None or bare is None or seen == float("inf"):
            raise LiveError("The requests of the unloaded run were not answered")
        return max(0.0, seen - bare) / 1e3

    async def _valid(self, case: Case, name: str) -> Ran:
        """A run that can be believed; the last one, and everything is invalid, when there is none."""
        for attempt in range(TRIES):
            folder = self._folder / f"{case.scenario.name}-{name.replace(' ', '-')}-{attempt + 1}"
            ran = await live.run(case, f"{case.scenario.name}, {name}", folder, self._screen)
            bad = [limit for limit in ran.faults if limit not in self._options.allow]
            if ran.faults:
                told = "; ".join(f"{limit}: {why}" for limit, why in ran.faults.items())
                what = "INVALID" if bad else "allowed"
                self._screen.print(f"{what}: {told} (load {os.getloadavg()[0]:.1f})", highlight=False, soft_wrap=True)
            if not bad:
                return ran
        self._invalid = True
        return ran
