"""What is outstanding where: one account per endpoint, one entry per attempt.

An attempt is entered once, before its bytes go out, and taken out once, whatever ends it and however often that is
reported. So counts are exact, ours, and never negative (llm-d-router#1739). Prefill tokens leave earlier than the
rest: when the first token shows that the engine has computed them.
"""

from policies.state.queues import PoolQueue
from policies.state.views import EndpointView
from policies.types import Endpoint

MARGIN_FROM_SEQS = 64  # scheduling.md 5: engines with fewer places are used to the last one
MARGIN_SEQS = 4
SPEED_SAMPLE_TOKENS = 512  # shorter prompts measure the step, not the speed
SPEED_FULL_WEIGHT_TOKENS = 4096
SPEED_OUTLIER = 8.0  # faster than that was a prefix cache


class Load:
    """One endpoint: its bounds, what is outstanding on it, and how fast it computes prompts (tokens/s)."""

    __slots__ = (
        "attempts",
        "endpoint",
        "first_token_s",
        "kv_tokens",
        "max_prefill_tokens",
        "name",
        "pools",
        "prefill_tokens",
        "room_seqs",
        "sequences",
        "speed",
        "up",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.name = endpoint.name
        self.attempts = 0
        self.sequences = 0
        self.prefill_tokens = 0
        self.kv_tokens = 0
        self.first_token_s = 0.0  # the last one seen here
        self.speed = max(1.0, endpoint.prefill_tokens_per_s)
        self.pools: tuple[PoolQueue, ...] = ()  # the queues it serves; none while it is down
        self.up = False
        self.endpoint = endpoint
        self.bound(endpoint)

    def bound(self, endpoint: Endpoint) -> None:
        """Take new bounds. What was learned stays, unless the operator now says another speed."""
        if endpoint.prefill_tokens_per_s != self.endpoint.prefill_tokens_per_s:
            self.speed = max(1.0, endpoint.prefill_tokens_per_s)
        self.endpoint = endpoint
        self.room_seqs = endpoint.max_seqs - (MARGIN_SEQS if endpoint.max_seqs >= MARGIN_FROM_SEQS else 0)
        self.max_prefill_tokens = endpoint.max_prefill_tokens

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

    def view(self) -> EndpointView:
        return EndpointView(
            name=self.name,
            up=self.up,
            sequences=self.sequences,
            prefill_tokens=self.prefill_tokens,
            max_seqs=self.endpoint.max_seqs,
            max_prefill_tokens=self.max_prefill_tokens,
            kv_tokens=self.kv_tokens,
            prefill_tokens_per_s=self.speed,
        )


class Attempt:
    """One try of one request on one endpoint: what it holds there. Making one enters it."""

    __slots__ = ("answered", "kv_tokens", "load", "number", "prefill_tokens", "sent_s", "sequences")

    def __init__(self, load: Load, number: int, tokens: int, sequences: int, now: float) -> None:
        self.load = load
        self.number = number
        self.prefill_tokens = tokens
        self.sequences = sequences
        self.kv_tokens = tokens  # the prompt's; the answer's share joins with the length predictor
        self.sent_s = now
        self.answered = False  # its first token was seen
        load.attempts += 1
        load.sequences += sequences
        load.prefill_tokens += tokens
        load.kv_tokens += tokens

    def release_prefill(self) -> bool:
        """Take its prompt tokens out of the account. True when they still were in it."""
        tokens = self.prefill_tokens
        self.prefill_tokens = 0
        self.load.prefill_tokens -= tokens
        return tokens > 0

    def close(self) -> None:
        """Take out all it holds. To be called once: the core forgets the attempt in the same breath."""
        load = self.load
        load.attempts -= 1
        load.sequences -= self.sequences
        load.prefill_tokens -= self.prefill_tokens
        load.kv_tokens -= self.kv_tokens
