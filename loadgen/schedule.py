"""From a scenario and a seed to the requests of a run, before anything is sent.

Everything random is decided here, so that two arms of a comparison get the same requests at the same times. Each
(seed, tenant, purpose) has a random stream of its own: a tenant more, or another length, changes no other draw.
A schedule holds recipes and numbers, no prompt text; text is made when a request is about to be sent.

It lies in memory (`build`), or in a file that is read while it is sent (`planned_in`, `saved`): requests are drawn, counted
and written one after the other, so a file may hold more of them than memory does. The file is gzipped JSON Lines, first
a head with version and totals, then the requests by time; the sha256 of the requests' lines identifies the workload.
"""

import gzip
import hashlib
import shutil
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, merge
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from loadgen.drafts import Thread, draft
from loadgen.report.record import Sample
from loadgen.scenario import Scenario, ScenarioError
from loadgen.workload.planned import Planned as Planned
from loadgen.workload.planned import Requests
from loadgen.workload.summary import Ideal, Summary, Totals

VERSION = 3
_LEVEL = 6  # of gzip: half the time of the highest, hardly larger


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a run, sorted by time; the measured window is [window_start_s, window_end_s).

    `scenario_digest` identifies the scenario it was drawn from, where it was.
    """

    name: str
    seed: int
    window_start_s: float
    window_end_s: float
    requests: Requests
    scenario_digest: str = ""

    @property
    def totals(self) -> Totals:
        """What it amounts to."""
        return self.requests.head.totals if isinstance(self.requests, Saved) else self.summary().totals()

    @property
    def measured(self) -> int:
        """How many requests count."""
        return self.totals.measured

    @property
    def last_s(self) -> float:
        """When the last request is due; 0 without any."""
        return self.totals.last_s

    def summary(self) -> Summary:
        """All that can be counted, by going through it."""
        summary = Summary()
        for planned in self.requests:
            summary.feed(planned)
        return summary

    def digest(self) -> str:
        """The sha256 that identifies this workload: of all requests, as lines of JSON."""
        if isinstance(self.requests, Saved):
            return self.requests.head.sha256
        digest = hashlib.sha256()
        for planned in self.requests:
            digest.update(_line(planned))
        return digest.hexdigest()

    def write(self, path: Path) -> None:
        """Write it to a file; equal schedules give equal files. OSError."""
        _write(self, path)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file. `sha256` is empty in a file made by hand: its requests are then not compared with it."""

    version: int
    scenario: str
    scenario_sha256: str = ""
    seed: int = 0
    window_s: tuple[float, float]
    sha256: str = ""
    totals: Totals = Totals()


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The requests in a file, read again each time."""

    path: Path
    head: Head

    def __iter__(self) -> Iterator[Planned]:
        """In order of time. ScenarioError if the file has changed into something else."""
        return (planned for _, planned in _rows(self.path))

    def __len__(self) -> int:
        """How many."""
        return self.head.totals.requests


def build(scenario: Scenario, seed: int) -> Schedule:
    """The schedule of `scenario` under `seed`; equal arguments give equal schedules, on every machine.

    ScenarioError if a trace is missing or cannot be read.
    """
    return _schedule(scenario, seed, tuple(drawn(scenario, seed)))


def planned_in(path: Path, scenario: Scenario, seed: int) -> Schedule:
    """The same, written to `path` and read from there whenever it is gone through. ScenarioError as `build`, OSError."""
    head = _write(_schedule(scenario, seed, _Drawn(scenario, seed)), path)
    return _schedule(scenario, seed, Saved(path=path, head=head))


def saved(path: Path) -> Schedule:
    """A schedule in a file, plain or gzipped. ScenarioError on what is not one, is out of order, or has been changed."""
    head = _head(path)
    digest, summary, before_s = hashlib.sha256(), Summary(), 0.0
    number = 0
    for number, (line, planned) in enumerate(_rows(path), 1):
        if planned.t < before_s:
            raise ScenarioError(f"{path}, line {number + 1}: request {planned.id} comes before the one above it")
        before_s = planned.t
        digest.update(line)
        summary.feed(planned)
    if head.sha256 not in ("", digest.hexdigest()):
        raise ScenarioError(
            f"{path}: its requests are not those that were written: their sha256 is {digest.hexdigest()}"
        )
    head = msgspec.structs.replace(head, sha256=digest.hexdigest(), totals=summary.totals())
    return Schedule(
        name=head.scenario,
        seed=head.seed,
        window_start_s=head.window_s[0],
        window_end_s=head.window_s[1],
        requests=Saved(path=path, head=head),
        scenario_digest=head.scenario_sha256,
    )


def drawn(scenario: Scenario, seed: int) -> Iterator[Planned]:
    """The requests, numbered in order of time; nothing is kept of what was handed out. ScenarioError as `build`."""

    def placed(place: int, threads: Iterator[Thread]) -> Iterator[tuple[float, str, int, Planned, Thread]]:
        return ((one.t, one.tenant, place, one, thread) for one, thread in _in_order(threads))

    tenants = (placed(place, draft(scenario, tenant, seed)) for place, tenant in enumerate(scenario.tenants))
    for number, (_, _, _, one, thread) in enumerate(merge(*tenants, key=lambda row: row[:3])):
        after = thread.last if thread.chained else None
        thread.last = number
        yield msgspec.structs.replace(one, id=number, after=after, think_s=0.0 if after is None else one.think_s)


def _in_order(threads: Iterator[Thread]) -> Iterator[tuple[Planned, Thread]]:
    """The requests of threads that come in order of their start; no thread is begun before it is due."""
    due: list[tuple[float, int, Planned, Thread]] = []
    for number, thread in enumerate(chain(threads, (None,))):
        while due and (thread is None or due[0][0] <= thread.start_s):
            _, place, planned, of = heappop(due)
            yield planned, of
            _push(due, place, of)
        if thread is not None:
            _push(due, number, thread)


def _push(due: list[tuple[float, int, Planned, Thread]], place: int, thread: Thread) -> None:
    following = next(thread.requests, None)
    if following is not None:
        heappush(due, (following.t, place, following, thread))


class _Drawn(msgspec.Struct, frozen=True):
    """The requests of a scenario, drawn again each time."""

    scenario: Scenario
    seed: int

    def __iter__(self) -> Iterator[Planned]:
        return drawn(self.scenario, self.seed)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def ideal_tokens(requests: Iterable[Planned]) -> list[int]:
    """Of each prompt, what a cache without a limit would know if requests were taken in this order."""
    ideal = Ideal()
    return [ideal.known(planned) for planned in requests]


def _schedule(scenario: Scenario, seed: int, requests: Requests) -> Schedule:
    return Schedule(
        name=scenario.name,
        seed=seed,
        window_start_s=scenario.warmup_s,
        window_end_s=scenario.warmup_s + scenario.duration_s,
        requests=requests,
        scenario_digest=scenario.digest(),
    )


# ---- files


def _line(row: object) -> bytes:
    return msgspec.json.encode(row) + b"\n"


def _write(schedule: Schedule, path: Path) -> Head:
    """The head knows what comes behind it, so the requests are written first, beside it."""
    digest, summary = hashlib.sha256(), Summary()
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file, _packed(file) as rows:
            for planned in schedule.requests:
                line = _line(planned)
                digest.update(line)
                summary.feed(planned)
                rows.write(line)
        head = Head(
            version=VERSION,
            scenario=schedule.name,
            scenario_sha256=schedule.scenario_digest,
            seed=schedule.seed,
            window_s=(schedule.window_start_s, schedule.window_end_s),
            sha256=digest.hexdigest(),
            totals=summary.totals(),
        )
        with path.open("wb") as file:
            with _packed(file) as first:
                first.write(_line(head))
            with beside.open("rb") as rest:
                shutil.copyfileobj(rest, file)  # gzip members one behind the other are one file
    finally:
        beside.unlink(missing_ok=True)
    return head


def _packed(file: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield from cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise ScenarioError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _head(path: Path) -> Head:
    try:
        told: Any = msgspec.json.decode(next(_lines(path), b""))
        version = told.get("version")
        if version != VERSION:
            raise ScenarioError(f"{path}: schedule version {version}, expected {VERSION}")
        return msgspec.convert(told, Head)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise ScenarioError(f"{path}, line 1: not a schedule: {error}") from error


def _rows(path: Path) -> Iterator[tuple[bytes, Planned]]:
    decode = msgspec.json.Decoder(Planned).decode
    for number, line in enumerate(_lines(path), 1):
        if number > 1:
            try:
                planned = decode(line)
            except msgspec.MsgspecError as error:
                raise ScenarioError(f"{path}, line {number}: {error}") from error
            yield line, planned


def sample_of(planned: Planned, sched_s: float, measured: bool) -> Sample:
    """The record of a request that is due at `sched_s`, before anything has come of it."""
    return Sample(
        id=planned.id,
        tenant=planned.tenant,
        priority=planned.priority,
        measured=measured,
        input_tokens=planned.input_tokens,
        planned_output=planned.answer_tokens,
        leaves=planned.cancel_after_s is not None,
        sched_s=sched_s,
        cls=planned.cls,
        session=planned.session,
        turn=planned.turn,
        streamed=planned.stream,
    )
