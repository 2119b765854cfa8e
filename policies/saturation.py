"""Is there room? Bounds on what is outstanding on an endpoint (scheduling.md 5).

Whatever is bound to an engine can no longer be sorted, shed or sent elsewhere, so an engine gets what it can start
soon and no more. Sequences: as many as it runs. Prefill tokens: about one step, but a prompt larger than the bound
goes alone. An idle endpoint takes anything.
"""

from collections.abc import Sequence

from policies.state.ledger import Load


def with_room(loads: Sequence[Load], tokens: int, sequences: int) -> list[Load]:
    """Those of `loads` that may take `tokens` of prompt and `sequences` now."""
    return [
        load
        for load in loads
        if not load.sequences
        or (
            load.sequences + sequences <= load.room_seqs
            and (not load.prefill_tokens or load.prefill_tokens + tokens <= load.max_prefill_tokens)
        )
    ]
