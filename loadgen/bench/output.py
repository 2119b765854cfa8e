"""What `forebay bench` says. Standard output has the report and nothing else."""

import math
import sys
from collections.abc import Iterable, Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from loadgen.bench.basis import Plan
from loadgen.bench.find_rate import CLIENT_LIMIT, Found
from loadgen.bench.options import BenchOptions
from loadgen.bench.preflight import Ready
from loadgen.offer import described as offered
from loadgen.report.console import lines
from loadgen.report.document import Report
from loadgen.scenario import Scenario
from loadgen.schedule import Schedule
from loadgen.sim.search import CLOSE, CONFIRMED_BY

_PLAIN_WIDTH = 140  # without a terminal


def announced(plan: Plan, options: BenchOptions) -> str:
    """What is about to be sent."""
    scenario, known = plan.scenario, plan.facts
    if options.find_max_rate:
        return f"{scenario.name}: searching the highest rate, in runs of {options.probe_s:g} s and more"
    rate = len(known.due) / plan.total_s
    return (
        f"{scenario.name}, seed {plan.schedule.seed}: {len(known.due):,} requests in {plan.total_s:g} s "
        f"({rate:.1f}/s), {known.measured:,} of them measured; then up to {options.timeout_s:g} s for the last answers"
    )


def found(ready: Ready) -> str:
    """What preflight came to."""
    target = next(iter(ready.targets.values()))[0]
    context = f", context {ready.context_tokens:,}" if ready.context_tokens else ""
    sizes = ready.sizes
    words = f", {sizes.words:.3f} words a token" if sizes.words != 1 else ""
    return f"preflight: model {target.model}{context}; lengths of answers: {ready.control}{words}"


def reported(report: Report, notes: Iterable[str], options: BenchOptions) -> None:
    """The report: JSON, or tables."""
    if options.json:
        sys.stdout.buffer.write(report.to_json())
        sys.stdout.buffer.flush()
        return
    page = _page()
    for one in lines(report):
        page.print(one, highlight=False)
    for note in notes:
        page.print(note, highlight=False, markup=False, soft_wrap=True)


def searched(search: Found, notes: Sequence[str], options: BenchOptions) -> None:
    """The report of the highest rate, the probes, and the answer."""
    reported(search.report, (), options)
    if options.json:
        return
    page = _page()
    told(search, page)
    for note in notes:
        page.print(note, highlight=False, markup=False, soft_wrap=True)


def told(search: Found, page: Console) -> None:
    """The probes, and the answer."""
    page.print(_probes(search))
    page.print(answer(search), highlight=False, soft_wrap=True, style="bold")


def answer(search: Found) -> str:
    """In a sentence."""
    name = search.report.name
    if search.interrupted:
        passed = f"x {search.scale:.3g} has passed" if search.scale else "no rate has passed yet"
        return f"{name}: INTERRUPTED: {passed}"
    if search.limited:
        last = search.probes[-1]
        known = f"; x {search.scale:.3g} has passed" if search.scale else ""
        return f"{name}: INVALID: {CLIENT_LIMIT} at x {last.scale:.3g}, {last.why.removeprefix(f'{CLIENT_LIMIT}: ')}{known}"
    if not search.judged:
        few = "no group of requests is large enough to be judged"
        return f"{name}: INVALID: {few}; take longer --probe-seconds, or a higher --start"
    if not search.scale:
        return f"{name}: no rate is within the SLO, down to x {search.failed_scale:.3g}"
    if search.failed_scale == math.inf:
        return (
            f"{name}: {search.rate:.2f} requests/s (x {search.scale:.3g}) is within the SLO, and the most that is tried"
        )
    return (
        f"{name}: {search.rate:.2f} requests/s (x {search.scale:.3g}) is the highest rate within the SLO on each of "
        f"{CONFIRMED_BY} seeds; x {search.failed_scale:.3g} is not. Bisected to {(CLOSE - 1) * 100:.0f} %."
    )


def _probes(search: Found) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("probe", "x scenario", "requests/s", "seed", "within SLO"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("result", no_wrap=True)
    for number, one in enumerate(search.probes, start=1):
        share = "-" if one.attainment is None else f"{one.attainment * 100:.1f} %"
        cells = (f"{number}", f"{one.scale:.3f}", f"{one.rate:.2f}", f"{one.seed}", share, one.why or "passed")
        made.add_row(*cells)
    return made


def described(scenario: Scenario, schedule: Schedule, options: BenchOptions) -> None:
    """What would be offered."""
    salted = msgspec.structs.replace(scenario, salt=options.salt or scenario.salt)
    sys.stdout.write(offered(salted, schedule, json=options.json))


def _page() -> Console:
    page = Console()
    return page if page.is_terminal else Console(width=_PLAIN_WIDTH)
