"""What became of one request, and whether that was good enough.

Times are seconds since the start of the run, on one monotonic clock. Latency counts from the intended arrival, never
from the moment the client got round to sending (loadgen.md 6.1): a client that is late makes the system look worse,
not better.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from operator import sub
from typing import Annotated

import msgspec


class Outcome(StrEnum):
    """How a request ended; closed (loadgen.md 6.2)."""

    OK = "ok"
    REJECTED_QUOTA = "rejected_quota"
    REJECTED_CAPACITY = "rejected_capacity"
    ERROR_STATUS = "error_status"
    ERROR_CONNECT = "error_connect"
    ERROR_PROTOCOL = "error_protocol"
    ERROR_STREAM = "error_stream"  # an error event inside a stream that began with 200
    TRUNCATED = "truncated"  # ended without finish reason or end marker
    TIMEOUT = "timeout"
    DROPPED = "dropped"  # not sent: the client's own cap on open requests
    UNFINISHED = "unfinished"  # still open when the drain ended
    CANCELLED = "cancelled"  # the schedule had the client leave


REJECTED = (Outcome.REJECTED_QUOTA, Outcome.REJECTED_CAPACITY)


class TtftLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time to first token: `base_ms`, and `per_token_ms` for each planned prompt token beyond `free_tokens`."""

    base_ms: float
    per_token_ms: float = 0.0
    free_tokens: int = 0


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a good answer, all of them inclusive: first token, largest pause, mean time per later token.

    `e2e_ms` is the limit of the whole answer (None: no such limit), and the only one of an answer that is not
    streamed. `target` is the share of requests that has to be good.
    """

    ttft: TtftLimit
    tpot_ms: float
    stall_ms: float
    e2e_ms: float | None = None
    target: float = 0.95

    def ttft_limit_ms(self, input_tokens: int) -> float:
        """By the planned prompt length, cached or not: a poor cache must not loosen its own limit."""
        beyond = max(0, input_tokens - self.ttft.free_tokens)
        return self.ttft.base_ms + self.ttft.per_token_ms * beyond

    def missed(self, sample: "Sample") -> tuple[str, ...]:
        """Names of the limits this answer misses; () for a good one. Undefined values miss nothing but `ttft`."""
        return tuple(name for name, used in self.used(sample) if used > 1.0)

    def used(self, sample: "Sample") -> Iterator[tuple[str, float]]:
        """What the answer took of each limit that binds it: 1.0 is the limit itself, inf a first token never seen."""
        return self.used_of(sample, sample.ttft_ms, sample.tpot_ms, sample.stall_ms)

    def used_of(
        self, sample: "Sample", ttft_ms: float | None, tpot_ms: float | None, stall_ms: float | None
    ) -> Iterator[tuple[str, float]]:
        """The same, by whoever has its times already: the largest pause of a long answer takes a while to find."""
        if sample.streamed:
            yield "ttft", _share(ttft_ms, self.ttft_limit_ms(sample.input_tokens), math.inf)
            yield "tpot", _share(tpot_ms, self.tpot_ms, 0.0)
            yield "stall", _share(stall_ms, self.stall_ms, 0.0)
        if self.e2e_ms is not None:
            yield "e2e", sample.e2e_ms / self.e2e_ms


Price = Annotated[float, msgspec.Meta(ge=0, le=100)]


class TokenCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a token costs an engine, roughly: of a prompt, of the part of it that a cache knew, of an answer.

    Names and defaults are those of the gateway's `admission.fairness`.
    """

    input: Price = 1.0
    cached: Price = 0.1
    output: Price = 2.0


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """A try of a request that its client did not leave it at."""

    sent_s: float
    end_s: float
    status: int
    outcome: Outcome
    reason: str


class Sample(msgspec.Struct, kw_only=True, gc=False):
    """One request, filled in as it goes; 0.0 = never happened.

    There may be a million: it holds nothing that could hold it, so the garbage collector need not know of it, and equal
    times and names in it are one object.
    `sent_s` is of the first try. `reads` are the times of reads that carried tokens, `read_tokens` how many token-bearing events each had
    (empty: one each, as almost always).
    `pool`, `gateway_class`, `endpoint`, `attempts` and `queued_s` are what the gateway says in its headers, or what a simulation knows.
    """

    id: int
    tenant: str
    priority: str
    measured: bool
    input_tokens: int
    planned_output: int
    leaves: bool  # the schedule lets the client leave early
    sched_s: float
    sent_s: float = 0.0
    head_s: float = 0.0
    byte_s: float = 0.0  # first byte of the body
    content_s: float = 0.0  # first token that is not reasoning
    end_s: float = 0.0
    reads: "array[float] | tuple[float, ...]" = ()  # an array of one takes twice as much
    read_tokens: Sequence[int] = ()
    token_events: int = 0
    outcome: Outcome = Outcome.UNFINISHED
    status: int = 0
    reason: str = ""
    request_id: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None  # from usage
    cls: str = ""
    session: str = ""
    turn: int = 0
    streamed: bool = True
    tries: int = 1  # of this client
    earlier: tuple[Try, ...] = ()  # all but the last
    worker: int = 0  # the process that sent it
    pool: str = ""
    gateway_class: str = ""  # that in which the gateway served it
    endpoint: str = ""
    attempts: int = 0  # of the gateway
    queued_s: float = 0.0  # in the gateway, before it went to an engine
    ideal_tokens: int = 0  # of the prompt, that an unlimited cache would have held

    @property
    def counted_ideal_tokens(self) -> float:
        """`ideal_tokens` as the server counts: plans are in tokens of the simulated engine, a tokenizer may take more."""
        longer = (self.prompt_tokens or self.input_tokens) / self.input_tokens if self.input_tokens else 1.0
        return self.ideal_tokens * longer

    @property
    def tokens(self) -> int:
        """Output tokens: what usage says, else token-bearing events counted."""
        return self.token_events if self.output_tokens is None else self.output_tokens

    @property
    def lag_ms(self) -> float:
        """How late the client sent it."""
        return (self.sent_s - self.sched_s) * 1000

    @property
    def ttft_ms(self) -> float | None:
        """First token, from the intended arrival."""
        return (self.reads[0] - self.sched_s) * 1000 if self.reads and self.streamed else None

    @property
    def ttfb_ms(self) -> float | None:
        """First byte of the body, from the intended arrival."""
        return (self.byte_s - self.sched_s) * 1000 if self.byte_s else None

    @property
    def ttfo_ms(self) -> float | None:
        """First token that is not reasoning, from the intended arrival."""
        return (self.content_s - self.sched_s) * 1000 if self.content_s and self.streamed else None

    @property
    def e2e_ms(self) -> float:
        """The whole answer, from the intended arrival to its last token."""
        return ((self.reads[-1] if self.reads else self.end_s) - self.sched_s) * 1000

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per token after the first."""
        if len(self.reads) < 2 or self.tokens < 2:
            return None
        return (self.reads[-1] - self.reads[0]) * 1000 / (self.tokens - 1)

    @property
    def stall_ms(self) -> float | None:
        """The largest gap between tokens."""
        return max(map(sub, self.reads[1:], self.reads)) * 1000 if len(self.reads) > 1 else None

    def gaps_ms(self) -> Iterator[float]:
        """Gaps between reads that carried tokens."""
        return ((later - earlier) * 1000 for earlier, later in pairwise(self.reads))

    def tokens_between(self, start_s: float, end_s: float) -> float:
        """Output tokens received in [start_s, end_s); tokens are spread evenly over the reads."""
        if not self.reads:
            return 0.0
        inside = bisect_left(self.reads, end_s) - bisect_left(self.reads, start_s)
        return self.tokens * inside / len(self.reads)


def _share(value: float | None, limit: float, undefined: float) -> float:
    return undefined if value is None else value / limit
