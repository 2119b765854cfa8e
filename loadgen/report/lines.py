"""requests.jsonl: one line for each request, written when it ends, and enough to make every report again.

Times are seconds since the start of the run, to the microsecond. `gaps_us` are the pauses between reads that carried
tokens; `read_tokens` how many token-bearing events each read had (absent: one each); `earlier` the tries before the
last one, where the client tried again. No text and no key.
"""

import math
from array import array
from itertools import accumulate, pairwise
from operator import attrgetter
from pathlib import Path
from sys import intern

import msgspec

from loadgen.report.record import Outcome, Sample, Slo, Try

MEASURED, WARMUP, TAIL = "measure", "warmup", "tail"
NAME = "requests.jsonl"


class Row(msgspec.Struct, kw_only=True):
    """One line. A time is None where it never happened; `good` and `missed` are said for other readers."""

    id: int
    tenant: str
    cls: str = msgspec.field(name="class")
    priority: str
    session: str
    turn: int
    phase: str
    t_sched: float
    t_send: float | None
    t_head: float | None
    t_byte: float | None
    t_first: float | None
    t_content: float | None
    t_last: float | None
    t_end: float | None
    input_tokens: int
    planned_output_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    ideal_cached_tokens: int
    output_tokens: int | None
    token_events: int
    ttft_ms: float | None
    tpot_ms: float | None
    stall_ms: float | None
    e2e_ms: float
    status: int
    outcome: Outcome
    reason: str
    request_id: str
    pool: str
    gateway_class: str = ""  # not in the lines of older versions
    endpoint: str
    attempts: int
    queue_ms: float
    streamed: bool
    leaves: bool
    tries: int
    worker: int
    good: bool
    missed: tuple[str, ...]
    gaps_us: list[int] = []
    read_tokens: list[int] | msgspec.UnsetType = msgspec.UNSET
    earlier: tuple[Try, ...] | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(Row)


def line(sample: Sample, slo: Slo, window_end_s: float = math.inf) -> bytes:
    """The line of a request; `window_end_s` tells the tail from the warm-up."""
    return msgspec.json.encode(row(sample, slo, window_end_s)) + b"\n"


def row(sample: Sample, slo: Slo, window_end_s: float = math.inf) -> Row:
    """The values of a line."""
    missed = slo.missed(sample) if sample.outcome is Outcome.OK else ()
    stamps = [round(read * 1e6) for read in sample.reads]
    return Row(
        id=sample.id,
        tenant=sample.tenant,
        cls=sample.cls,
        priority=sample.priority,
        session=sample.session,
        turn=sample.turn,
        phase=MEASURED if sample.measured else WARMUP if sample.sched_s < window_end_s else TAIL,
        t_sched=round(sample.sched_s, 6),
        t_send=_stamp(sample.sent_s),
        t_head=_stamp(sample.head_s),
        t_byte=_stamp(sample.byte_s),
        t_first=stamps[0] / 1e6 if stamps else None,
        t_content=_stamp(sample.content_s),
        t_last=stamps[-1] / 1e6 if stamps else None,
        t_end=_stamp(sample.end_s),
        input_tokens=sample.input_tokens,
        planned_output_tokens=sample.planned_output,
        prompt_tokens=sample.prompt_tokens,
        cached_tokens=sample.cached_tokens,
        ideal_cached_tokens=sample.ideal_tokens,
        output_tokens=sample.output_tokens,
        token_events=sample.token_events,
        ttft_ms=_rounded(sample.ttft_ms),
        tpot_ms=_rounded(sample.tpot_ms),
        stall_ms=_rounded(sample.stall_ms),
        e2e_ms=round(sample.e2e_ms, 3),
        status=sample.status,
        outcome=sample.outcome,
        reason=sample.reason,
        request_id=sample.request_id,
        pool=sample.pool,
        gateway_class=sample.gateway_class,
        endpoint=sample.endpoint,
        attempts=sample.attempts,
        queue_ms=round(sample.queued_s * 1000, 3),
        streamed=sample.streamed,
        leaves=sample.leaves,
        tries=sample.tries,
        worker=sample.worker,
        good=sample.outcome is Outcome.OK and not missed,
        missed=missed,
        gaps_us=[later - earlier for earlier, later in pairwise(stamps)],
        read_tokens=list(sample.read_tokens) if any(one != 1 for one in sample.read_tokens) else msgspec.UNSET,
        earlier=sample.earlier or msgspec.UNSET,
    )


def sample(row: Row) -> Sample:
    """The request that a line tells of; what is equal in it is one object."""
    end_s = row.t_end or 0.0
    head_s = end_s if row.t_head == row.t_end else row.t_head or 0.0
    byte_s = head_s if row.t_byte == row.t_head else row.t_byte or 0.0
    first_us = None if row.t_first is None else round(row.t_first * 1e6)
    reads: array[float] | tuple[float, ...]
    if row.gaps_us and first_us is not None:
        reads = array("d", [stamp / 1e6 for stamp in accumulate(row.gaps_us, initial=first_us)])
    else:
        reads = () if first_us is None else (end_s if end_s == first_us / 1e6 else first_us / 1e6,)
    return Sample(
        id=row.id,
        tenant=intern(row.tenant),
        cls=intern(row.cls),
        priority=intern(row.priority),
        session=intern(row.session),
        turn=row.turn,
        measured=row.phase == MEASURED,
        input_tokens=row.input_tokens,
        planned_output=row.planned_output_tokens,
        leaves=row.leaves,
        sched_s=row.t_sched,
        sent_s=row.t_send or 0.0,
        head_s=head_s,
        byte_s=byte_s,
        content_s=row.t_content or 0.0,
        end_s=end_s,
        reads=reads,
        read_tokens=() if row.read_tokens is msgspec.UNSET else array("i", row.read_tokens),
        earlier=() if row.earlier is msgspec.UNSET else row.earlier,
        token_events=row.token_events,
        outcome=row.outcome,
        status=row.status,
        reason=intern(row.reason),
        request_id=row.request_id,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        streamed=row.streamed,
        tries=row.tries,
        worker=row.worker,
        pool=intern(row.pool),
        gateway_class=intern(row.gateway_class),
        endpoint=intern(row.endpoint),
        attempts=row.attempts,
        queued_s=row.queue_ms / 1000,
        ideal_tokens=row.ideal_cached_tokens,
    )


def samples(path: Path) -> list[Sample]:
    """Every request of a file by its id. Lines that were torn, by a kill or a full disk, are left out.

    Raises OSError where there is no file, ValueError (with the number of the line) where no line is one of a request.
    """
    found, broken = [], ""
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                found.append(sample(_decoder.decode(text)))
            except msgspec.DecodeError as error:
                broken = broken or f"{path}:{number}: {error}"
    if broken and not found:
        raise ValueError(broken)
    found.sort(key=attrgetter("id"))
    return found


def _stamp(value: float) -> float | None:
    return round(value, 6) if value else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
