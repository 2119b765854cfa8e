"""Which of those that wait goes first? Sorted batching: urgent before idle, and of like urgency short before long.

Each request gets its place once, when it starts to wait, so a queue is a heap and never sorted again:

- `by_length`: by the moment its prefill has to begin for its first token to be in time, in buckets of 50 ms; inside a
  bucket equal prefixes together, then the cheapest.
- `edf`: by that moment alone. `fcfs`: by arrival.

Without a promised first token the moment is the arrival plus a wait in proportion to its cost: short ones get ahead
of long ones that came a little earlier, and of nobody who has waited for long.

Whoever can no longer be in time would win every comparison and save nobody. Such a request stands behind those of its
band that can still be saved, in order of arrival, until it has waited so long that it is starved: then every fourth
dispatch of the pool is for the starved.
"""

from collections.abc import Iterable, Mapping
from math import ceil, inf

from policies.saturation import service_s
from policies.state.ledger import Load
from policies.state.queues import Line, PoolQueue, Turn
from policies.state.tickets import Ticket
from policies.types import Band

BUCKET_S = 0.05
ANSWER_SHARE = 0.25  # of the time of an answer that counts as cost beside the prefill
WAIT_PER_COST = 20.0  # seconds of head start for a second of work, without a promise
GROUP_BLOCKS = 8  # of a prompt make it one of a group: 512 tokens
ROUNDING_S = 1e-6  # by which a computed moment may be late
LOST_SLOS = 1.0  # so many times its promise too late, a request no longer pushes ahead
STARVED_S, STARVED_SLOS = 2.0, 2.0  # a request that has waited longer than both is starved
STARVED_EVERY = 4  # one dispatch in so many is for the starved


def due_s(band: Band, arrived_s: float, prompt_tokens: int) -> float:
    """When the first token is promised; infinite where nothing is."""
    if not band.slo_ttft_s:
        return inf
    return arrived_s + band.slo_ttft_s + band.ttft_per_token_s * max(0, prompt_tokens - band.free_tokens)


def place(ticket: Ticket, ordering: str, load: Load) -> None:
    """Give a request its place in its line. `load`: an endpoint like those it may use."""
    arrived_s = ticket.request.arrived_s
    lasts_s = ticket.pool.services[ticket.long].margin * service_s(load, ticket.weight)
    ticket.begin_s = begin_s = ticket.due_s - lasts_s
    if ordering == "fcfs":
        ticket.key = (ticket.order,)
        return
    answer_s = ticket.output.p50 * load.endpoint.decode_s if ticket.output is not None else 0.0
    cost_s = ticket.weight / load.speed + ANSWER_SHARE * answer_s
    if begin_s == inf:
        begin_s = arrived_s + WAIT_PER_COST * cost_s
    else:
        ticket.lost_s = begin_s + LOST_SLOS * (ticket.due_s - arrived_s)
    if ordering == "edf":
        ticket.key = (begin_s, ticket.order)
    else:
        ticket.key = (ceil(begin_s / BUCKET_S), _group(ticket), cost_s, ticket.order)


def _group(ticket: Ticket) -> int:
    """Requests of one tenant with equal groups share the head of their prompt."""
    prefix = ticket.request.prefix
    return prefix[min(len(prefix), GROUP_BLOCKS) - 1] if prefix else 0


def in_turn(pool: PoolQueue, now: float) -> list[Ticket]:
    """The head of every line of a pool, the first to be served first."""
    turn = pool.turn
    if pool.new_heads:
        _renew(turn, pool.new_heads, now)
        pool.new_heads = {}
    if turn.until_s <= now:
        _line_up(pool, now)
    if pool.passed < STARVED_EVERY - 1:
        return turn.tickets
    starved = [each[3] for each in turn.standings if each[1] and is_starved(each[3], now)]
    return sorted(starved, key=_order) + turn.tickets if starved else turn.tickets


def _line_up(pool: PoolQueue, now: float) -> None:
    """Put all heads in order. Those that can no longer be in time stand in their late line then."""
    lines: dict[Line, None] = {}
    for lane in pool.lanes():
        ready = lane.ready.head()
        if ready is not None and ready.lost_s <= now:
            lane.give_up(now)
            pool.rescan = True  # the line has another head: it may fit where nobody has looked
        lines[lane.ready] = lines[lane.late] = None
    pool.turn.standings, pool.turn.until_s = [], inf
    _renew(pool.turn, lines, now)


def _renew(turn: Turn, lines: Mapping[Line, None], now: float) -> None:
    """These lines may have other heads than before."""
    turn.standings = [each for each in turn.standings if each[4] not in lines]
    for line in lines:
        head = line.head()
        if head is None:
            continue
        late = line is line.lane.late
        turn.standings.append((rank(head, now), late, (head.order,) if late else head.key, head, line))
        turn.until_s = min(turn.until_s, _changes_s(head, now), inf if late else head.lost_s)
    turn.standings.sort()
    turn.tickets = [each[3] for each in turn.standings]


def _changes_s(ticket: Ticket, now: float) -> float:
    """Until when its rank is surely what it is now."""
    band, arrived_s = ticket.band, ticket.request.arrived_s
    steps = int((now - arrived_s) / band.age_after_s)
    return arrived_s + (steps + 1) * band.age_after_s - ROUNDING_S if steps < band.rank else inf


def _order(ticket: Ticket) -> int:
    return ticket.order


def rank(ticket: Ticket, now: float) -> int:
    """Its band's rank, one more urgent for every `age_after_s` of waiting."""
    band = ticket.band
    return max(0, band.rank - int((now - ticket.request.arrived_s) / band.age_after_s))


def is_starved(ticket: Ticket, now: float) -> bool:
    """Whether it has waited too long whatever its place."""
    return now - ticket.request.arrived_s > max(STARVED_S, STARVED_SLOS * ticket.band.slo_ttft_s)


def served(pool: PoolQueue, ticket: Ticket, now: float) -> None:
    """Somebody left the queue of this pool for an endpoint."""
    pool.passed = 0 if ticket.lost_s <= now and is_starved(ticket, now) else pool.passed + 1


def heads_of(pool: PoolQueue) -> Iterable[Ticket]:
    """The head of every line, as they stand: for checks."""
    for lane in pool.lanes():
        for head in (lane.ready.head(), lane.late.head()):
            if head is not None:
                yield head
