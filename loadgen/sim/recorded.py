"""A schedule out of a journal: what if the same requests had come to another policy, or to other engines?"""

from pathlib import Path

import msgspec

from loadgen.scenario import Scenario, ScenarioError, Tenant
from loadgen.schedule import Schedule, build
from loadgen.workload import formats
from loadgen.workload.fields import duration
from loadgen.workload.trace import Trace

WARMUP_SHARE = 0.1  # at most that much of it is not measured: simulated engines begin cold


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """`guessed` of the requests have a length that the journal does not tell."""

    schedule: Schedule
    guessed: int


def recorded(path: Path, scenario: Scenario) -> Recorded:
    """The requests of a journal; the scenario gives them classes. Raises ScenarioError."""
    trace = Trace(file=str(path), dequantise="off", tenant_field="tenant")
    if not path.is_file():
        raise ScenarioError(f"{path}: No such file")
    rows = formats.read(trace.file, trace.tenant_field)
    if not rows:
        raise ScenarioError(f"{path}: no request in this journal")
    end_s = max(row.t_s for row in rows)
    warmup_s = min(scenario.warmup_s, WARMUP_SHARE * end_s)
    replay = msgspec.structs.replace(
        scenario,
        warmup=duration(warmup_s),
        duration=duration(end_s - warmup_s + 1e-6),
        tail="0s",
        tenants=(Tenant(name="journal", arrivals=trace),),
    )
    return Recorded(schedule=build(replay, 0), guessed=sum(row.guessed for row in rows))
