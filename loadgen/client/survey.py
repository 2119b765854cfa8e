"""What must be known of a schedule before it is sent, found by going through it once."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from loadgen.workload.planned import Planned
from loadgen.workload.prompts import ANSWERS


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """`chained`: the tenants some of whose requests come after others. `again`: the conversations that say again what
    was answered, and how many turns they have. `last_s`: the last planned time."""

    tenants: frozenset[str]
    chained: frozenset[str]
    again: dict[str, int]
    last_s: float


def survey(requests: Iterable[Planned]) -> Survey:
    """Of those requests."""
    tenants: set[str] = set()
    chained: set[str] = set()
    again: set[str] = set()
    turns: Counter[str] = Counter()
    last_s = 0.0
    for one in requests:
        tenants.add(one.tenant)
        last_s = max(last_s, one.t)
        if one.session:
            turns[one.session] += 1
        if one.after is not None:
            chained.add(one.tenant)
            if any(block.namespace.startswith(ANSWERS) for block in one.blocks):
                again.add(one.session)
    return Survey(
        tenants=frozenset(tenants),
        chained=frozenset(chained),
        again={name: turns[name] for name in again},
        last_s=last_s,
    )
