"""How many endpoints of a pool take long prompts? As many as their work keeps busy, and all where a split cannot help.

A move only lets an endpoint take long prompts or no more of them, so nothing drains. The number follows the time that
lanes are held, never the number of requests: 12 % of requests can be 70 % of the prompt tokens (scheduling.md 4). As long
prompts come by chance, there are more than are held on average, by one and a half times the root of that (square-root staffing,
Halfin and Whitt 1981). By Erlang's formula one then waits a third of the time it is computed at most. Behind a single lane
that is held seven tenths of the time it would be 2.3 times, beside idle engines.
"""

from collections.abc import Sequence
from math import ceil, sqrt

from policies.state.lanework import LaneWork
from policies.state.ledger import Load
from policies.state.queues import PoolQueue

SPARE_LANES = 1.5  # beyond the lanes held, in roots of their number
MOVE_EVERY_S = 30.0
AGREED_TICKS = 2
SPLIT_FROM = 3  # endpoints
LONG_SHARE_MIN, LONG_SHARE_MAX = 0.1, 0.75  # of the prefill tokens; beyond, too little is short to be worth a split
BUSY_MIN = 0.5  # of what the pool can compute; below, nobody is in anybody's way
HURTS_S, WHOLE_S = 60.0, 300.0  # hurt for so long, a split is taken back, and not tried again for so long


def look_after(pool: PoolQueue, now: float) -> bool:
    """Once a second: watch who waits for whom, and move a lane when it is time. True when one was moved."""
    work, loads = pool.work, _capable(pool)
    if pool.pool.lanes != "auto" or not any(load.takes_long for load in loads):
        return _all_take(loads)  # the latter when those that did have gone
    split = any(not load.takes_long for load in loads)
    blocked = pool.queued_in_lane[False] > 0 and any(load.longs for load in loads)
    idle = (
        split
        and pool.queued_in_lane[True] > 0
        and any(not load.takes_long and not load.prefill_tokens for load in loads)
    )
    work.look(blocked, idle)
    if not work.turn(now):
        return False
    if split and _hurts(work, now):
        work.changed_s = now + WHOLE_S
        work.moves += 1
        return _all_take(loads)
    return now >= work.changed_s and _move(work, loads, now)


def _capable(pool: PoolQueue) -> list[Load]:
    return [load for load in pool.up if load.endpoint.long_lanes]


def _all_take(loads: Sequence[Load]) -> bool:
    changed = [load for load in loads if not load.takes_long]
    for load in changed:
        load.let_take_long(True)
    return bool(changed)


def _hurts(work: LaneWork, now: float) -> bool:
    """Whether for a minute long prompts have waited beside idle endpoints more than short ones behind long ones."""
    if work.idle_s <= work.blocked_s:
        work.hurts_since_s = None
        return False
    if work.hurts_since_s is None:
        work.hurts_since_s = now
    return now - work.hurts_since_s >= HURTS_S


def wanted(work: LaneWork, loads: Sequence[Load]) -> int:
    """How many endpoints should take long prompts."""
    everybody = len(loads)
    if everybody < SPLIT_FROM or not LONG_SHARE_MIN <= work.long_share <= LONG_SHARE_MAX:
        return everybody
    capped = all(load.endpoint.long_prefill_cap for load in loads)
    if capped and work.tokens_per_s < BUSY_MIN * sum(load.speed for load in loads):
        return everybody
    return min(everybody, max(1, ceil(work.lanes_held + SPARE_LANES * sqrt(work.lanes_held))))


def _move(work: LaneWork, loads: Sequence[Load], now: float) -> bool:
    """One endpoint more or fewer, when two ticks in a row have asked for it."""
    more = wanted(work, loads) - sum(load.takes_long for load in loads)
    if not more:
        work.agreed = 0
        return False
    work.agreed = max(0, work.agreed) + 1 if more > 0 else min(0, work.agreed) - 1
    if abs(work.agreed) < AGREED_TICKS:
        return False
    work.agreed = 0
    work.changed_s = now + MOVE_EVERY_S
    work.moves += 1
    candidates = [load for load in loads if load.takes_long is (more < 0)]
    moved = candidates[0] if more > 0 else min(candidates, key=lambda load: load.longs)
    moved.let_take_long(more > 0)
    return True
