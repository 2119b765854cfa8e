"""What must be known of a schedule before it is sent, found by going through it once."""

from collections.abc import Iterable

import msgspec

from loadgen.workload.planned import Planned
from loadgen.workload.prompts import ANSWERS


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """`chained`: the tenants some of whose requests come after others. `again`: the conversations that say again what
    was answered, with the last turn that does so. `last_s`: the last planned time."""

    tenants: frozenset[str]
    chained: frozenset[str]
    again: dict[str, int]
    last_s: float


def survey(requests: Iterable[Planned]) -> Survey:
    """Of those requests."""
    tenants: set[str] = set()
    chained: set[str] = set()
    again: dict[str, int] = {}
    last_s = 0.0
    for one in requests:
        tenants.add(one.tenant)
        last_s = max(last_s, one.t)
        if one.after is not None:
            chained.add(one.tenant)
            if any(block.namespace.startswith(ANSWERS) for block in one.blocks):
                again[one.session] = one.turn
    return Survey(
        tenants=frozenset(tenants),
        chained=frozenset(chained),
        again=again,
        last_s=last_s,
    )
