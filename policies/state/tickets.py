"""A live request in the core's books: where it stands, where it has been, and what is thought of it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Final

from policies.events import Cause
from policies.types import Band, InferenceRequest, Prediction

if TYPE_CHECKING:
    from policies.state.claims import Claim, Terms
    from policies.state.flows import Line
    from policies.state.ledger import Attempt
    from policies.state.match import Match
    from policies.state.queues import PoolQueue
    from policies.state.shares import Share

NOTHING: Final[Mapping[str, int]] = {}


class Ticket:
    """Queued while it has a `line`, in flight while it has an `attempt`; with neither it has ended.

    `order` is its place in the line of arrivals, `key` its place in its line (the least first). It stands in the
    queue until `expires_s` at most. Of an endpoint it takes `tokens` of prompt, less what is cached there, and
    `sequences`. `due_s` is when its class promises the first token; infinite without a promise.
    """

    __slots__ = (
        "attempt",
        "away_s",
        "band",
        "begin_s",
        "cached",
        "causes",
        "claim",
        "due_s",
        "expires_s",
        "hold_s",
        "key",
        "line",
        "long",
        "lost_s",
        "match",
        "matched_s",
        "most_cached",
        "note",
        "only",
        "only_one_has",
        "order",
        "output",
        "own_lane",
        "pool",
        "request",
        "retry_after_s",
        "sequences",
        "share",
        "timer",
        "tokens",
        "tried",
        "ttft_s",
        "weight",
    )

    share: Share  # of its class in its pool; whoever chooses those sets it

    def __init__(self, request: InferenceRequest, pool: PoolQueue, order: int, band: Band) -> None:
        self.request = request
        self.pool = pool
        self.order = order
        self.band = band
        self.expires_s = request.arrived_s + band.queue_timeout_s
        self.away_s = 0.0  # its time on endpoints, which was no time in the queue
        self.tokens = max(0, request.prompt_tokens)
        self.weight = self.tokens  # of it, those not cached anywhere when it arrived: what the queue counts
        self.sequences = max(1, request.sequences)
        self.due_s = inf
        self.begin_s = inf  # when its prefill has to begin for that
        self.key: tuple[float, ...] = (order,)
        self.long = False  # its lane, by the tokens no endpoint has cached
        self.lost_s = inf  # from then on it cannot be in time, and stands behind those that can
        self.match: Match | None = None  # only where some endpoint has some of it
        self.matched_s = 0.0
        self.cached = NOTHING  # tokens of it that endpoints have; of more endpoints the match knows
        self.most_cached = 0  # at the endpoint that has most of it
        self.only_one_has = 0  # so many of those no other endpoint has
        self.output: Prediction | None = None
        self.ttft_s = 0.0  # predicted at arrival, counted from then
        self.only = ""  # the endpoint it waits for, until `hold_s`
        self.hold_s = 0.0
        self.note = ""
        self.claim: Claim | None = None  # what it holds of its tenant's limits
        self.own_lane = ""  # the key, where that has slots of its own: it must not hide other keys
        self.line: Line | None = None
        self.attempt: Attempt | None = None
        self.timer = 0  # number of its valid entry in Timers; 0 = none
        self.tried: tuple[str, ...] = ()  # endpoints it came back from, and why
        self.causes: tuple[Cause, ...] = ()
        self.retry_after_s: float | None = None  # the shortest wait its engines asked for

    def uncached(self, endpoint: str) -> int:
        """Prompt tokens that this endpoint would have to compute."""
        cached = self.cached.get(endpoint)
        if cached is None:
            if self.match is None:
                return self.tokens
            cached = self.match.cached(endpoint)
        left = self.tokens - cached
        return left if left > 0 else min(1, self.tokens)  # the match goes by the driver's estimate of the prompt

    def take_match(self, match: Match, now: float) -> int:
        """Remember who has how much of its prompt cached; the most that anybody has."""
        self.matched_s = now
        expected = match.expected
        most = max(expected.values()) if expected else 0  # `default` would be three times as slow
        if not most:
            self.match, self.cached, self.most_cached, self.only_one_has = None, NOTHING, 0, 0
            return 0
        self.match, self.cached = match, expected
        self.most_cached = min(most, max(0, self.tokens - 1))
        next_most = sorted(expected.values())[-2] if len(expected) > 1 else 0
        self.only_one_has = max(0, self.most_cached - next_most)
        return self.most_cached

    def take_hint(self, endpoint: str, tokens: int) -> int:
        """Take what the last turn of its session left there for cached; those tokens."""
        hint_tokens = max(0, min(tokens, self.tokens - 1))
        self.cached = {endpoint: hint_tokens}
        self.most_cached = self.only_one_has = hint_tokens
        return hint_tokens

    def take_claim(self, claim: Claim, terms: Terms) -> None:
        """This is what it holds; not while it waits."""
        self.claim = claim
        claim.terms = terms
        self.own_lane = terms.lane
        most_s, own_s = self.band.queue_timeout_s, terms.queue_timeout_s
        waits_s = most_s if own_s is None or most_s < own_s else own_s
        self.expires_s = self.request.arrived_s + self.away_s + waits_s

    def was_away(self, seconds: float) -> None:
        """So long it was on an endpoint, from which it has come back."""
        self.away_s += seconds
        self.expires_s += seconds

    def may_use(self, endpoint: str) -> bool:
        """Whether it may go there: it has not come back from it, and does not wait for another."""
        return endpoint == self.only if self.only else endpoint not in self.tried

    def may_follow(self, head: Ticket) -> bool:
        """Whether it may have to wait behind a head that is earlier in turn: in its lane, or as a long prompt of others."""
        if head.long is self.long:
            return True
        return self.long and (head.share is not self.share or head.request.tenant != self.request.tenant)

    def pass_over(self, yes: bool) -> None:
        """Whether what it waits for is nothing that other tenants would have to wait for."""
        if self.line is not None:
            self.line.lane.flow.passed_over = yes

    def came_back(self, endpoint: str, cause: Cause, retry_after_s: float | None) -> None:
        """An attempt ended without an answer."""
        self.tried += (endpoint,)
        self.causes += (cause,)
        if retry_after_s is not None:
            known_s = self.retry_after_s
            self.retry_after_s = retry_after_s if known_s is None else min(known_s, retry_after_s)
