"""Which of them is best? The least outstanding prefill, in time, multiplied by how full the batch is (LMetric's form,
arXiv 2603.15202): `(P + u + 3 l + 1) / speed x (S + 16) / (S_max + 16)`, with u what this endpoint would have to compute
and l what of that a single other endpoint has.

Prefixes count through u and l alone. The wait of the request itself is u; l is work that the fleet has done already, and
others wait for it too: those that run here, and those that come before the engine has caught up. A second of work more
delays rho / (1 - rho) of them by a second where engines compute prompts a part rho of the time: three at three quarters,
which is where goals begin to be missed. Taking rho as it is measured saved less (docs/policies/affinity.md). Where nothing
runs nobody waits. What two have already many ask for, so a third copy serves them too and is not lost: counted as well, it
kept a hot head on few engines.

Equal ones are drawn from: always taking the first sends a burst to one endpoint (smg#2096). An endpoint with more than
its share of sequences is passed over (bounded load, KubeAI's c = 1.25), unless all are, or unless it saves a very long
prompt.
"""

from collections.abc import Sequence
from math import ceil
from random import Random
from typing import Final

from policies.state.ledger import Load
from policies.state.tickets import Ticket

FEW_SEQS: Final = 16  # so many sequences hardly slow a step: differences among fewer count for little
OTHERS: Final = 3  # that wait for work which the one endpoint that has done it would not have had to do
SLACK_SEQS: Final = 8  # above its share an endpoint may have in any case
GREAT_GAIN_TOKENS: Final = 8192  # cached tokens that justify a load ratio of GREAT_GAIN_RATIO
GREAT_GAIN_RATIO: Final = 2.0


def best(loads: Sequence[Load], ticket: Ticket, random: Random) -> Load:
    """The best of at least one."""
    if len(loads) == 1:
        return loads[0]
    least, ties = cost(loads[0], ticket), [loads[0]]
    for load in loads[1:]:
        this = cost(load, ticket)
        if this < least:
            least, ties = this, [load]
        elif this == least:
            ties.append(load)
    return ties[0] if len(ties) == 1 else _drawn(ties, random)


def cost(load: Load, ticket: Ticket) -> float:
    """The lower the better."""
    busy = (load.sequences + load.foreign + FEW_SEQS) / (load.room_seqs + FEW_SEQS)
    tokens = uncached = ticket.uncached(load.name)
    if ticket.only_one_has and load.sequences and uncached > ticket.tokens - ticket.most_cached:
        tokens += OTHERS * ticket.only_one_has
    return (load.prefill_tokens + tokens + 1) / load.speed * busy


def bounded(loads: Sequence[Load], everyone: Sequence[Load], ticket: Ticket, ratio: float) -> Sequence[Load]:
    """Those of `loads` with no more than `ratio` times their share of the sequences on `everyone`."""
    if len(loads) == 1 or not ticket.cached:
        return loads  # without a prefix nothing pulls towards a full one
    total = sum(load.sequences for load in everyone)
    share = (total + 1) / len(everyone)
    most, most_for_gain = ceil(ratio * share) + SLACK_SEQS, ceil(GREAT_GAIN_RATIO * share) + SLACK_SEQS
    fair = [load for load in loads if load.sequences < most]
    if not fair or len(fair) == len(loads):
        return loads
    least = min(ticket.uncached(load.name) for load in fair)
    gainful = [
        load
        for load in loads
        if most <= load.sequences < most_for_gain and least - ticket.uncached(load.name) >= GREAT_GAIN_TOKENS
    ]
    return fair + gainful if gainful else fair


def _drawn(ties: Sequence[Load], random: Random) -> Load:
    fewest = min(load.sequences for load in ties)
    ties = [load for load in ties if load.sequences == fewest]
    return ties[0] if len(ties) == 1 else ties[int(random.random() * len(ties))]
