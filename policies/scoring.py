"""Which of them is best? The one that will be through with its prompts soonest, then the one with fewer sequences.

Equal ones are drawn from: always taking the first sends a burst to one endpoint (smg#2096).
"""

from collections.abc import Sequence
from random import Random

from policies.state.ledger import Load


def best(loads: Sequence[Load], random: Random) -> Load:
    """The best of at least one."""
    if len(loads) == 1:
        return loads[0]
    least_s, fewest = float("inf"), 0
    ties: list[Load] = []
    for load in loads:
        wait_s = load.prefill_tokens / load.speed
        if wait_s > least_s or (wait_s == least_s and load.sequences > fewest):
            continue
        if wait_s == least_s and load.sequences == fewest:
            ties.append(load)
        else:
            least_s, fewest, ties = wait_s, load.sequences, [load]
    return ties[0] if len(ties) == 1 else ties[int(random.random() * len(ties))]
