"""`forebay replay`: feed a recorded journal to a fresh core and compare its decisions one by one.

Equal decisions show that the core is deterministic and that this program decides as the recorded one did. After the
first difference later events may no longer belong to what this core has decided, so look at the first one first.
Under another configuration it is the only one: what was recorded after it belongs to the recorded placement.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from policies import journal
from policies.core import Core, InvariantError
from policies.events import SettingsChanged
from policies.journal import JournalError, Plain
from policies.types import Settings

EQUAL, DIFFERENT, UNUSABLE = 0, 1, 3  # exit codes (loadgen.md 1.1)


class UnusableJournal(Exception):
    """Line `number` (from 1; 0: the file itself) cannot be replayed."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}" if number else why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How far to go (`until`: a sequence number) and what to show. `settings` stand in for those recorded; then the first
    difference is the last."""

    until: int | None = None
    context: int = 5
    stats: bool = False
    max_diffs: int = 10
    settings: Settings | None = None


ALL = Asked()


@dataclass(slots=True, kw_only=True)
class Line:
    """One handled event as recorded: where it stands, what it was, what was decided."""

    number: int
    seq: int
    t: float
    raw: dict[str, Plain]

    @property
    def decisions(self) -> Plain:
        return self.raw["decisions"]


@dataclass(slots=True, kw_only=True)
class Difference:
    """An event on which this core decided otherwise; `before` are the events that led to it."""

    line: Line
    decided: list[Plain]
    before: list[Line]


@dataclass(slots=True, kw_only=True)
class Replay:
    """What came out. `took_s` is spent in the core alone."""

    events: int = 0
    took_s: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    cut: bool = False  # the last line was not written to its end

    @property
    def exit_code(self) -> int:
        return DIFFERENT if self.differences else EQUAL


def replay_command(journal: Path, asked: Asked) -> int:
    """Replay `journal` and print what came out. Returns the exit code."""
    result = Replay()
    try:
        replay(journal, result, asked)
    except UnusableJournal as error:
        _say(f"{journal}: unusable: {error}")
        if result.events:
            _say(f"{result.events} events before that: {_verdict(result)}")
        return UNUSABLE
    for difference in result.differences:
        _show(difference)
    _say(f"{journal}: {result.events} events, {_verdict(result)}")
    if result.differences and asked.settings is not None:
        _say(
            "what follows belongs to the recorded placement; `forebay sim --from-journal` has figures for another configuration"
        )
    if result.cut:
        _say("the last line was cut off in writing and is left out")
    if asked.stats:
        _show_stats(result)
    return result.exit_code


def replay(path: Path, result: Replay, asked: Asked = ALL) -> None:
    """Fill in `result`. Stops after so many differences. Raises UnusableJournal."""
    core = Core()
    most = max(1, asked.max_diffs) if asked.settings is None else 1
    before: deque[Line] = deque(maxlen=max(0, asked.context))
    for line in _lines(path, result):
        if asked.until is not None and line.seq > asked.until:
            return
        decided = _handle(core, line, result, asked.settings)
        if decided != line.decisions:
            result.differences.append(Difference(line=line, decided=decided, before=list(before)))
            if len(result.differences) >= most:
                return
        before.append(line)


def _handle(core: Core, line: Line, result: Replay, given: Settings | None) -> list[Plain]:
    try:
        event = journal.decode_event(line.raw)
        if not result.events and not isinstance(event, SettingsChanged):
            raise JournalError("the first event is not SettingsChanged")
        if given is not None and isinstance(event, SettingsChanged):
            event = SettingsChanged(settings=_as_it_ran(given, event.settings))
        began_s = time.perf_counter()
        decisions = core.handle(event, line.t)
        result.took_s += time.perf_counter() - began_s
    except (JournalError, InvariantError) as error:
        raise UnusableJournal(line.number, str(error)) from None
    result.events += 1
    decided: list[Plain] = []
    for decision in decisions:
        result.kinds[type(decision).__name__] += 1
        decided.append(journal.encode_decision(decision))
    return decided


def _as_it_ran(given: Settings, recorded: Settings) -> Settings:
    """`given`, with what a running process adds to its configuration: its seed, whether it drains, how many it is one of."""
    fleet = given.fleet
    if fleet is not None and recorded.fleet is not None:
        fleet = replace(fleet, replicas=max(fleet.replicas, recorded.fleet.replicas))
    return replace(given, seed=recorded.seed, admitting=recorded.admitting, queueing=recorded.queueing, fleet=fleet)


def _lines(path: Path, result: Replay) -> Iterator[Line]:
    """The events of the file, in order and without a hole."""
    seq = -1
    for number, raw in _objects(path, result):
        if seq < 0:
            _check_header(number, raw)
            seq = 0
            continue
        if "dropped" in raw:
            raise UnusableJournal(number, f"{raw['dropped']} events are missing from here on (dropped in recording)")
        line = _line(number, raw)
        if line.seq != seq:
            raise UnusableJournal(number, f"it is event {line.seq}, expected {seq}")
        seq += 1
        yield line
    if seq < 0:
        raise UnusableJournal(0, "the file is empty")


def _objects(path: Path, result: Replay) -> Iterator[tuple[int, dict[str, Plain]]]:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    try:
        for number, text in _lines_of(path, result):
            yield number, decode(text)  # type: ignore[misc]
    except OSError as error:
        raise UnusableJournal(0, error.strerror or str(error)) from None
    except msgspec.MsgspecError as error:
        raise UnusableJournal(number, f"not a JSON object: {error}") from None


def _lines_of(path: Path, result: Replay) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n") and number > 1:
                result.cut = True
                return
            yield number, text


def _check_header(number: int, raw: dict[str, Plain]) -> None:
    try:
        journal.check_header(raw)
    except JournalError as error:
        raise UnusableJournal(number, str(error)) from None


def _line(number: int, raw: dict[str, Plain]) -> Line:
    seq, t = raw.get("seq"), raw.get("t")
    if type(seq) is not int or type(t) not in (int, float) or not isinstance(raw.get("decisions"), list):
        raise UnusableJournal(number, "seq, t or decisions is missing or of the wrong type")
    return Line(number=number, seq=seq, t=t, raw=raw)  # type: ignore[arg-type]


def _verdict(result: Replay) -> str:
    if not result.differences:
        return "all decisions equal"
    count = len(result.differences)
    return f"{count} event{'s' if count > 1 else ''} decided differently, the first is seq {result.differences[0].line.seq}"


def _show(difference: Difference) -> None:
    line = difference.line
    _say(f"seq {line.seq} (line {line.number}) decided differently")
    for earlier in difference.before:
        _say(f"    {_event_text(earlier)} -> {_text(earlier.decisions)}")
    _say(f"  > {_event_text(line)}")
    _say(f"    recorded: {_text(line.decisions)}")
    _say(f"    now:      {_text(difference.decided)}")


def _event_text(line: Line) -> str:
    own = {key: value for key, value in line.raw.items() if key not in ("seq", "t", "event", "decisions")}
    return f"seq {line.seq} t {line.t:.6f} {line.raw['event']} {_text(own)}"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _show_stats(result: Replay) -> None:
    rate = result.events / result.took_s if result.took_s else 0.0
    _say(f"{rate:,.0f} events/s in the core")
    for kind, count in sorted(result.kinds.items()):
        _say(f"{count:>10} {kind}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
