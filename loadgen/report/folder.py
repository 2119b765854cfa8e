"""The folder of a run: what is written as it goes, what is made of that in the end, and made again after kill -9.

    run.json            what was known before the first request, and how the run ended    `begin`, `end`
    schedule.jsonl.gz   what was planned                                                  `Schedule.write`
    requests.jsonl      a line for each request as it ends                                `lines.line`
    probes.jsonl        the same of the isolation probe, where there is one
    health.jsonl        a `Health` for each second of each worker
    scrapes.jsonl       a `Scrape` for each look at a server
    report.json, report.html, requests.csv, timeline.csv                                  `write_all`

A search of the highest rate has search.jsonl and a folder for each probe, and in the end the files of the best one. A report is always made of what lies in the folder, so the one at the end of a run and the one made again are equal.
"""

import gzip
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from loadgen.report.document import ReportError
from loadgen.report.lines import NAME as REQUESTS
from loadgen.report.lines import samples
from loadgen.report.parts import RateProbe, Validity
from loadgen.report.record import Outcome, Sample, Slo, TokenCost
from loadgen.report.run import RunReport

RUN, SCHEDULE, PROBES, HEALTH, SCRAPES = (
    "run.json",
    "schedule.jsonl.gz",
    "probes.jsonl",
    "health.jsonl",
    "scrapes.jsonl",
)


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of a tenant in a class must meet. `expect_rejects`: missed without failing the run."""

    tenant: str
    cls: str = msgspec.field(name="class")
    slo: Slo
    expect_rejects: bool = False


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: UTC time, seconds it took in all, when the last request was sent (seconds of the run)."""

    finished: str
    took_s: float
    stopped_s: float
    interrupted: bool = False
    search: tuple[RateProbe, ...] = ()
    warnings: tuple[str, ...] = ()


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: what a report stands on besides samples. No key, no userinfo of a URL.

    `started` is UTC ISO 8601; `schedule` the sha256; `scenario` the resolved scenario as plain values; `slo` its own
    goal, `goals` those of every tenant and class of the schedule; `weights` by tenant (missing: 1); `cost` of tokens; `allowed` the rules
    let pass by name; `target` url, api, model and the like; `environment` versions, CPU, limits; `template_tokens` of
    each prompt a server may know before the run.
    """

    started: str
    seed: int
    schedule: str
    window_start_s: float
    window_end_s: float
    closed: bool
    slo: Slo
    goals: tuple[Goal, ...]
    weights: dict[str, float]
    cost: TokenCost = TokenCost()
    scenario: dict[str, object]
    target: dict[str, object]
    environment: dict[str, object]
    salt: str = ""
    length_control: str = ""
    template_tokens: int = 0
    allowed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    ending: Ending | None = None

    def slo_of(self) -> Callable[[Sample], Slo]:
        """The goal of each request."""
        goals = {(one.tenant, one.cls): one.slo for one in self.goals}
        return lambda sample: goals.get((sample.tenant, sample.cls), self.slo)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One second of one worker: lags of its event loop (ms; all, or the worst), CPU as a share of one core, open requests.

    `loop_lag_p99_ms` and `local_failures` (what the machine refused, by name of the error) are of all workers so far.
    """

    t_s: float
    worker: int
    loop_lag_ms: tuple[float, ...]
    cpu: float
    open: int = 0
    loop_lag_p99_ms: float | None = None
    local_failures: dict[str, int] = {}


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the metrics of one server, whatever its dialect. Counters are since the start of the server; None:
    it does not say. `emit_lag_p99_ms` is what simulated engines say of themselves.
    """

    t_s: float
    name: str
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    requests: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    cached_tokens: float | None = None
    queried_tokens: float | None = None  # prompt tokens that were looked for in the cache
    preemptions: float | None = None
    emit_lag_p99_ms: float | None = None
    gateway: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that a folder holds of a run. `end_s`: of what was measured, earlier than planned where it was cut short.

    `lost`: requests that were due and left no line; they are among the samples, unfinished. `after`: what a request of a
    closed loop waited for, by id.
    """

    folder: Path
    basis: Basis
    samples: Sequence[Sample]
    probes: Sequence[Sample] = ()
    health: Sequence[Health] = ()
    scrapes: Sequence[Scrape] = ()
    end_s: float = 0.0
    lost: int = 0
    after: Mapping[int, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=())

    @property
    def window_s(self) -> tuple[float, float]:
        """Start and end of what was measured."""
        return self.basis.window_start_s, self.end_s


Rules = Callable[[Run, RunReport], Validity]
"""What judges whether a run can be trusted: from all that is known of it, and its figures."""


def begin(folder: Path, basis: Basis) -> None:
    """Write run.json, before the first request. Raises OSError."""
    whole = folder / f"{RUN}.new"
    whole.write_bytes(msgspec.json.format(msgspec.json.encode(basis), indent=1) + b"\n")
    os.replace(whole, folder / RUN)


def end(folder: Path, ending: Ending) -> None:
    """Add to run.json how it ended; before `rebuild`. Raises OSError, ReportError."""
    begin(folder, msgspec.structs.replace(read_basis(folder), ending=ending))


def read_basis(folder: Path) -> Basis:
    """run.json; ReportError if it cannot be read."""
    try:
        return msgspec.json.decode((folder / RUN).read_bytes(), type=Basis)
    except FileNotFoundError as error:
        what = f"has no {RUN}: it is no folder of a run" if folder.is_dir() else "there is no such folder"
        raise ReportError(f"{folder}: {what}") from error
    except NotADirectoryError as error:
        raise ReportError(f"{folder} is a file: name the folder of the run, {folder.parent}") from error
    except OSError as error:
        raise ReportError(f"{folder / RUN}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ReportError(f"{folder / RUN}: {error}") from error


def read_run(folder: Path) -> Run:
    """All that is known of the run in that folder; ReportError where something of it cannot be read."""
    basis = read_basis(folder)
    try:
        known = samples(folder / REQUESTS)
        probes = samples(folder / PROBES) if (folder / PROBES).exists() else []
        health, scrapes = _rows(folder / HEALTH, Health), _rows(folder / SCRAPES, Scrape)
        stopped_s = basis.ending.stopped_s if basis.ending else _last_s(known, health)
        due, after = _due(folder / SCHEDULE, {one.id for one in known}, stopped_s)
    except (OSError, EOFError, zlib.error, ValueError, msgspec.DecodeError) as error:
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
        raise ReportError(f"{folder}: {told}") from error
    return Run(
        folder=folder,
        basis=basis,
        samples=sorted([*known, *due], key=lambda one: one.id),
        probes=probes,
        health=health,
        scrapes=scrapes,
        end_s=max(basis.window_start_s, min(basis.window_end_s, stopped_s)),
        lost=len(due),
        after=after,
    )


class _Due(msgspec.Struct):
    """What of a planned request is needed to count one that left no line."""

    id: int
    t: float
    tenant: str
    priority: str
    cls: str
    measured: bool
    input_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    cancel_after_s: float | None = None
    after: int | None = None
    session: str = ""
    turn: int = 0
    stream: bool = True


def _due(path: Path, known: set[int], until_s: float) -> tuple[list[Sample], dict[int, int]]:
    """Requests that were to be sent by then and left no line; turns after another are due when that has ended. And what
    each request of no conversation came after, if it did.
    """
    due: list[Sample] = []
    after: dict[int, int] = {}
    with gzip.open(path) as file:
        next(file)
        for line in file:
            one = msgspec.json.decode(line, type=_Due)
            if one.after is not None and not one.session:
                after[one.id] = one.after
            elif one.id not in known and one.after is None and one.t < until_s:
                due.append(_unfinished(one))
    return due, after


def _unfinished(planned: _Due) -> Sample:
    return Sample(
        id=planned.id,
        tenant=planned.tenant,
        priority=planned.priority,
        measured=planned.measured,
        input_tokens=planned.input_tokens,
        planned_output=min(planned.output_tokens, planned.max_tokens or planned.output_tokens),
        leaves=planned.cancel_after_s is not None,
        sched_s=planned.t,
        cls=planned.cls,
        session=planned.session,
        turn=planned.turn,
        streamed=planned.stream,
        outcome=Outcome.UNFINISHED,
    )


def _last_s(known: Sequence[Sample], health: Sequence[Health]) -> float:
    """The last moment of which anything is known."""
    return max((*(max(one.end_s, one.sent_s) for one in known), *(one.t_s for one in health)), default=0.0)


T = TypeVar("T")


def _rows(path: Path, kind: type[T]) -> list[T]:
    """The lines of a file that need not exist; a torn last one is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [msgspec.json.decode(line, type=kind) for line in lines[:-1]]
