"""Which tenant of a class is served next? Deficit round robin in what requests cost an engine (tenancy.md 6).

In each round a tenant that waits may have a quantum times its weight. Nobody walks through rounds: an account says how
many of them a tenant has used up, and so in which one its head can be paid; the lowest round is served first, inside a
round in the order in which tenants came. What is left of a round is lost when nothing waits any more, what was had
beyond it is not, for a minute.

- Who comes after a round in which it had nothing, or after a second away, is served first until it has had a quantum.
- The account is charged what a request is expected to cost, and corrected when it ends.
- The round of the class is that of the first tenant that waits. One that is passed over (its engine is full, others
  have room) does not hold it up, and comes back with what its head costs and one quantum.
"""

from math import ceil

from policies.state.flows import Flow
from policies.state.shares import Account, Share
from policies.state.tickets import Ticket
from policies.types import Fairness

AWAY_S = 1.0
DEBT_KEPT_S = 60.0
DEBT_ROUNDS = 16.0  # a request that cost more than was thought takes so many rounds at most


def cost(terms: Fairness, uncached: float, cached: float, output: float) -> float:
    """What a request costs an engine, in prompt tokens."""
    if terms.kind == "round_robin":
        return float(terms.quantum)
    return max(1.0, terms.input * uncached + terms.cached * cached + terms.output * output)


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
    account.until = account.spent + 1.0 if is_new else account.spent
    share.entered += 1
    account.place = share.entered
    account.flow = flow
    flow.account = account
    return account


def left(flow: Flow, now: float) -> None:
    """Nothing of this tenant waits any more."""
    account = flow.account
    if account is not None and account.flow is flow:
        account.flow = None
        account.left_s = now
        account.spent = max(account.spent, flow.share.round)


def round_of(account: Account, share: Share, head: Ticket) -> float:
    """The round in which it can pay for this one."""
    takes = rounds(account, share.terms, cost_of(head))
    return ceil(max(account.spent, share.round - takes - 1.0) + takes)


def charge(share: Share, ticket: Ticket, cost: float, now: float) -> Flow | None:
    """It was dispatched. The flow whose standing that changes; to be told before standings are renewed."""
    _turn(share)
    account = share.account(ticket.request.tenant, now)
    takes = rounds(account, share.terms, cost)
    account.spent = max(account.spent, share.round - takes - 1.0) + takes
    account.charged[ticket.request.id] = cost
    return account.flow


def _turn(share: Share) -> None:
    """The round is that of the first who waits."""
    for standing in share.standings:
        if standing[0] and not standing[4].passed_over:
            share.round = max(share.round, standing[1])
            return


def settle(share: Share, ticket: Ticket, actual: float | None) -> Flow | None:
    """It is over, and cost that much; None: what was thought. The flow whose standing that changes."""
    account = share.accounts.get(ticket.request.tenant)
    charged = account.charged.pop(ticket.request.id, None) if account is not None else None
    if account is None or charged is None or actual is None:
        return None
    owed = account.spent + rounds(account, share.terms, actual - charged)
    account.spent = min(owed, max(account.spent, share.round + DEBT_ROUNDS))
    return account.flow


def forget(share: Share, now: float) -> None:
    """Drop accounts of those who are away, and owe nothing or owed it long enough."""
    gone = [name for name, account in share.accounts.items() if _is_over(account, share, now)]
    for name in gone:
        del share.accounts[name]


def _is_over(account: Account, share: Share, now: float) -> bool:
    if account.flow is not None or account.charged:
        return False
    return now - account.left_s >= (AWAY_S if account.spent <= share.round else DEBT_KEPT_S)
