"""What a router in the simulator is told, and what it answers: the baselines of scheduling.md 13 speak this.

A router of this kind binds at once: each request goes to the engine it names, in the instant it arrives, and waits
there. `policies.Core` is driven beside it, by its own events, because it may also make a request wait.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, kw_only=True)
class Job:
    """One request as a router may see it: never how long its answer will be.

    `hashes` is the chained hash of each full block of 16 prompt tokens; equal chains are equal prompts up to there.
    """

    id: str
    tenant: str
    priority: str
    arrived_s: float
    prompt_tokens: int
    max_tokens: int
    hashes: tuple[int, ...]
    session: str = ""


@dataclass(slots=True, kw_only=True)
class Seen:
    """An engine's metrics as they were at the scrape: sequences, prompt tokens of those waiting, KV use 0..1."""

    running: int
    waiting: int
    waiting_tokens: int
    kv_usage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a router is told of an engine before anything happens; `kv_tokens` 0: without a limit."""

    kv_tokens: int
    max_seqs: int
    step_tokens: int
    prefill_tokens_per_s: float


class Router(Protocol):
    """Engines are numbered from 0. `poll_s`: how often it looks at their metrics; 0: never."""

    poll_s: float

    def place(self, job: Job, now: float) -> int:
        """The engine for this request."""

    def first_token(self, job: Job, engine: int, now: float) -> None:
        """Its first token came."""

    def finished(self, job: Job, engine: int, now: float) -> None:
        """It ended, well or not; called once for each `place`."""

    def observed(self, engine: int, seen: Seen, now: float) -> None:
        """An engine was looked at."""
