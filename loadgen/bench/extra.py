"""Requests beside the scenario's: shared prefixes that are sent before (`--prime`), and the isolation probe (`--probe`).

The probe asks for one token again and again as a tenant of its own, outside all caps of the client: how long it waits is
what the load of others does to somebody who asks for nothing.
"""

import msgspec

from loadgen.bench.facts import Facts
from loadgen.schedule import Planned, Schedule
from loadgen.workload.prompts import Block, prompt_tokens

PROBE = "probe"  # the tenant
PROBE_TOKENS = 16
PRIMED_PER_S = 20.0


def probe(rate: float, schedule: Schedule, total_s: float) -> Schedule:
    """One-token requests at `rate` a second over the whole run."""
    count = max(1, round(rate * total_s))
    start_s, end_s = schedule.window_start_s, schedule.window_end_s
    requests = tuple(
        _small(number, number / rate, PROBE, (_own(PROBE, number),), start_s <= number / rate < end_s)
        for number in range(count)
    )
    return msgspec.structs.replace(schedule, requests=requests)


def prime(facts: Facts, schedule: Schedule) -> Schedule:
    """Each beginning that measured requests of a tenant share, once, asking for one token."""
    requests = tuple(
        msgspec.structs.replace(
            _small(number, number / PRIMED_PER_S, tenant, (*head, _own("prime", number)), False),
            priority=facts.tenants[tenant].priority,
        )
        for number, (tenant, head) in enumerate(facts.heads)
    )
    return msgspec.structs.replace(schedule, requests=requests)


def _own(namespace: str, number: int) -> Block:
    return Block(namespace=namespace, id=number, tokens=PROBE_TOKENS)


def _small(number: int, t: float, tenant: str, blocks: tuple[Block, ...], measured: bool) -> Planned:
    return Planned(
        id=number,
        t=t,
        tenant=tenant,
        priority="standard",
        cls=PROBE,
        input_tokens=prompt_tokens(blocks),
        output_tokens=1,
        max_tokens=1,
        measured=measured,
        blocks=blocks,
    )
