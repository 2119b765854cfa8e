"""`forebay bench SCENARIO`: from options to an exit code."""

import asyncio
import os
import sys
import time
import traceback
from pathlib import Path

import aiohttp
import uvloop
from rich.console import Console

from loadgen.bench import output
from loadgen.bench.basis import Plan
from loadgen.bench.exits import BenchError, Exit
from loadgen.bench.find_rate import find_max_rate
from loadgen.bench.options import BenchOptions, check
from loadgen.bench.preflight import preflight
from loadgen.bench.prepare import asked, keys_of, planned, scenario_of, schedule_of, seed_of, senders
from loadgen.bench.run import Course, measured
from loadgen.bench.stop import Stop
from loadgen.client import ClientError
from loadgen.report.document import ReportError
from loadgen.report.folder import SCHEDULE
from loadgen.report.place import PlaceError, folder
from loadgen.scenario import Scenario, ScenarioError


def bench_command(options: BenchOptions) -> int:
    """Run it; the exit code. Whatever the error, it says what and where, and shows no key."""
    try:
        check(options)
        scenario = scenario_of(options)
        if options.dry_run:
            return _described(options, scenario)
        with folder(options.out, scenario.name, time.time()) as path:
            command = _Command(options, planned(options, scenario, path / SCHEDULE), path)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(command.run())
    except BenchError as error:
        return _failed(error, error.code)
    except (ScenarioError, ClientError, PlaceError) as error:
        return _failed(error, Exit.WRONG)
    except (asyncio.CancelledError, KeyboardInterrupt):
        return _failed("interrupted before anything was measured", Exit.INTERRUPTED)
    except ReportError as error:
        return _failed(error, Exit.INTERNAL)
    except Exception:
        traceback.print_exc()
        return Exit.INTERNAL


def _described(options: BenchOptions, scenario: Scenario) -> int:
    """Say what would be offered; keys are read as for a run, and refused as there."""
    schedule = schedule_of(options, scenario)
    tenants = tuple(schedule.totals.tenants)
    told = keys_of(options, scenario, tenants, os.environ).warning(senders(options, tenants))
    output.described(scenario, schedule, options)
    if told and not options.quiet:
        sys.stderr.write(told + "\n")
    return Exit.MET


def _failed(why: object, code: Exit) -> int:
    sys.stderr.write(f"forebay bench: {why}\n")
    return code


class _Command:
    def __init__(self, options: BenchOptions, plan: Plan, folder: Path) -> None:
        self._options = options
        self._plan = plan
        self._keys = keys_of(options, plan.scenario, tuple(plan.facts.tenants), os.environ)
        self._screen = Console(stderr=True)
        self._folder = folder

    async def run(self) -> int:
        options, plan = self._options, self._plan
        stop = Stop(self._say)
        stop.install()
        self._say(output.announced(plan, options))
        self._say(self._keys.warning(senders(options, plan.facts.tenants)))
        async with aiohttp.ClientSession() as session:
            ready = await preflight(plan.facts, asked(options, plan), self._keys)
            self._say(output.found(ready))
            course = Course(
                options=options, keys=self._keys, ready=ready, screen=self._screen, stop=stop, session=session
            )
            if options.find_max_rate:
                return await self._search(course)
            report, notes = await measured(course, plan, self._folder, plan.scenario.name)
        output.reported(report, (*notes, f"Files: {self._folder}"), options)
        return report.exit_code

    async def _search(self, course: Course) -> int:
        scenario = self._plan.scenario
        found = await find_max_rate(course, scenario, seed_of(self._options, scenario), self._folder)
        output.searched(found, (f"Files: {self._folder}",), self._options)
        if found.interrupted:
            return Exit.INTERRUPTED
        if found.limited or not found.judged:
            return Exit.INVALID
        return Exit.MET if found.scale else Exit.MISSED

    def _say(self, text: str) -> None:
        if not self._options.quiet and text:
            self._screen.print(text, highlight=False, markup=False, soft_wrap=True)
