"""`forebay bench list` and `forebay bench schema`."""

import sys

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from loadgen import scenario as scenarios
from loadgen.scenario import Scenario, ScenarioError

_PLAIN_WIDTH = 160  # without a terminal
MOST_TENANTS = 4  # that are named


def listed() -> None:
    """The standard scenarios and what they say of themselves."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("scenario", "requests/s", "seconds", "tenants", "what it is"):
        made.add_column(heading, no_wrap=heading != "what it is")
    for name in scenarios.names():
        made.add_row(*_row(name))
    page = Console()
    (page if page.is_terminal else Console(width=_PLAIN_WIDTH)).print(made)


def print_schema() -> None:
    """The schema."""
    text = msgspec.json.format(msgspec.json.encode(scenarios.schema()), indent=2)
    sys.stdout.buffer.write(text + b"\n")


def _row(name: str) -> tuple[str, ...]:
    scenario = scenarios.standard(name)
    names = [one.name for one in scenario.tenants]
    tenants = ", ".join(names) if len(names) <= MOST_TENANTS else f"{len(names)}"
    return name, _rate(scenario), f"{scenario.duration_s:g}", tenants, scenarios.about(name)


def _rate(scenario: Scenario) -> str:
    """As it says itself; a trace that is not there has none."""
    try:
        return ("" if not scenario.closed else "users, ") + f"{scenario.rate:.1f}"
    except ScenarioError:
        return "of a trace"
