"""What must hold after every event, as code. Everything is counted again, one by one, from the live requests."""

from collections import Counter
from collections.abc import Iterable, Mapping

from policies.state import flows, timers
from policies.state.books import Books
from policies.state.claims import Account, Slots
from policies.state.flows import Lane, Line
from policies.state.ledger import Load
from policies.state.meters import Meter, Rule
from policies.state.queues import PoolQueue
from policies.state.shares import Share, look


class InvariantError(Exception):
    """The books do not add up: a bug of the core, or of a driver that breaks its contract."""


def audit(books: Books) -> None:
    """Raise InvariantError, naming what is wrong."""
    _requests(books)
    for pool in books.pools.values():
        _queue(books, pool)
    _equal("queued by pool", sum(pool.queued for pool in books.pools.values()), books.queued)
    _endpoints(books)
    _timers(books)


def _equal(what: str, seen: object, booked: object) -> None:
    if seen != booked:
        raise InvariantError(f"{what}: counted {seen}, booked {booked}")


def _requests(books: Books) -> None:
    queued = [ticket for ticket in books.tickets.values() if ticket.line is not None]
    flying = sum(ticket.attempt is not None for ticket in books.tickets.values())
    _equal("live requests, each queued or in flight", len(queued) + flying, len(books.tickets))
    _equal("queued", len(queued), books.queued)
    _equal("queued in their tenant's partition", sum(books.belongs(ticket) for ticket in queued), len(queued))
    _equal("queued bytes", sum(ticket.request.body_bytes for ticket in queued), books.queued_bytes)
    in_band = {band: len(waiting) for band, waiting in books.queued_in_band.items() if waiting}
    _equal("queued by band", dict(Counter(ticket.band.name for ticket in queued)), in_band)
    if not all(ticket in books.queued_in_band[ticket.band.name] for ticket in queued):
        raise InvariantError("one that waits is not known in its band")
    totals = books.totals()
    ended = totals.completed + totals.rejected + totals.expired + totals.cancelled + totals.failed
    _equal("received (C1)", ended + len(queued) + flying + len(books.parked), totals.received)
    for request_id, parked in books.parked.items():
        if request_id in books.tickets or not parked.timer:
            raise InvariantError(f"request {request_id} is parked without a timer, or has a ticket")


def _queue(books: Books, pool: PoolQueue) -> None:
    waiting = [ticket for ticket in books.tickets.values() if ticket.line is not None and ticket.pool is pool]
    _equal(f"pool {pool.name} queued", len(waiting), pool.queued)
    _equal(f"pool {pool.name} bytes", sum(ticket.request.body_bytes for ticket in waiting), pool.queued_bytes)
    _equal(f"pool {pool.name} tokens", sum(ticket.weight for ticket in waiting), pool.queued_tokens)
    _equal(
        f"pool {pool.name} lanes",
        [sum(ticket.long is lane for ticket in waiting) for lane in (False, True)],
        pool.queued_in_lane,
    )
    held = (dict(Counter(each.only for each in waiting if each.only and each.long is long)) for long in (False, True))
    _equal(f"pool {pool.name} held", tuple(held), pool.held)
    ahead = Counter[tuple[int, bool]]()
    for ticket in waiting:
        ahead[ticket.band.rank, ticket.long] += ticket.weight
    _equal(
        f"pool {pool.name} tokens by rank",
        dict(+ahead),
        {key: tokens for key, tokens in pool.tokens_of.items() if tokens},
    )
    found = 0
    for key, flow in pool.flows.items():
        mine = [ticket for ticket in waiting if (ticket.request.tenant, ticket.band.name) == key]
        _equal(f"flow {key} queued", len(mine), flow.queued)
        _equal(f"flow {key} bytes", sum(ticket.request.body_bytes for ticket in mine), flow.queued_bytes)
        found += sum(_lane(lane) for lane in flow.lanes.values())
    _equal(f"pool {pool.name} in lanes", found, pool.queued)
    _shares(books, pool)
    if pool.rescan or pool.freed:
        raise InvariantError(f"pool {pool.name}: an event ended with endpoints still to look at")


def _shares(books: Books, pool: PoolQueue) -> None:
    for share in pool.ranked:
        run = (
            each for each in books.tickets.values() if each.attempt is not None and pool in each.attempt.load.watchers
        )
        held = sum(each.sequences for each in run if each.share is share)
        _equal(f"{pool.name}, {share.band.name} holds", held, share.held)
        mine = [flow for flow in pool.flows.values() if flow.share is share]
        _equal(f"{pool.name}, tenants waiting in {share.band.name}", len(mine), share.flows)
        known = {id(flow) for flow in mine if flow not in pool.changed}
        for standing in share.standings:
            flow, tickets = standing[4:]
            if id(flow) in known:
                heads = {line.head() for lane in flow.lanes.values() for line in (lane.ready, lane.late) if line}
                lane_heads = {ticket for ticket in heads if ticket is not None and ticket.long is standing[3]}
                _equal(f"{pool.name}, heads of {flow.tenant}", lane_heads, set(tickets))
        _equal(f"{pool.name}, {share.band.name} stands", known, known & {id(each[4]) for each in share.standings})
        _accounts(books, share)
    _equal(f"{pool.name} classes waiting", [each for each in pool.ranked if each.flows], pool.waiting_shares)
    spare, least = pool.spare, look(pool.ranked, pool.room)
    if spare > max(0, least):
        raise InvariantError(f"pool {pool.name}: {spare} spare, but some class may hold only {least} more")


def _accounts(books: Books, share: Share) -> None:
    charged = Counter(
        id(each.attempt.account) for each in books.tickets.values() if each.attempt is not None and each.attempt.account
    )
    for name, account in share.accounts.items():
        _equal(f"requests that {name} was charged with", charged[id(account)], account.running)
        if account.flow is not None and account.flow.account is not account:
            raise InvariantError(f"the account of {name} is of another flow")


def _lane(lane: Lane) -> int:
    if not lane.ready and not lane.late:
        raise InvariantError("a lane is empty")
    for _, ticket in (*lane.ready.heap, *lane.late.heap):
        if ticket.line in (lane.ready, lane.late):
            _equal(f"lane of {ticket.request.id}", (ticket.long, ticket.tried, ticket.only, ticket.own_lane), lane.key)
    return _line(lane.ready) + _line(lane.late)


def _line(line: Line) -> int:
    living = [ticket for _, ticket in line.heap if ticket.line is line]
    _equal("dead in a line", len(line.heap) - len(living), line.dead)
    if line.heap and line.heap[0][1].line is not line:
        raise InvariantError("the head of a line is dead")
    if line.dead > flows.DEAD_MIN and line.dead * 2 > len(line.heap):
        raise InvariantError(f"a line keeps {line.dead} dead of {len(line.heap)}")
    return len(living)


def _endpoints(books: Books) -> None:
    held: dict[str, list[int]] = {name: [0] * 6 for name in books.loads}
    for ticket in books.tickets.values():
        attempt = ticket.attempt
        if attempt is None:
            continue
        if books.loads.get(attempt.load.name) is not attempt.load:
            raise InvariantError(f"request {ticket.request.id} is on {attempt.load.name}, which is forgotten")
        mine = held[attempt.load.name]
        longs = (1, attempt.prefill_tokens) if attempt.long else (0, 0)
        for place, value in enumerate((1, attempt.sequences, attempt.prefill_tokens, attempt.kv_tokens, *longs)):
            mine[place] += value
    for name, load in books.loads.items():
        booked = [load.attempts, load.sequences, load.prefill_tokens, load.kv_tokens, load.longs, load.long_tokens]
        _equal(f"endpoint {name}", held[name], booked)
        _known_where_it_serves(books, load)


def _known_where_it_serves(books: Books, load: Load) -> None:
    if any(pool.partition != load.endpoint.partition for pool in load.pools):
        raise InvariantError(f"endpoint {load.name} serves another partition than its own")
    if not load.up and not load.attempts:
        raise InvariantError(f"endpoint {load.name} is down and empty, and still known")
    serves = [pool.name for pool in books.pools.values() if load in pool.up]
    _equal(f"pools of {load.name}", serves, [pool.name for pool in books.pools.values() if pool in load.pools])
    if serves and not load.up:
        raise InvariantError(f"endpoint {load.name} is down and still serves {serves}")


def _timers(books: Books) -> None:
    for ticket in books.tickets.values():
        prefilling = ticket.attempt is not None and ticket.attempt.prefill_tokens > 0
        if ticket.only and (ticket.line is None or not books.loads[ticket.only].up):
            raise InvariantError(f"request {ticket.request.id} is held for {ticket.only}, which cannot take it")
        if not ticket.timer and (ticket.line is not None or prefilling):
            raise InvariantError(f"request {ticket.request.id} waits for something without a timer")
    dead = books.timers.count_dead()
    _equal("dead timers", dead, books.timers.dead)
    if dead > timers.DEAD_MIN and dead * 2 > len(books.timers):
        raise InvariantError(f"{dead} dead timers of {len(books.timers)}")


def audit_limits(
    books: Books,
    meters: Iterable[tuple[Rule, Meter]],
    slots: Mapping[tuple[str, str, str], Slots],
    accounts: Mapping[str, Account],
) -> None:
    """Raise InvariantError unless all meters, slots and counts of tenants agree with the live requests (I1, I2)."""
    held = Counter[int]()
    taken = Counter[int]()
    waiting = Counter[int]()
    for ticket in books.tickets.values():
        claim = ticket.claim
        if claim is None:
            continue
        for meter, amount in claim.holdings():
            held[id(meter)] += amount
        for each in claim.terms.slots if ticket.attempt is not None else ():
            taken[id(each)] += 1
        waiting[id(claim.terms.account)] += ticket.line is not None
    for rule, meter in meters:
        _equal(f"meter {rule} holds", held[id(meter)], meter.held)
        if meter.used < 0:
            raise InvariantError(f"meter {rule}: {meter.used} used")
    for name, each in slots.items():
        _equal(f"slots {name} taken", taken[id(each)], each.used)
    for tenant, account in accounts.items():
        _equal(f"waiting of tenant {tenant}", waiting[id(account)], account.queued)
