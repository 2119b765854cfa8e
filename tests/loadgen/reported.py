"""Runs that never happened, written into a folder as a real one is: samples in, reports out."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from loadgen.report import document
from loadgen.report import folder as files
from loadgen.report.document import Report, Rule, State, Validity
from loadgen.report.folder import Basis, Ending, Goal, Health, Run, read_run
from loadgen.report.lines import NAME as REQUESTS
from loadgen.report.lines import line
from loadgen.report.making import make
from loadgen.report.record import Outcome, Sample, Slo, TtftLimit
from loadgen.report.run import RunReport
from loadgen.schedule import Schedule
from loadgen.workload.planned import Planned

STD = Slo(ttft=TtftLimit(base_ms=400, per_token_ms=0.25, free_tokens=2048), tpot_ms=100, stall_ms=400)
WINDOW_S = (10.0, 70.0)


def sample(
    number: int = 0, t: float = 12.0, first_s: float = 0.1, gaps_s: Sequence[float] = (0.02, 0.02), **fields: object
) -> Sample:
    """A good streamed answer: its first token after `first_s`, the others after such pauses, sent on time."""
    reads = array("d", [t + first_s])
    for gap in gaps_s:
        reads.append(reads[-1] + gap)
    outcome = fields.get("outcome", Outcome.OK)
    values: dict[str, object] = {
        "id": number,
        "tenant": "chat",
        "priority": "standard",
        "cls": "short",
        "measured": WINDOW_S[0] <= t < WINDOW_S[1],
        "input_tokens": 100,
        "planned_output": len(reads),
        "leaves": False,
        "sched_s": t,
        "sent_s": t,
        "byte_s": reads[0],
        "content_s": reads[0],
        "end_s": reads[-1],
        "reads": reads,
        "token_events": len(reads),
        "output_tokens": len(reads),
        "prompt_tokens": 100,
        "status": 200,
        "outcome": outcome,
    }
    if outcome is not Outcome.OK:
        values |= {
            "reads": array("d"),
            "token_events": 0,
            "output_tokens": None,
            "byte_s": 0.0,
            "content_s": 0.0,
        }
    return Sample(**(values | fields))  # type: ignore[arg-type]


def planned(one: Sample) -> Planned:
    """The line of a schedule that it came from."""
    return Planned(
        id=one.id,
        t=one.sched_s,
        tenant=one.tenant,
        priority=one.priority,
        cls=one.cls,
        input_tokens=one.input_tokens,
        output_tokens=one.planned_output,
        measured=one.measured,
        blocks=(),
    )


def written(
    folder: Path,
    samples: Iterable[Sample],
    *,
    slo: Slo = STD,
    window_s: tuple[float, float] = WINDOW_S,
    **basis: object,
) -> Path:
    """The folder of a run that ended well, as `forebay bench` leaves it before its reports are made."""
    samples = list(samples)
    folder.mkdir(exist_ok=True)
    schedule = Schedule(
        name="made", seed=7, window_start_s=window_s[0], window_end_s=window_s[1], requests=tuple(map(planned, samples))
    )
    schedule.write(folder / files.SCHEDULE)
    pairs = sorted({(one.tenant, one.cls) for one in samples})
    values: dict[str, object] = {
        "started": "2026-11-30T03:00:00Z",
        "seed": 7,
        "schedule": schedule.digest(),
        "window_start_s": window_s[0],
        "window_end_s": window_s[1],
        "closed": False,
        "slo": slo,
        "goals": tuple(Goal(tenant=tenant, cls=cls, slo=slo) for tenant, cls in pairs),
        "weights": {},
        "scenario": {"name": "made", "seed": 7, "tenants": [{"name": tenant} for tenant, _ in pairs]},
        "target": {"urls": ["https://gateway.test"], "model": "m"},
        "environment": {"python": "3"},
    }
    files.begin(folder, Basis(**(values | basis)))  # type: ignore[arg-type]
    (folder / REQUESTS).write_bytes(b"".join(line(one, slo, window_s[1]) for one in samples))
    health = [
        Health(t_s=float(second), worker=0, loop_lag_ms=(0.2,), cpu=0.1, loop_lag_p99_ms=0.3) for second in range(80)
    ]
    (folder / files.HEALTH).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in health))
    files.end(folder, Ending(finished="2026-11-30T03:02:00Z", took_s=80.0, stopped_s=max(80.0, window_s[1])))
    return folder


def trusted(run: Run, made: RunReport) -> Validity:
    """No rule is broken."""
    return Validity(rules=(Rule(id="V1", state=State.OK, value=0.5, limit=10.0, words="send lag p99, ms"),))


def broken(run: Run, made: RunReport) -> Validity:
    """One is."""
    return Validity(rules=(Rule(id="V3", state=State.BREACH, value=31.0, limit=10.0, words="loop lag p99, ms"),))


def reported(
    folder: Path, samples: Iterable[Sample], rules: Callable[[Run, RunReport], Validity] = trusted, **basis: object
) -> Report:
    """The report of samples, and its file; without a page, which takes seconds to draw."""
    run = read_run(written(folder, samples, **basis))  # type: ignore[arg-type]
    report = make(run, rules)
    (folder / document.NAME).write_bytes(report.to_json())
    return report
