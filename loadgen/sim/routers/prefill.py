"""B8 and B9: routers with exact counts of their own, stronger than any in the field.

B8 `least_prefill` takes the engine with the fewest prompt tokens sent and not yet answered by a first token, whatever
its cache holds. B9 `lmetric` takes the smallest product of prefill and batch (arXiv 2603.15202):
(P + u + 1) x (S + 1), where P are the uncached tokens sent and not yet answered, u those of this request there, S the
requests outstanding there. What is cached it knows from the prompts it sent, the last ones that fit the engine's KV
cache. Ties go to fewer requests, then at random.
"""

from collections.abc import Sequence
from random import Random

from loadgen.sim.router import EngineFacts, Job
from loadgen.sim.routers.counting import Blind, least
from loadgen.sim.routers.memory import PrefixMemory

_BLOCK_TOKENS = 16


class _Prefill(Blind):
    """Counts prefill tokens until the first token, or the end if none came."""

    def __init__(self, engines: int, random: Random) -> None:
        super().__init__(engines)
        self.prefill = [0] * engines
        self._random = random
        self._unanswered: dict[str, int] = {}

    def sent(self, job: Job, engine: int, tokens: int) -> int:
        """Book `tokens` of prefill for the request; returns the engine."""
        self.prefill[engine] += tokens
        self._unanswered[job.id] = tokens
        return engine

    def first_token(self, job: Job, engine: int, now: float) -> None:
        """Its prefill is done."""
        self.prefill[engine] -= self._unanswered.pop(job.id, 0)

    def finished(self, job: Job, engine: int, now: float) -> None:
        """Its prefill is done, or never will be."""
        super().finished(job, engine, now)
        self.first_token(job, engine, now)


class LeastPrefill(_Prefill):
    """B8: fewest prompt tokens without a first token."""

    def choose(self, job: Job, now: float) -> int:
        """An engine with the fewest."""
        loads = list(zip(self.prefill, self.outstanding, strict=True))
        return self.sent(job, least(loads, self._random), job.prompt_tokens)


class Product(_Prefill):
    """B9: prefill to do there, times requests there."""

    def __init__(self, engines: Sequence[EngineFacts], random: Random) -> None:
        super().__init__(len(engines), random)
        self._memories = [PrefixMemory(facts.kv_tokens // _BLOCK_TOKENS) for facts in engines]

    def choose(self, job: Job, now: float) -> int:
        """An engine with the smallest product."""
        most = (job.prompt_tokens - 1) // _BLOCK_TOKENS  # one token is always computed
        uncached = [
            job.prompt_tokens - min(memory.known(job.hashes), most) * _BLOCK_TOKENS for memory in self._memories
        ]
        loads = [
            ((prefill + tokens + 1) * (requests + 1), requests)
            for prefill, tokens, requests in zip(self.prefill, uncached, self.outstanding, strict=True)
        ]
        engine = least(loads, self._random)
        self._memories[engine].remember(job.hashes, now)
        return self.sent(job, engine, uncached[engine])
