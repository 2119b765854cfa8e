"""Which of them is best? The one that will be through with its prompts soonest, then the one with fewer sequences.

Equal ones are drawn from: always taking the first sends a burst to one endpoint (smg#2096).
"""

from collections.abc import Sequence
from operator import attrgetter
from random import Random

from policies.state.ledger import Load

_sequences = attrgetter("sequences")


def best(loads: Sequence[Load], random: Random) -> Load:
    """The best of at least one."""
    ties = [load for load in loads if not load.prefill_tokens] or _soonest(loads)
    if len(ties) > 1:
        fewest = min(map(_sequences, ties))
        ties = [load for load in ties if load.sequences == fewest]
    return ties[0] if len(ties) == 1 else ties[int(random.random() * len(ties))]


def _soonest(loads: Sequence[Load]) -> list[Load]:
    waits_s = [load.prefill_tokens / load.speed for load in loads]
    least_s = min(waits_s)
    return [load for load, wait_s in zip(loads, waits_s, strict=True) if wait_s == least_s]
