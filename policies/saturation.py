"""Is there room? Bounds on what is outstanding on an endpoint (scheduling.md 5).

Whatever is bound to an engine can no longer be sorted, shed or sent elsewhere, so an engine gets what it can start
soon and no more. Sequences: as many as it runs. Short prompts: as long as less than a step of them is outstanding, so
that a step is full whatever their sizes, and the engine has the next one before it runs dry. Long prompts: as many as
it has lanes for; beside one there is room for short ones where the engine caps its share of a step, and none where it
does not. KV cache: all of it, by what answers come to hold. An idle endpoint takes anything of its lanes.
"""

from collections.abc import Sequence
from typing import Final

from policies.state.invariants import InvariantError
from policies.state.ledger import Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket

BESIDE_LONG: Final = 0.5  # of the bound, while a long prompt is computed there: it takes its share of every step


def with_room(loads: Sequence[Load], ticket: Ticket, long_from: int) -> list[Load]:
    """Those of `loads` that may take the request now. `long_from`: more uncached tokens make a long prompt (0: none)."""
    maybe_long = 0 < long_from < ticket.tokens
    sequences = ticket.sequences
    ratio = ticket.share.ratio
    found: list[Load] = []
    for load in loads:
        if load.sequences and load.sequences + load.foreign + sequences > load.room_seqs:
            continue  # the cheapest question first: mostly it is this
        if maybe_long and needs_lane(ticket, load, long_from):
            free = load.longs < load.lanes
        else:
            # Long but for what is cached here it may join in: anywhere else others would have to wait for it.
            share = 1.0 if not load.longs or maybe_long else BESIDE_LONG if load.endpoint.long_prefill_cap else 0.0
            free = load.prefill_tokens - load.long_tokens < load.max_prefill_tokens * share * ratio
        if free and (not load.sequences or not load.kv_bound or holds(load, ticket)):
            found.append(load)
    return found


def beyond_lanes(loads: Sequence[Load], ticket: Ticket) -> list[Load]:
    """Those that may take a long prompt without a lane: where no other one is, and long ones are not forbidden."""
    may = [load for load in loads if load.endpoint.long_lanes and not load.longs and ticket.may_use(load.name)]
    return with_room(may, ticket, 0)


def needs_lane(ticket: Ticket, load: Load, long_from: int) -> bool:
    """Whether a prompt of more than `long_from` tokens is long here.

    Not where at least half of it is cached: elsewhere all of it would be computed, which costs the fleet more than a lane saves
    (simulated, `agents-trace`: conversations left their engine with every large turn).
    """
    uncached = ticket.uncached(load.name)
    return uncached > long_from and (2 * uncached > ticket.tokens or not load.endpoint.long_lanes)


def with_a_place(loads: Sequence[Load]) -> list[Load]:
    """Those that may take one more sequence: the others are no use to anybody."""
    return [load for load in loads if not load.sequences or load.sequences + load.foreign + 1 <= load.room_seqs]


def holds(load: Load, ticket: Ticket) -> bool:
    """Whether a place and memory are left."""
    if load.sequences + load.foreign + ticket.sequences > load.room_seqs:
        return False
    if not load.kv_bound:
        return True
    return load.kv_tokens + load.kv_extra + kv_need(ticket, ticket.uncached(load.name)) <= load.kv_bound


def kv_need(ticket: Ticket, uncached: int) -> int:
    """KV tokens that a request will come to hold beyond what is there already: its prompt and its answer.

    The answer counts with what many of them hold at the same time: when the longest are long most of the others have gone.
    With the 90th percentile of each, long heavy-tailed answers kept the cache half empty and requests waiting
    (simulated, `reasoning`), and with their mean still a quarter of it (`reasoning-trace`).
    """
    answer = ticket.output.held if ticket.output is not None else 0.0
    return uncached + int(answer) * ticket.sequences


def saturation(load: Load) -> float:
    """How full an endpoint is: 0 idle, 1 full; the fullest of its bounds rules."""
    long_tokens = load.long_tokens if load.longs else 0
    prefill = load.prefill_tokens / (load.max_prefill_tokens + long_tokens)
    kv = (load.kv_tokens + load.kv_extra) / load.kv_bound if load.kv_bound else 0.0
    return max((load.sequences + load.foreign) / max(1, load.room_seqs), prefill, kv)


def pool_saturation(loads: Sequence[Load]) -> float:
    """Of a pool, weighted by what its endpoints can hold; without an endpoint it is full."""
    weight = sum(load.room_seqs for load in loads)
    if not weight:
        return 1.0
    return sum(min(1.5, saturation(load)) * load.room_seqs for load in loads) / weight


def ahead_tokens(load: Load, short: bool) -> int:
    """Prompt tokens that are computed there before those of another prompt: a capped long one lets short ones pass."""
    if short and load.longs and load.endpoint.long_prefill_cap:
        return load.prefill_tokens - load.long_tokens
    return load.prefill_tokens


def service_s(load: Load, tokens: int) -> float:
    """Seconds from the dispatch of so many uncached tokens to the first token: a step that runs, and their own."""
    return (tokens + load.step_tokens) / load.speed


def check_head(pool: PoolQueue, ticket: Ticket, heads: Sequence[Ticket]) -> None:
    """Raise InvariantError when it waits for an endpoint that has room for it, and for none of these heads."""
    usable = [load for load in pool.up if ticket.may_use(load.name)]
    for load in with_room(usable, ticket, pool.long_from):
        wanted = [other for other in heads if other.may_use(load.name)]
        if all(with_room([load], other, pool.long_from) for other in wanted):
            raise InvariantError(f"{ticket.request.id} waits in {pool.name} although {load.name} has room")
