"""B4: cache-aware routing over an approximate tree, as in sgl-router, vllm-router and smg (`policies/cache_aware.rs`).

- Imbalanced, if the most and the fewest outstanding requests are more than `gap` apart and the most are more than
  `ratio` times the fewest: the engine with the fewest.
- Otherwise, if more than `threshold` of the prompt matches the tree: the engine that last used the deepest match.
- Otherwise the engine with the smallest tree, which balances prompt tokens; in smg the one with the fewest requests.
- The prompt goes into the chosen engine's tree in any case. Every `evict_s`, each engine's tree loses its longest
  unused leaves beyond `tree_blocks`.
- Ties go to the first engine, as they do there.

The tree there is made of characters, here of 16-token blocks: a match is counted short by less than one block.
"""

from dataclasses import dataclass, replace

from loadgen.sim.router import Job
from loadgen.sim.routers.counting import Blind
from loadgen.sim.routers.memory import PrefixMemory

_BLOCK_TOKENS = 16
_BLOCK_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The options of the router; `tree_blocks` for each engine. `by_tree`: without a match the smallest tree wins."""

    threshold: float
    gap: int
    ratio: float
    evict_s: float
    tree_blocks: int
    by_tree: bool = True


CLI_DEFAULTS = Tuning(threshold=0.3, gap=64, ratio=1.5, evict_s=120.0, tree_blocks=(1 << 26) // _BLOCK_BYTES)
SMG_DEFAULTS = replace(CLI_DEFAULTS, by_tree=False)
STRUCT_DEFAULTS = Tuning(threshold=0.5, gap=32, ratio=1.1, evict_s=30.0, tree_blocks=10_000 // _BLOCK_BYTES)


class CacheAware(Blind):
    """Goes by prefixes while the load is even, by load when it is not."""

    def __init__(self, engines: int, tuning: Tuning) -> None:
        super().__init__(engines)
        self._tuning = tuning
        self._trees = [PrefixMemory() for _ in range(engines)]
        self._evicted_s = 0.0

    def choose(self, job: Job, now: float) -> int:
        """The rules above, in their order."""
        self._evict(now)
        most, fewest = max(self.outstanding), min(self.outstanding)
        imbalanced = most - fewest > self._tuning.gap and most > self._tuning.ratio * fewest
        engine = self.outstanding.index(fewest) if imbalanced else self._by_prefix(job)
        self._trees[engine].remember(job.hashes, now)
        return engine

    def _by_prefix(self, job: Job) -> int:
        known = [tree.known(job.hashes) for tree in self._trees]
        deepest = max(known)
        if deepest * _BLOCK_TOKENS <= self._tuning.threshold * job.prompt_tokens:
            loads = [len(tree) for tree in self._trees] if self._tuning.by_tree else self.outstanding
            return loads.index(min(loads))
        end = job.hashes[deepest - 1]
        holders = [engine for engine, count in enumerate(known) if count == deepest]
        return max(holders, key=lambda engine: self._trees[engine].last_use(end))

    def _evict(self, now: float) -> None:
        if now - self._evicted_s < self._tuning.evict_s:
            return
        self._evicted_s = now
        for tree in self._trees:
            tree.shrink(self._tuning.tree_blocks)
