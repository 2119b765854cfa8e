"""Requests beside the scenario's: shared prefixes that are sent before (`--prime`), and the isolation probe (`--probe`).

The probe asks for one token again and again as a tenant of its own, outside all caps of the client: how long it waits is
what the load of others does to somebody who asks for nothing.
"""

from collections.abc import Iterator

import msgspec

from loadgen.schedule import Planned, Schedule
from loadgen.workload.prompts import Block, prompt_tokens

PROBE = "probe"  # the tenant
PROBE_TOKENS = 16
PRIMED_PER_S = 20.0
_SHARED = "/prefix/"


def probe(rate: float, schedule: Schedule, total_s: float) -> Schedule:
    """One-token requests at `rate` a second over the whole run."""
    count = max(1, round(rate * total_s))
    return _beside(
        schedule,
        tuple(
            _small(number, number / rate, PROBE, (_own(PROBE, number),), window_s=_window(schedule))
            for number in range(count)
        ),
    )


def prime(schedule: Schedule) -> Schedule:
    """Each beginning that measured requests of a tenant share, once, asking for one token."""
    heads = {(one.tenant, head): one.priority for one in schedule.requests if one.measured and (head := _head(one))}
    rows = enumerate(heads.items())
    return _beside(
        schedule,
        tuple(
            msgspec.structs.replace(
                _small(number, number / PRIMED_PER_S, tenant, (*head, _own("prime", number))), priority=priority
            )
            for number, ((tenant, head), priority) in rows
        ),
    )


def _head(planned: Planned) -> tuple[Block, ...]:
    """The shared prefixes that a prompt begins with."""
    return tuple(_leading(planned.blocks))


def _leading(blocks: tuple[Block, ...]) -> Iterator[Block]:
    for block in blocks:
        if _SHARED not in block.namespace:
            return
        yield block


def _window(schedule: Schedule) -> tuple[float, float]:
    return schedule.window_start_s, schedule.window_end_s


def _own(namespace: str, number: int) -> Block:
    return Block(namespace=namespace, id=number, tokens=PROBE_TOKENS)


def _small(
    number: int, t: float, tenant: str, blocks: tuple[Block, ...], window_s: tuple[float, float] = (0.0, 0.0)
) -> Planned:
    return Planned(
        id=number,
        t=t,
        tenant=tenant,
        priority="standard",
        cls=PROBE,
        input_tokens=prompt_tokens(blocks),
        output_tokens=1,
        max_tokens=1,
        cancel_after_s=None,
        measured=window_s[0] <= t < window_s[1],
        blocks=blocks,
    )


def _beside(schedule: Schedule, requests: tuple[Planned, ...]) -> Schedule:
    return msgspec.structs.replace(schedule, requests=requests)
