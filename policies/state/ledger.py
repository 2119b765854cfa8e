"""What is outstanding where: one account per endpoint, one entry per attempt.

An attempt is entered once, before its bytes go out, and taken out once, whatever ends it and however often that is
reported. So counts are exact, ours, and never negative (llm-d-router#1739). Prefill tokens leave earlier than the
rest: when the first token shows that the engine has computed them.

What an engine says of itself corrects these counts and never leads: it adds what is not ours (other gateways, direct
callers), and where its KV cache is fuller than we thought. Replicas of one gateway have a part of every bound each; what
the engine says counts against a part only where it exceeds the parts of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policies.events import LoadObserved
from policies.state.queues import PoolQueue
from policies.state.views import EndpointView
from policies.types import Endpoint

if TYPE_CHECKING:
    from policies.state.shares import Account

MARGIN_FROM_SEQS: Final = 64  # scheduling.md 5: engines with fewer places are used to the last one
MARGIN_SEQS: Final = 4
SPEED_SAMPLE_TOKENS: Final = 512  # shorter prompts measure the step, not the speed
SPEED_FULL_WEIGHT_TOKENS: Final = 4096
SPEED_OUTLIER: Final = 8.0  # faster than that was a prefix cache
STEP_TOKENS: Final = 2048  # of the step that runs when a request comes, at most
FOREIGN_WEIGHT: Final = 0.3  # of the newest sight in the mean of what is not ours
PRESSED_SIGHTS: Final = 3  # with a queue in the engine although we hold back: the bound is too large for it
PRESSED_RATIO: Final = 0.8
EASED_RATIO: Final = 1.05
EASE_EVERY_S: Final = 10.0
STALE_GAPS: Final = 4.0
STALE_GAP_MIN_S: Final = 0.5


class Load:
    """One endpoint: its bounds, what is outstanding on it, and how fast it computes prompts (tokens/s).

    `prefill_tokens` are all of them, `long_tokens` those of long prompts, of which it holds `longs`.
    """

    __slots__ = (
        "attempts",
        "eased_s",
        "endpoint",
        "first_token_s",
        "foreign",
        "gap_s",
        "kv_bound",
        "kv_extra",
        "kv_theirs",
        "kv_tokens",
        "lanes",
        "long_tokens",
        "longs",
        "max_prefill_tokens",
        "name",
        "peak",
        "pools",
        "prefill_tokens",
        "pressed",
        "room_seqs",
        "seen_s",
        "sequences",
        "speed",
        "step_tokens",
        "takes_long",
        "theirs",
        "up",
        "watchers",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.name = endpoint.name
        self.attempts = 0
        self.sequences = 0
        self.prefill_tokens = 0
        self.long_tokens = 0
        self.longs = 0
        self.kv_tokens = 0
        self.first_token_s = 0.0  # the last one seen here
        self.speed = max(1.0, endpoint.prefill_tokens_per_s)
        self.pools: tuple[PoolQueue, ...] = ()  # the queues it serves; none while it is down
        self.watchers: tuple[PoolQueue, ...] = ()  # and those that borrow from them
        self.up = False
        self.foreign = 0.0  # sequences there that are not ours
        self.peak = 0  # most of ours since it was seen last
        self.seen_s = 0.0
        self.gap_s = 0.0  # between the last two times
        self.takes_long = True
        self.kv_extra = 0  # KV tokens in use there beyond ours
        self.pressed = 0
        self.eased_s = 0.0
        self.endpoint = endpoint
        self.bound(endpoint)

    def bound(self, endpoint: Endpoint) -> None:
        """Take new bounds. What was learned stays, unless the operator now says another speed."""
        if endpoint.prefill_tokens_per_s != self.endpoint.prefill_tokens_per_s:
            self.speed = max(1.0, endpoint.prefill_tokens_per_s)
        self.endpoint = endpoint
        room = endpoint.max_seqs - (MARGIN_SEQS if endpoint.max_seqs >= MARGIN_FROM_SEQS else 0)
        self.room_seqs = part(room, endpoint.replicas)
        self.theirs = room - self.room_seqs  # sequences that the other replicas may have there
        self.max_prefill_tokens = self._most_prefill()
        self.let_take_long(self.takes_long)
        self._bound_kv(endpoint.kv_tokens)
        self.step_tokens = min(STEP_TOKENS, endpoint.step_tokens or endpoint.max_prefill_tokens)

    def learn(self, tokens: int, sent_s: float, now: float) -> None:
        """Take the first token of a prompt of `tokens`, sent at `sent_s`, as a measure of speed."""
        took_s = now - max(sent_s, self.first_token_s)
        self.first_token_s = now
        if tokens < SPEED_SAMPLE_TOKENS or took_s <= 0.0:
            return
        sample = tokens / took_s
        # Against the start value too: after one long stall the truth must not look like an outlier for ever.
        if sample <= SPEED_OUTLIER * max(self.speed, self.endpoint.prefill_tokens_per_s):
            self.speed += (sample - self.speed) * min(1.0, tokens / SPEED_FULL_WEIGHT_TOKENS)

    def observe(self, seen: LoadObserved, now: float) -> None:
        """Take what the engine said. Whatever we sent since is in our own counts already."""
        foreign = max(0, seen.running + seen.waiting - max(self.peak, self.sequences) - self.theirs)
        self.foreign += (foreign - self.foreign) * FOREIGN_WEIGHT
        self.peak = self.sequences
        gap_s = now - self.seen_s if self.seen_s else 0.0
        self.gap_s = min(gap_s, STALE_GAPS * max(self.gap_s, STALE_GAP_MIN_S))  # a pause is no new habit
        self.seen_s = now
        total = seen.kv_tokens or self.endpoint.kv_tokens
        if seen.kv_usage is not None and total:
            self._bound_kv(total)
            self.kv_extra = max(0, int(seen.kv_usage * total) - self.kv_tokens - self.kv_theirs)
        self._press(seen.waiting, now)

    def forget_stale_sight(self, now: float) -> bool:
        """Once four looks at it have failed, what it said is not believed any more. True when that makes room."""
        if now - self.seen_s <= STALE_GAPS * max(self.gap_s, STALE_GAP_MIN_S):
            return False
        held = self.foreign > 0.0 or self.kv_extra > 0
        self.foreign = 0.0
        self.kv_extra = 0
        return held

    def let_take_long(self, takes_long: bool) -> None:
        """Whether it may take long prompts from now on; those it has stay."""
        self.takes_long = takes_long
        lanes = self.endpoint.long_lanes
        self.lanes = part(lanes, self.endpoint.replicas) if takes_long and lanes else 0

    def _bound_kv(self, total: int) -> None:
        """Of a KV cache of so many tokens, what is given out here, and what the other replicas may give out.

        All of it: what answers may come to hold together is reserved, and they seldom hold it at the same time.
        """
        self.kv_bound = total // self.endpoint.replicas
        self.kv_theirs = total - self.kv_bound

    def _most_prefill(self) -> int:
        """Our part of the bound, but a whole step: less would leave every step half empty."""
        endpoint = self.endpoint
        step = min(endpoint.max_prefill_tokens, endpoint.step_tokens or STEP_TOKENS)
        return max(step, endpoint.max_prefill_tokens // endpoint.replicas)

    def _press(self, waiting: int, now: float) -> None:
        """An engine that queues what we hold back to a step's worth gets less; later it gets more again."""
        most = self._most_prefill()
        self.pressed = self.pressed + 1 if waiting > 0 and self.prefill_tokens <= self.max_prefill_tokens else 0
        if self.pressed >= PRESSED_SIGHTS:
            self.pressed = 0
            floor = min(most, self.endpoint.step_tokens or most)
            self.max_prefill_tokens = max(floor, int(self.max_prefill_tokens * PRESSED_RATIO))
            self.eased_s = now
        elif self.max_prefill_tokens < most and now - self.eased_s >= EASE_EVERY_S:
            self.max_prefill_tokens = min(most, int(self.max_prefill_tokens * EASED_RATIO) + 1)
            self.eased_s = now

    def view(self) -> EndpointView:
        return EndpointView(
            name=self.name,
            up=self.up,
            sequences=self.sequences,
            prefill_tokens=self.prefill_tokens,
            max_seqs=part(self.endpoint.max_seqs, self.endpoint.replicas),
            max_prefill_tokens=self.max_prefill_tokens,
            kv_tokens=self.kv_tokens,
            prefill_tokens_per_s=self.speed,
        )


def part(bound: int, replicas: int) -> int:
    """What one of so many replicas may use of a bound: an equal part, and one at least."""
    return max(1, bound // replicas)


class Attempt:
    """One try of one request on one endpoint: what it holds there. Making one enters it.

    `tokens` of prompt are to be computed there, as a `long` prompt or not; `kv_tokens` are reserved for prompt and
    answer. `promised_s` is when its first token was expected.
    """

    __slots__ = (
        "account",
        "answered",
        "cached",
        "cost",
        "kv_tokens",
        "load",
        "long",
        "matched",
        "number",
        "prefill_tokens",
        "reestimates",
        "sent_s",
        "sequences",
        "tokens",
    )

    def __init__(self, load: Load, number: int, tokens: int, sequences: int, now: float) -> None:
        self.load = load
        self.number = number
        self.tokens = tokens
        self.prefill_tokens = tokens
        self.sequences = sequences
        self.long = False
        self.cached = 0  # prompt tokens expected in its cache
        self.matched = 0  # those that were sent there before, whatever it has kept
        self.kv_tokens = 0
        self.sent_s = now
        self.answered = False  # its first token was seen
        self.reestimates = 0
        self.cost = 0.0  # that it was taken to have, where somebody counts it
        self.account: Account | None = None  # that was charged with it
        load.attempts += 1
        load.sequences += sequences
        load.prefill_tokens += tokens
        if load.sequences > load.peak:
            load.peak = load.sequences

    def make_long(self) -> None:
        """It takes a long lane."""
        self.long = True
        self.load.longs += 1
        self.load.long_tokens += self.prefill_tokens

    def reserve(self, kv_tokens: int) -> None:
        """Hold that much of the KV cache from now on."""
        self.load.kv_tokens += kv_tokens - self.kv_tokens
        self.kv_tokens = kv_tokens

    def release_prefill(self) -> bool:
        """Take its prompt tokens out of the account. True when they still were in it."""
        tokens = self.prefill_tokens
        load = self.load
        if self.long:
            self.long = False
            load.longs -= 1
            load.long_tokens -= tokens
        self.prefill_tokens = 0
        load.prefill_tokens -= tokens
        return tokens > 0

    def close(self) -> None:
        """Take out all it holds. To be called once: the core forgets the attempt in the same breath."""
        load = self.load
        self.release_prefill()
        load.attempts -= 1
        load.sequences -= self.sequences
        load.kv_tokens -= self.kv_tokens
