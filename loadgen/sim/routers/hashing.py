"""B6: consistent hashing with bounded loads, as in KubeAI (`internal/loadbalancer/balance_chwbl.go`).

Each engine stands 256 times on a ring of 64-bit hashes. A request goes to the first engine at or behind the hash of
its key whose load with this request is at most 1.25 times the mean load with it; to the very first one if none is.
The key is the head of the prompt: 100 characters there, which is 25 tokens; here the first full block of 16 tokens,
because that is what is hashed. The second variant takes 4,096 bytes, so 1,024 tokens. A prompt shorter than one
block has no key and goes by its own id; one shorter than the key, by all its full blocks.
"""

from bisect import bisect_left

import xxhash

from loadgen.sim.router import Job
from loadgen.sim.routers.counting import Blind

REPLICAS = 256
LOAD_FACTOR = 1.25
SHORT_KEY_TOKENS = 25
LONG_KEY_TOKENS = 1024
_BLOCK_TOKENS = 16


class BoundedHashing(Blind):
    """Equal heads go to the same engine, as long as it has not too much."""

    def __init__(self, engines: int, key_tokens: int) -> None:
        """`key_tokens` of the prompt's head decide."""
        super().__init__(engines)
        self._blocks = max(1, key_tokens // _BLOCK_TOKENS)
        points = [(_hash(f"engine-{engine}{copy}"), engine) for engine in range(engines) for copy in range(REPLICAS)]
        self._ring = sorted(points)

    def choose(self, job: Job, now: float) -> int:
        """The first engine along the ring that has room."""
        ring = self._ring
        start = bisect_left(ring, (self._key(job), 0)) % len(ring)
        bound = LOAD_FACTOR * (sum(self.outstanding) + 1) / len(self.outstanding)
        for step in range(len(ring)):
            engine = ring[(start + step) % len(ring)][1]
            if self.outstanding[engine] + 1 <= bound or not any(self.outstanding):
                return engine
        return ring[start][1]

    def _key(self, job: Job) -> int:
        if not job.hashes:
            return _hash(job.id)
        return _hash(str(job.hashes[min(self._blocks, len(job.hashes)) - 1]))


def _hash(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode())
