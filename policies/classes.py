"""What may each class hold of a pool, and whose turn is it there? (tenancy.md 5)

Room. A class may hold its `ceiling` of the sequences, and those less urgent leave free what more urgent ones have
`reserved`: an answer holds its place for tens of seconds, and nothing is preempted. A prompt holds its room for less
than a second, so there it is enough to look at what came lately: the most urgent class may use more than the bound of
an engine, and one that is two and more ranks below the most urgent of the last minute half of it.

Turns. A class whose `min_share` of all that was dispatched has come to cover its head; else, at every fourth dispatch,
the one with the oldest head that has waited too long; else the most urgent. On such a turn a class has the room of any
other.
"""

from typing import Final

from policies.fairness import cost_of, forget
from policies.state.queues import PoolQueue
from policies.state.shares import CREDIT, OVERDUE, RANK, Share
from policies.state.tickets import Ticket

# Of the prefill bound, for those two classes and more below the most urgent of the last minute.
HELD_BACK_RATIO: Final = 0.5
URGENT_RATIO: Final = 1.5  # of it, for the most urgent class: it never waits for a step that others have filled
LATELY_S: Final = 60.0
NOTED_S: Final = 1.0  # a class that comes all the time is noted so often
OVERDUE_EVERY: Final = 4  # one dispatch in so many is for who has waited too long
STARVED_S: Final = 2.0  # too late to be in time, one has waited too long after the longer of both
STARVED_SLOS: Final = 2.0
CREDIT_QUANTA: Final = 4.0


def came(pool: PoolQueue, share: Share, now: float) -> None:
    """A request of this class has come."""
    share.renew_s = now + NOTED_S
    share.until_s = now + LATELY_S
    if share.band.rank < pool.most_urgent:
        hold_back(pool, share.band.rank)
    elif share.right == RANK:
        share.ratio = min(share.ratio, usual_ratio(pool, share)) if share.flows else usual_ratio(pool, share)


def look_after(pool: PoolQueue, now: float) -> bool:
    """Once a second: accounts nobody needs go; who has not come for a minute holds nobody back. True when that makes room."""
    for share in pool.ranked:
        if share.accounts:
            forget(share, now)
    most_urgent = min((share.band.rank for share in pool.ranked if share.until_s > now), default=pool.least_urgent)
    if most_urgent <= pool.most_urgent:
        return False
    hold_back(pool, most_urgent)
    return True


def hold_back(pool: PoolQueue, most_urgent: int) -> None:
    """Classes far below this rank get less of an engine's steps."""
    pool.most_urgent = most_urgent
    for share in pool.ranked:
        share.ratio = usual_ratio(pool, share)


def usual_ratio(pool: PoolQueue, share: Share) -> float:
    """Of the prefill bound of each engine, what a class may use."""
    rank = share.band.rank
    return URGENT_RATIO if rank == 0 else HELD_BACK_RATIO if rank > pool.most_urgent + 1 else 1.0


def in_turn(pool: PoolQueue, now: float) -> list[Share]:
    """The classes that wait, the one whose turn it is first."""
    patient = pool.passed < OVERDUE_EVERY - 1
    order: list[tuple[int, int, int, Share]] = []
    for share in pool.waiting_shares:
        first = share.standings[0][5][0]
        right, came = RANK, 0
        if share.credit and share.credit >= cost_of(first) and share is not pool.waiting_shares[0]:
            right = CREDIT
        elif not patient and (overdue := overdue_of(share, now)):
            right, came = OVERDUE, min(head.order for head in overdue)
        share.right = right
        share.ratio = usual_ratio(pool, share) if right == RANK else max(1.0, usual_ratio(pool, share))
        order.append((right, came, share.band.rank, share))
    if len(order) > 1:
        order.sort()
    return [entry[3] for entry in order]


def overdue_of(share: Share, now: float) -> list[Ticket]:
    """Its heads that have waited too long."""
    return [head for standing in share.standings for head in standing[5] if is_overdue(head, now)]


def is_overdue(ticket: Ticket, now: float) -> bool:
    """Whether it has waited too long: past the patience of its class or, too late to be in time, past two promises."""
    waited_s, band = now - ticket.request.arrived_s, ticket.band
    return waited_s > band.age_after_s or (
        ticket.lost_s <= now and waited_s > max(STARVED_S, STARVED_SLOS * band.slo_ttft_s)
    )


def served(pool: PoolQueue, share: Share, cost: float) -> None:
    """One of this class was dispatched."""
    share.credit = max(0.0, share.credit - cost)  # a floor: what it gets on other turns counts as well
    for other in pool.waiting_shares:
        if other.band.min_share:
            other.credit += other.band.min_share * cost
            most = CREDIT_QUANTA * other.terms.quantum
            if other.credit > most and other.standings:
                other.credit = max(most, min(other.credit, cost_of(other.standings[0][5][0])))
