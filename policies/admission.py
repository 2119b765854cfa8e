"""Can it be served in time, and is there room for it at all? (scheduling.md 9)

The first token is expected after what waits ahead, what is outstanding on the nearest endpoint, and the request's own
prefill. How far that is off is learned: the margin is the p90 of actual over expected of the last requests, so about
nine of ten arrive within margin x expectation; typically they take `typical` x expectation.

A class that would rather be refused than late (`on_late: reject`) is refused when it would be far too late: who is let
in then makes the next one late (docs/adr/0011-refuse-the-likely-late.md). Refused is before the first byte and never
after.
"""

from math import inf
from typing import Final

from policies.saturation import ahead_tokens, pool_saturation, service_s
from policies.state.forecasts import Forecast
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.types import Settings

OVERHEAD_S: Final = 0.01  # network and HTTP, until the margin has learned better
LIKELY_LATE: Final = 2.5  # times the time left, a typical first token is expected: refused where late is no use
SHED_FROM: Final = 0.7  # of its patience that the wait is expected to take
CODEL_RATIO: Final = 0.25  # of the promised first token is the wait to aim at
CODEL_INTERVAL_S: Final = 1.0


def expected_s(pool: PoolQueue, ticket: Ticket) -> float:
    """Seconds until the first token of a request that starts to wait now."""
    nearest_s, all_per_s, weight, short = inf, 0.0, ticket.weight, not ticket.long
    somewhere = ticket.cached  # some of it is cached, but where?
    for load in pool.up:
        speed = load.speed
        all_per_s += speed
        busy = ahead_tokens(load, short) if load.longs else load.prefill_tokens
        at_best_s = (busy + weight + load.step_tokens) / speed
        if at_best_s < nearest_s:  # what is cached just there costs more to know
            here_s = service_s(load, busy + ticket.uncached(load.name)) if somewhere else at_best_s
            if here_s < nearest_s:
                nearest_s = here_s
    if not all_per_s:
        return inf
    return pool.tokens_ahead(ticket.band.rank, ticket.long) / all_per_s + nearest_s + OVERHEAD_S


def on_late(ticket: Ticket, forecast: Forecast, now: float) -> str:
    """What becomes of a request by when its first token is expected: queue, downgrade or reject."""
    band = ticket.band
    if not band.slo_ttft_s or band.on_late == "queue":
        return "queue"
    left_s = ticket.due_s - now
    if band.on_late == "reject":
        return "reject" if forecast.typical * ticket.ttft_s > LIKELY_LATE * left_s else "queue"
    return "downgrade" if forecast.margin * ticket.ttft_s > left_s else "queue"


def is_shed(ticket: Ticket, settings: Settings, draw: float) -> bool:
    """Whether a sheddable request is refused at once instead of at its timeout. `draw`: 0..1, of the core's generator.

    The curve is over the expected wait, not over how full the endpoints are: with late binding they are full whenever
    anybody waits, and a batch that can wait for five minutes loses nothing by it (docs/adr/0007-shed-by-wait.md).
    """
    if settings.shed == "llmd":
        return draw < min(1.0, 300.0 * pool_saturation(ticket.pool.up) ** 5)
    patience_s = ticket.expires_s - ticket.request.arrived_s
    spent = min(1.0, ticket.ttft_s / patience_s)
    return spent > SHED_FROM and draw < ((spent - SHED_FROM) / (1.0 - SHED_FROM)) ** 2


def left_queue(ticket: Ticket, now: float) -> None:
    """Take the wait of one that leaves the queue of its pool as a sign of how long waits are (CoDel)."""
    target_s = CODEL_RATIO * ticket.band.slo_ttft_s
    if not target_s or (ticket.claim is not None and ticket.claim.waited):
        return  # who has waited for a slot of its own tenant says nothing about the engines
    above = ticket.pool.above_since
    if now - ticket.request.arrived_s < target_s:
        above.pop(ticket.band.name, None)
    else:
        above.setdefault(ticket.band.name, now)


def is_dropped(ticket: Ticket, now: float) -> bool:
    """Whether a waiting request is dropped: its band has waited too long for a while, and it will be late anyway.

    Never where late is better than not at all (`on_late: queue`).
    """
    if ticket.band.on_late == "queue" or (ticket.claim is not None and ticket.claim.waited):
        return False
    since_s = ticket.pool.above_since.get(ticket.band.name)
    if since_s is None or now - since_s < CODEL_INTERVAL_S:
        return False
    old = now - ticket.request.arrived_s > 2 * CODEL_RATIO * ticket.band.slo_ttft_s
    return old and ticket.begin_s < now
