"""What an experiment is: loads, arms, and claims that the runs decide. Plain values; nothing here runs anything.

A claim compares a figure of one arm with the same figure of another, seed by seed: both had the same requests at the
same times. Figures are `rate` (the highest at which the load's goals are met, requests/s), `moves_per_min` (of lanes),
`imbalance`, `coverage` and `refusals_cv` of a run, or `group.name`: a figure of all requests (`all`), of a class, a
tenant or a priority.
"""

import math

import msgspec

from loadgen.sim.arm import CORE, LEARNED

BEST = "best"
"""The arm of the field with the highest rate, on the same seeds."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """One arm. `changes` are `--set`'s, of `config.` and `fleet.`; `poll_s` 0: engines are never looked at."""

    label: str
    router: str = CORE
    changes: tuple[str, ...] = ()
    lengths: str = LEARNED
    poll_s: float = 1.0  # scheduling.md 13: metrics 1 s old
    frozen_s: float = math.inf


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered to which engines. `scenario` is a standard one or a file of this package.

    Windows are `seconds` long, those of a search `search_s`, unless the load changes over time; a trace has no more than was
    recorded. `start`: where a search begins, as a factor on the scenario's rate. `seeds` of a load in which chance has no part: 1.
    """

    scenario: str
    label: str = ""
    changes: tuple[str, ...] = ()
    fleet: str | None = None
    seconds: float = 180.0
    search_s: float = 120.0
    start: float = 1.0
    patience_s: float = 120.0
    seeds: int | None = None

    @property
    def name(self) -> str:
        """In tables."""
        return self.label or self.scenario


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """How much load: `times` the highest rate of the arm `of` (`best`: of the field's best), or the scenario's own."""

    times: float = 1.0
    of: str = ""

    @property
    def name(self) -> str:
        """In tables."""
        if not self.of:
            return "the scenario's rate" if self.times == 1 else f"{self.times:g} x the scenario's rate"
        whose = "the best baseline" if self.of == BEST else self.of
        return f"{self.times:g} x the highest rate of {whose}"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """`figure` of `ours`, alone or beside that of `against` (the best of them), is at least or at most so much.

    `how`: `value`, `ratio` (ours / theirs) or `difference`. `must_not`: a price that may not be paid. `loads` and
    `points` by their place in the experiment; None: everywhere.
    """

    says: str
    figure: str
    ours: str
    against: tuple[str, ...] = ()
    how: str = "value"
    at_least: float | None = None
    at_most: float | None = None
    must_not: bool = False
    loads: tuple[int, ...] | None = None
    points: tuple[int, ...] | None = None


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One row of scheduling.md 13. Of the arms of `field` only the best one is run at every point.

    `notes` say where it differs from that row. `curve`: also show the share within the SLO with other limits.
    """

    id: str
    title: str
    claim: str
    loads: tuple[Load, ...]
    arms: tuple[Setup, ...]
    claims: tuple[Claim, ...]
    field: tuple[Setup, ...] = ()
    points: tuple[Point, ...] = (Point(),)
    notes: tuple[str, ...] = ()
    curve: bool = False
