"""B7: least token work, as in smg (`policies/least_load.rs`).

score = (prompt tokens waiting at the last look + prompt tokens sent since) / 2,000 tokens/s + 0.15 s x k / (1 - k)
with k the KV use at that look, at most 0.999; the lowest wins, the first of equal ones. An engine not yet seen counts
1,024 tokens for each outstanding request; until any was seen, the fewest outstanding requests win. It looks every
10 s. This is smg's gRPC path, where it knows prompt tokens. On its HTTP path it takes 1,024 for each request, and
engines like vLLM do not say how many tokens wait: `counts_tokens` False.
"""

from loadgen.sim.router import Job, Seen
from loadgen.sim.routers.counting import Blind

TOKENS_PER_S = 2000.0
KV_WEIGHT_S = 0.15
MEAN_TOKENS = 1024
_FULL = 0.999


class LeastLoad(Blind):
    """The engine that should be through with its work first."""

    def __init__(self, engines: int, poll_s: float, *, counts_tokens: bool = True) -> None:
        super().__init__(engines)
        self.poll_s = poll_s
        self._counts_tokens = counts_tokens
        self._seen: dict[int, Seen] = {}
        self._sent_tokens = [0] * engines  # since the last look

    def choose(self, job: Job, now: float) -> int:
        """The engine with the lowest score."""
        scores = [self._score(engine) for engine in range(len(self.outstanding))]
        engine = scores.index(min(scores))
        self._sent_tokens[engine] += job.prompt_tokens if self._counts_tokens else MEAN_TOKENS
        return engine

    def observed(self, engine: int, seen: Seen, now: float) -> None:
        """What was sent before is part of what is seen now."""
        self._seen[engine] = seen
        self._sent_tokens[engine] = 0

    def _score(self, engine: int) -> float:
        seen = self._seen.get(engine)
        if seen is None:
            return self.outstanding[engine] * MEAN_TOKENS / TOKENS_PER_S
        use = min(seen.kv_usage, _FULL)
        waiting = seen.waiting_tokens if self._counts_tokens else 0
        return (waiting + self._sent_tokens[engine]) / TOKENS_PER_S + KV_WEIGHT_S * use / (1 - use)
