"""What `forebay sim` prints: tables for people, JSON for programs. Standard output carries nothing else."""

import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from loadgen.report import arms as side_by_side
from loadgen.report.run import RunReport
from loadgen.scenario import Scenario
from loadgen.sim.arm import Ran
from loadgen.sim.search import CLOSE, CONFIRMED_BY, Found

SCHEMA = "forebay.arms/1"  # several arms side by side; `--out` leaves the report of each run
LEAST_WIDTH = 120  # of the tables; a narrower terminal wraps
_PLAIN_WIDTH = 140  # without a terminal

Reports = Mapping[str, Sequence[RunReport]]
Plain = Mapping[str, object]


def say(text: str) -> None:
    """To people, beside the report."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def tables(scenario: Scenario, reports: Reports) -> None:
    """One row for each arm: all requests, each cell, the engines."""
    page = _page()
    runs = next(iter(reports.values()))
    seeds = f"seed {runs[0].seed}" if len(runs) == 1 else f"{len(runs)} seeds from {runs[0].seed}"
    offered = sum(run.totals.offered / run.window_s for run in runs) / len(runs)
    loop = "closed loop, " if scenario.closed else ""
    page.print(f"{scenario.name}: {offered:.2f} requests/s for {runs[0].window_s:g} s, {loop}{seeds}", highlight=False)
    page.print(side_by_side.table(reports))
    page.print(side_by_side.engines(reports))
    page.print()
    for note in side_by_side.footnotes(scenario.slo, reports):
        page.print(note, highlight=False)


def found_table(scenario: Scenario, found: Sequence[Found]) -> None:
    """One row for each arm: how much load it carries."""
    page = _page()
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column(f"{scenario.name}: highest rate within the SLO", no_wrap=True)
    for heading in ("requests/s", "x scenario", "fails at x", "attainment", "tokens/s", "probes", "limited by"):
        made.add_column(heading, justify="right", no_wrap=True)
    for one in found:
        last = [probe for probe in one.probes if probe.scale == one.scale and probe.passed]
        why = next((probe.why for probe in reversed(one.probes) if not probe.passed), "")
        made.add_row(
            f"  {one.router}",
            f"{one.rate:.2f}",
            f"{one.scale:.3f}",
            "-" if one.failed_scale == math.inf else f"{one.failed_scale:.3f}",
            f"{min((probe.attainment or 0.0 for probe in last), default=0.0) * 100:.1f} %",
            f"{min((probe.tokens_per_s for probe in last), default=0.0):,.0f}",
            f"{len(one.probes)}",
            why,
        )
    page.print(made)
    page.print(
        f"Bisected to {(CLOSE - 1) * 100:.0f} %; the rate passes under each of {CONFIRMED_BY} seeds. Attainment and "
        "tokens are those of the least of them. Simulated engines.",
        highlight=False,
    )


def json(run: Plain, target: Plain, scenario: Scenario, arms: Plain) -> None:
    """The report document; only `run` differs between equal runs."""
    document = {
        "schema": SCHEMA,
        "run": run,
        "target": {"driver": "sim", **target},
        "scenario": msgspec.to_builtins(scenario),
        "arms": arms,
    }
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def run_block(began_s: float, ran: Sequence[Ran]) -> dict[str, object]:
    """What differs from run to run: when, where, how fast."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began_s)),
        "took_s": round(time.time() - began_s, 3),
        "python": platform.python_version(),
        "each": [{"took_s": round(one.took_s, 3), "events": one.events, "requests": one.requests} for one in ran],
    }


def _page() -> Console:
    page = Console()
    width = max(page.width, LEAST_WIDTH) if page.is_terminal else _PLAIN_WIDTH
    return Console(width=width)
