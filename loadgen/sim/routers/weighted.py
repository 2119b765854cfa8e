"""B5: the weighted scorers of llm-d's endpoint picker with their defaults (`pkg/epp/config/loader/defaults.go`).

score = 2 x queue + 2 x free KV + 3 x prefix, the highest wins, ties at random. Queue: 1 for the shortest waiting queue
at the last look, 0 for the longest, in a straight line; 1 if all are equal. Prefix: the share of the prompt's leading
64-token blocks that the engine was sent before, at most 256 of them, out of the 31,250 it used last. Looks at the
engines every 50 ms; an engine not yet seen scores 0 on queue and KV.
"""

from random import Random

from loadgen.sim.router import Job, Seen
from loadgen.sim.routers.counting import Blind, least
from loadgen.sim.routers.memory import PrefixMemory

QUEUE_WEIGHT, KV_WEIGHT, PREFIX_WEIGHT = 2.0, 2.0, 3.0
LRU_BLOCKS = 31_250
MAX_BLOCKS = 256
_EVERY = 4  # of the job's blocks of 16 tokens


class Weighted(Blind):
    """Adds up what speaks for each engine."""

    poll_s = 0.05

    def __init__(self, engines: int, random: Random) -> None:
        super().__init__(engines)
        self._random = random
        self._seen: dict[int, Seen] = {}
        self._memories = [PrefixMemory(LRU_BLOCKS) for _ in range(engines)]

    def choose(self, job: Job, now: float) -> int:
        """The engine with the highest score."""
        blocks = job.hashes[_EVERY - 1 :: _EVERY][:MAX_BLOCKS]
        queues = [seen.waiting for seen in self._seen.values()]
        longest, shortest = max(queues, default=0), min(queues, default=0)
        scores = []
        for engine, memory in enumerate(self._memories):
            prefix = memory.known(blocks) / len(blocks) if blocks else 0.0
            scores.append(PREFIX_WEIGHT * prefix + self._load_score(engine, longest, shortest))
        engine = least([-score for score in scores], self._random)
        self._memories[engine].remember(blocks, now)
        return engine

    def observed(self, engine: int, seen: Seen, now: float) -> None:
        """The last look counts until the next."""
        self._seen[engine] = seen

    def _load_score(self, engine: int, longest: int, shortest: int) -> float:
        seen = self._seen.get(engine)
        if seen is None:
            return 0.0
        queue = (longest - seen.waiting) / (longest - shortest) if longest > shortest else 1.0
        return QUEUE_WEIGHT * queue + KV_WEIGHT * (1.0 - seen.kv_usage)
