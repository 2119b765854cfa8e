"""Which tenant of a class is served next? Deficit round robin in what requests cost an engine (tenancy.md 6).

In each round a tenant that waits may have a quantum times its weight. Nobody walks through rounds: an account says how
many of them a tenant has used up, and so in which it is served next; the lowest round is served first, inside a round
in a fixed order. A tenant is served as long as it has something left of its round: the last request may cost more than
that, and what it costs more is missing in the next. What is left when nothing waits any more is lost; what was had too
much is kept for a minute.

- Who comes after a round in which it had nothing, or after a second away, is served first until it has had a quantum,
  and then has its turn where it broke in.
- The account is charged what a request is expected to cost, and corrected when it ends.
- The round of the class is the lowest of those who wait. One that is passed over (its engine is full or its slots are
  taken, while others may go) does not hold it up, and keeps one quantum.
- A long prompt takes no lane of its own out of turn: what an engine computes of it, it does not compute of the short
  ones of a tenant that is in an earlier round.
- A long prompt that finds no lane holds nobody up, until others have got rounds ahead: then it may go where no long one is, lane or
  not, and their short ones wait for it.
- What other replicas have served it counts as if it was served here (policies/sharing.py).
"""

from collections.abc import Iterable, Iterator
from math import floor, inf
from operator import attrgetter
from typing import Final

from policies.state.flows import Flow
from policies.state.ledger import Attempt
from policies.state.served import cost
from policies.state.shares import Account, Share, Standing
from policies.state.tickets import Ticket
from policies.types import Fairness

AWAY_S: Final = 1.0
LEAST: Final = 1e-9  # of a round: one that is new is served first at least once
DEBT_KEPT_S: Final = 60.0
LEAD_ROUNDS: Final = 4  # by which short prompts may be ahead of a long one that waits for a lane
DEBT_ROUNDS: Final = 16.0  # a request that cost more than was thought takes so many rounds at most


def cost_of(ticket: Ticket) -> float:
    """What one that waits is expected to cost."""
    output = ticket.output.mean * ticket.sequences if ticket.output is not None else 0.0
    return cost(ticket.share.terms, ticket.weight, ticket.tokens - ticket.weight, output)


def rounds(account: Account, terms: Fairness, cost: float) -> float:
    """That much in rounds of a tenant."""
    return cost / (terms.quantum * account.tenant.weight)


def entered(flow: Flow, now: float) -> Account:
    """Something of this tenant waits now."""
    share = flow.share
    account = share.account(flow.tenant, now)
    had_none = account.spent <= share.round - 1.0
    account.spent = max(account.spent, share.round - 1.0)
    is_new = had_none or (now - account.left_s >= AWAY_S and account.spent <= share.round)
    account.until = max(share.round, account.spent + LEAST) if is_new else account.spent
    if is_new or not account.place:  # else it has had its turn in this round, and keeps its place
        share.entered += 1.0
        account.place = _before_the_first(share)
    account.flow = flow
    flow.account = account
    return account


def _before_the_first(share: Share) -> float:
    """A place just before the one whose turn it is: so between two turns of any other tenant there is one of this."""
    first = next((standing[4].account for standing in share.standings if standing[0]), None)
    if first is None:
        return share.entered
    place = _middle(share, first)
    if place in (0.0, first.place):
        _renumber(share)
        place = _middle(share, first)
    return place


def _middle(share: Share, first: Account) -> float:
    before = max((each.place for each in share.accounts.values() if each.place < first.place), default=0.0)
    return 0.0 if first.place - before < LEAST else (before + first.place) / 2.0


def _renumber(share: Share) -> None:
    """Make room between places that have come too near to each other."""
    placed = sorted((each for each in share.accounts.values() if each.place), key=attrgetter("place"))
    for number, account in enumerate(placed, 1):
        account.place = float(number)
    share.entered = float(len(placed) + 1)
    share.standings = [
        (*standing[:2], waiting.place, *standing[3:])
        for standing in share.standings
        if (waiting := standing[4].account) is not None
    ]


def left(flow: Flow, now: float) -> None:
    """Nothing of this tenant waits any more."""
    account = flow.account
    if account is not None and account.flow is flow:
        account.flow = None
        account.left_s = now
        account.spent = max(account.spent, flow.share.round)


def round_of(account: Account, share: Share) -> int:
    """The round in which it is served next: the first in which it has something left."""
    return floor(max(account.spent, share.round - 1.0)) + 1


def is_out_of_turn(long: Ticket) -> bool:
    """Whether a short prompt of another tenant, which is in an earlier round, waits for what this long one would take.

    Ask when those before it were found to fit nowhere: who waits for something else is passed over by then.
    """
    line = long.line
    first: Standing | None = None
    for standing in long.share.standings:
        if line is None or standing[4] is line.lane.flow:
            return line is not None and first is not None and first[:2] < standing[:2]
        if first is None and not standing[3] and not standing[4].passed_over:
            first = standing
    return False


def is_owed(long: Ticket) -> bool:
    """Whether short prompts of all other tenants are rounds ahead of this long one, which waits for a lane.

    Ask as above. Those who came back go first and owe nothing.
    """
    line, mine, least = long.line, 0, inf
    for is_old, round_, _, is_long, flow, _ in long.share.standings:
        if line is not None and flow is line.lane.flow:
            mine = round_
        elif not is_long and not flow.passed_over:
            least = min(least, round_ if is_old else 0)
    return line is not None and mine + LEAD_ROUNDS < least < inf


def charge(share: Share, tenant: str, attempt: Attempt, now: float) -> Flow | None:
    """One of a tenant was dispatched. The flow whose standing that changes; to be told before standings are renewed."""
    _turn(share)
    account = attempt.account = share.account(tenant, now)
    account.spent = max(account.spent, share.round - 1.0) + rounds(account, share.terms, attempt.cost)
    account.running += 1
    return account.flow


def _turn(share: Share) -> None:
    """The round is the lowest of those who wait; among those who are not new that is the first."""
    lowest = inf
    for standing in share.standings:
        if not standing[4].passed_over:
            lowest = min(lowest, standing[1])
            if standing[0]:
                break
    if share.round < lowest < inf:
        share.round = lowest


def settle(share: Share, attempt: Attempt, more: float) -> Flow | None:
    """It is over, and cost so much more than it was charged. The flow whose standing that changes."""
    account, attempt.account = attempt.account, None
    if account is None:
        return None
    account.running -= 1
    if not more:
        return None
    _correct(share, account, rounds(account, share.terms, more))
    return account.flow


def served_elsewhere(share: Share, costs: Iterable[tuple[str, float]], replicas: int) -> Iterator[Flow]:
    """Other replicas have served tenants that much since this one heard of it last. The flows whose standing that changes.

    Only by how much one leads another counts: all have more in each second. What was before a tenant came here counts for
    nothing. All replicas hear of each other at once: if each made up for all of it, together they would do so many times
    over, and back again. So each takes its part of what is left, each time.
    """
    parts: list[tuple[Account, float]] = []
    for tenant, more in costs:
        account = share.accounts.get(tenant)
        if account is not None and account.heard:
            account.elsewhere += rounds(account, share.terms, more)
            part = account.elsewhere / replicas
            account.elsewhere -= part
            parts.append((account, part))
        elif account is not None:
            account.heard = True
    least = min((part for account, part in parts if account.flow is not None), default=0.0)
    for account, part in parts:
        _correct(share, account, part - least)
        if account.flow is not None:
            yield account.flow


def _correct(share: Share, account: Account, more: float) -> None:
    """So many rounds more than was thought, but not so many that it waits for ever."""
    account.spent = min(account.spent + more, max(account.spent, share.round + DEBT_ROUNDS))


def forget(share: Share, now: float) -> None:
    """Drop accounts of those who are away, and owe nothing or owed it long enough."""
    gone = [name for name, account in share.accounts.items() if _is_over(account, share, now)]
    for name in gone:
        del share.accounts[name]


def _is_over(account: Account, share: Share, now: float) -> bool:
    if account.flow is not None or account.running:
        return False
    return now - account.left_s >= (AWAY_S if account.spent <= share.round else DEBT_KEPT_S)
