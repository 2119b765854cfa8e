"""`--find-max-rate`: the search of `loadgen.sim.search`, with live probes (loadgen.md 1.7).

Every probe is a run of its own with its own folder. One that can no longer pass is cut; one that breaks a validity rule
ends the search, because beyond it the client is measured. Between probes the server may empty its queues.
"""

from dataclasses import replace
from pathlib import Path

import msgspec

from loadgen.bench import scrape
from loadgen.bench.basis import plan
from loadgen.bench.rules import rules
from loadgen.bench.run import Course, measured
from loadgen.bench.searching import INTERRUPTED, KILLED, Tried, keep, known, note
from loadgen.report.document import Report
from loadgen.report.outputs import rebuild
from loadgen.report.parts import RateProbe, State
from loadgen.scenario import Scenario
from loadgen.schedule import build
from loadgen.sim.search import TOO_FEW, Misses, shortened, steps

IDLE_S = 60.0
CLIENT_LIMIT = "client limit reached"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the highest scale and rate that pass on all seeds (0: none does), the lowest scale that failed
    (infinity: none).

    `report` is of the highest that passed, or of the last probe. `limited`: the client could not do more;
    `interrupted`: the user did not want more.
    """

    scale: float
    rate: float
    failed_scale: float
    probes: tuple[RateProbe, ...]
    report: Report
    limited: bool
    interrupted: bool = False

    @property
    def judged(self) -> bool:
        """Some probe was long enough to say something."""
        return any(one.passed or one.why != TOO_FEW for one in self.probes)


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    probe: RateProbe
    report: Report
    folder: Path
    trusted: bool


def told_by(report: Report) -> Found:
    """What the probes in a report come to."""
    low, high = known(report.search)
    rates = [one.rate for one in report.search if one.passed and one.scale == low]
    return Found(
        scale=low,
        rate=rates[0] if rates else 0.0,
        failed_scale=high,
        probes=report.search,
        report=report,
        limited=any(one.why.startswith(CLIENT_LIMIT) for one in report.search),
        interrupted=report.run.interrupted,
    )


async def find_max_rate(course: Course, scenario: Scenario, seed: int, folder: Path) -> Found:
    """Search. Each probe has a folder in `folder`, which gets the report at the end."""
    return await _Search(course, scenario, folder).run(seed)


class _Search:
    def __init__(self, course: Course, scenario: Scenario, folder: Path) -> None:
        self._course = course
        self._probing = replace(course, options=msgspec.structs.replace(course.options, html=False))
        self._scenario = scenario
        self._folder = folder
        self._made: list[_Made] = []

    async def run(self, seed: int) -> Found:
        search = steps(seed, self._course.options.start)
        wanted = next(search)
        while True:
            made = await self._probe(*wanted)
            self._made.append(made)
            if self._course.stop.asked:
                return msgspec.structs.replace(
                    self._found(known(one.probe for one in self._made), limited=False), interrupted=True
                )
            if not made.trusted:
                return self._found(known(one.probe for one in self._made), limited=True)
            if all(one.probe.why == TOO_FEW for one in self._made):  # at a lower rate there would be no more of them
                return self._found(known(one.probe for one in self._made), limited=False)
            try:
                wanted = search.send(made.probe.passed)
            except StopIteration as over:
                return self._found(over.value, limited=False)

    async def _probe(self, scale: float, seed: int) -> _Made:
        options = self._course.options
        only = options.searched[0] if options.searched else None
        scenario = shortened(self._scenario, scale, options.probe_s, only, options.probe_requests)
        offered = plan(scenario, build(scenario, seed))
        misses = Misses(scenario, offered.schedule)
        folder = self._folder / f"probe-{len(self._made) + 1:02}"
        folder.mkdir()
        rate = len(offered.facts.due) / offered.total_s
        begun = RateProbe(scale=scale, rate=rate, seed=seed, passed=False, attainment=None, why=KILLED)
        note(self._folder, Tried(folder.name, begun))
        await self._idle()
        title = f"{scenario.name} x {scale:.3g}, {rate:.1f}/s, seed {seed}"
        report, _ = await measured(self._probing, offered, folder, title, misses.too_many)
        stopped = bool(self._course.stop.asked)
        breaches = _client_breaches(report)
        limit = f"{CLIENT_LIMIT}: {', '.join(breaches)}" if breaches else ""
        why = INTERRUPTED if stopped else limit or ("attainment" if misses.cut else _why(report))
        share = None if stopped or misses.cut else report.totals.attainment  # what was open then is no miss
        probe = msgspec.structs.replace(begun, passed=not why, attainment=share, why=why)
        note(self._folder, Tried(folder.name, probe))
        made = _Made(probe=probe, report=report, folder=folder, trusted=not breaches)
        self._say(f"{title}: {_words(made, misses.cut and not stopped)}")
        return made

    async def _idle(self) -> None:
        """Wait until engines and gateway are; a server that is not says so in the next probe's warnings."""
        pages = [scrape.Page(self._course.session, url) for url in self._course.options.scrape]
        if pages and not await scrape.until_idle(pages, IDLE_S):
            self._say(f"the server is not idle {IDLE_S:g} s after the probe before: the next one begins all the same")

    def _found(self, bracket: tuple[float, float], *, limited: bool) -> Found:
        low, high = bracket
        best = next((one for one in self._made if one.probe.passed and one.probe.scale == low), self._made[-1])
        report = self._kept(best)
        return Found(
            scale=low,
            rate=best.probe.rate if low else 0.0,
            failed_scale=high,
            probes=tuple(one.probe for one in self._made),
            report=report,
            limited=limited,
        )

    def _kept(self, best: _Made) -> Report:
        """The files of that probe, in the folder of the search, and its report with all probes in it."""
        probes = [one.probe for one in self._made]
        keep(best.folder, self._folder, probes, interrupted=bool(self._course.stop.asked))
        return rebuild(self._folder, rules, html=self._course.options.html)[0]

    def _say(self, text: str) -> None:
        if not self._course.options.quiet:
            self._course.screen.print(text, highlight=False, soft_wrap=True, markup=False)


def _why(report: Report) -> str:
    """What a probe that can be trusted failed on; "" for nothing."""
    if not report.validity.valid:
        return TOO_FEW
    missed = [cell.name for cell in report.cells if cell.judged and (cell.figures.attainment or 0.0) < cell.target]
    if missed:
        return f"attainment of {missed[0]}"
    if not report.slo_met:
        return "attainment"
    return "" if report.in_flight.stationary else "not stationary"


def _client_breaches(report: Report) -> list[str]:
    return [rule.id for rule in report.validity.rules if rule.state is State.BREACH and rule.id != "V8"]


def _words(made: _Made, cut: bool) -> str:
    if cut:
        return f"{made.probe.why}: cut off when it could not pass any more"
    share = "" if made.probe.attainment is None else f", {made.probe.attainment * 100:.1f} % within the SLO"
    return f"{made.probe.why or 'passed'}{share}"
