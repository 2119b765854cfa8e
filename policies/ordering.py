"""Which of those that wait goes first? A class has its turn, in it a tenant, and of that one's the most urgent.

`classes` says whose turn it is and `fairness` which tenant is next. Inside a tenant: sorted batching, urgent before
idle, and of like urgency short before long. Each request gets its place once, when it starts to wait, so a queue is a
heap and never sorted again:

- `by_length`: by the moment its prefill has to begin for its first token to be in time, in buckets of 50 ms; inside a
  bucket equal prefixes together, then the cheapest.
- `edf`: by that moment alone. `fcfs`: by arrival.

Without a promised first token the moment is the arrival plus a wait in proportion to its cost: short ones get ahead
of long ones that came a little earlier, and of nobody who has waited for long.

Whoever can no longer be in time would win every comparison and save nobody. Such a request stands behind those of its
tenant and class that can still be saved, in order of arrival, until it has waited so long that it is starved: then
every fourth of their dispatches is for the starved.
"""

from collections.abc import Iterator
from math import ceil, inf
from operator import itemgetter
from typing import Final

from policies import classes, fairness
from policies.events import Bounced, Finished
from policies.saturation import service_s
from policies.state.flows import Flow
from policies.state.ledger import Attempt, Load
from policies.state.queues import PoolQueue
from policies.state.served import Used, cost
from policies.state.shares import OVERDUE, Standing
from policies.state.tickets import Ticket
from policies.types import Band

BUCKET_S: Final = 0.05
ANSWER_SHARE: Final = 0.25  # of the time of an answer that counts as cost beside the prefill
WAIT_PER_COST: Final = 20.0  # seconds of head start for a second of work, without a promise
GROUP_BLOCKS: Final = 8  # of a prompt make it one of a group: 512 tokens
LOST_SLOS: Final = 1.0  # so many times its promise too late, a request no longer pushes ahead


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
    if pool.until_s <= now:
        _give_up(pool, now)
    if pool.changed:
        _renew(pool, now)
    if not pool.waiting_shares:
        return []
    pool.look()
    turn: list[Ticket] = []
    for share in classes.in_turn(pool, now):
        for standing in share.standings:
            turn += _with_the_overdue_first(standing[5], now) if share.right == OVERDUE else standing[5]
    return turn


def _with_the_overdue_first(heads: list[Ticket], now: float) -> list[Ticket]:
    overdue = sorted((head for head in heads if classes.is_overdue(head, now)), key=_order)
    return [*overdue, *(head for head in heads if head not in overdue)]


def _order(ticket: Ticket) -> int:
    return ticket.order


def _give_up(pool: PoolQueue, now: float) -> None:
    """Those that can no longer be in time stand in their late line from now on."""
    for lane in pool.lanes():
        ready = lane.ready.head()
        if ready is not None and ready.lost_s <= now:
            lane.give_up(now)
            pool.changed[lane.flow] = None
            pool.rescan = True  # the line has another head: it may fit where nobody has looked
    heads = (lane.ready.head() for lane in pool.lanes())
    pool.until_s = min((head.lost_s for head in heads if head is not None), default=inf)


def _renew(pool: PoolQueue, now: float) -> None:
    """These flows have other heads than before, or their tenants have had something."""
    changed, pool.changed = pool.changed, {}
    shares = {flow.band: flow.share for flow in changed}
    for share in shares.values():
        if share.standings:
            share.standings = [standing for standing in share.standings if standing[4] not in changed]
    for flow in changed:
        if flow.lanes:
            fresh = list(_standings(pool, flow, now))  # which may change those that are there
            flow.share.standings += fresh
        else:
            fairness.left(flow, now)
    for share in shares.values():
        if len(share.standings) > 1:
            share.standings.sort()


def _standings(pool: PoolQueue, flow: Flow, now: float) -> Iterator[Standing]:
    """Where a tenant stands with what is first in either lane."""
    account = flow.account or fairness.entered(flow, now)
    flow.passed_over = False
    is_old = account.spent >= account.until
    for long in (False, True):
        heads = sorted(_heads(flow, long), key=itemgetter(0, 1))
        if not heads:
            continue
        tickets = [head[2] for head in heads]
        if not heads[0][0]:
            pool.until_s = min(pool.until_s, *(ticket.lost_s for late, _, ticket in heads if not late))
        yield is_old, fairness.round_of(account, flow.share), account.place, long, flow, tickets


def _heads(flow: Flow, long: bool) -> Iterator[tuple[bool, tuple[float, ...], Ticket]]:
    """Of short or of long prompts: is late, key, head."""
    for lane in flow.lanes.values():
        if lane.key[0] is long:
            ready, late = lane.ready.head(), lane.late.head()
            if ready is not None:
                yield False, ready.key, ready
            if late is not None:
                yield True, (late.order,), late


def served(ticket: Ticket, attempt: Attempt, queued: bool, now: float) -> None:
    """It was dispatched while somebody waits; `queued`: after it waited itself."""
    share, pool = ticket.share, ticket.pool
    if queued:
        pool.passed = 0 if share.right == OVERDUE and classes.is_overdue(ticket, now) else pool.passed + 1
    classes.served(pool, share, attempt.cost)
    changed = fairness.charge(share, ticket.request.tenant, attempt, now)
    if changed is not None:
        pool.changed[changed] = None


def expected_cost(ticket: Ticket, attempt: Attempt) -> float:
    """What it is expected to cost an engine, where it was sent."""
    uncached, cached, output = _expected(ticket, attempt)
    return cost(ticket.share.terms, uncached, cached, output)


def _expected(ticket: Ticket, attempt: Attempt) -> Used:
    answer = ticket.output.mean * ticket.sequences if ticket.output is not None else 0.0
    return float(attempt.tokens), float(attempt.cached), answer


def settled(ticket: Ticket, attempt: Attempt, event: Finished | Bounced | None, now: float) -> float:
    """It is over: charge what it cost. Nothing if it came back; what was thought where the engine did not count.

    Returns what it cost beyond what was thought, if anybody has thought of it.
    """
    thought, actual, share = attempt.cost, 0.0, ticket.share
    if not isinstance(event, Bounced):
        used = _counted(ticket, attempt, event)
        share.served.add(ticket.request.tenant, used or _expected(ticket, attempt), now)
        if not thought:
            return 0.0
        actual = cost(share.terms, used[0], used[1], used[2]) if used is not None else thought
    changed = fairness.settle(share, attempt, actual - thought) if thought else None
    if changed is not None:
        ticket.pool.changed[changed] = None
    return actual - thought


def _counted(ticket: Ticket, attempt: Attempt, event: Finished | None) -> Used | None:
    """What the engine has counted."""
    if event is None or (output := event.output_tokens) is None:
        return None
    cached = event.cached_tokens
    if cached is None:
        cached = attempt.cached
    uncached = (event.prompt_tokens or ticket.tokens) - cached
    return float(uncached if uncached > 0 else 0), float(cached), float(output)


def heads_of(pool: PoolQueue) -> Iterator[Ticket]:
    """The head of every line, as they stand: for checks."""
    for lane in pool.lanes():
        for head in (lane.ready.head(), lane.late.head()):
            if head is not None:
                yield head
