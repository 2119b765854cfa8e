"""What one endpoint is believed to hold, and in which order that is forgotten.

Blocks that came with one request stand in one run, so using a chain again costs a step per earlier request, not one
per block. A run is cut where a later chain leaves it. Each tenant has a shelf with two queues: runs seen once, and
runs seen again, oldest first.

1. **Whole from the start.** Who holds a block holds every block before it. That lets a chain be searched by halves.
   Therefore a chain is used from its end to its start (a start is never older than what stands on it, nor seen less
   often), blocks leave from the end of a run, and all that stands on one first block is on one shelf.
2. The tenant with the most blocks gives, of its runs the oldest; one that was seen again ages four times more slowly.
   Not "never before one seen once": engines forget by age alone, and an index full of what was popular an hour ago
   predicts nothing.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from math import inf
from typing import Final

from policies.fingerprint import depth_bytes

BLOCK_BYTES: Final = 320  # measured at the worst filling of both dictionaries (tests/policies/test_prefixes.py)
RUN_BYTES: Final = 320
SHELF_BYTES: Final = 800
SLOWER: Final = 4.0  # [o] so much more slowly runs age that were seen again
LOOKS: Final = 8  # [o] tenants looked at when one must give: with so few the one with the most is found for certain

Chain = tuple[int, ...]
Known = dict[int, int]
"""Block -> bitmask of the endpoints that hold it."""


class Account:
    """Bytes of all endpoints together."""

    __slots__ = ("used_bytes",)

    def __init__(self) -> None:
        self.used_bytes = 0


class Shelf:
    """What the requests of one tenant have left on one endpoint; no run of it was last used before `oldest_s`."""

    __slots__ = ("again", "blocks", "oldest_s", "once", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.blocks = 0
        self.oldest_s = -inf
        self.once: OrderedDict[Run, None] = OrderedDict()
        self.again: OrderedDict[Run, None] = OrderedDict()

    def first(self, now: float) -> "Run | None":
        """The run whose end is to go first."""
        once, again = next(iter(self.once), None), next(iter(self.again), None)
        if once is None or again is None:
            return once or again
        return again if now - again.used_s > SLOWER * (now - once.used_s) else once

    def stale(self, before_s: float) -> "Run | None":
        """A run last used before then, none of whose followers is left."""
        oldest_s = inf
        for queue in (self.once, self.again):
            run = next(iter(queue), None)
            if run is not None:
                oldest_s = min(oldest_s, run.used_s)
                if run.used_s < before_s:
                    return run
        self.oldest_s = oldest_s
        return None


class Run:
    """Consecutive blocks of one chain, from depth `start` on, all last used at `used_s`; `queue` is one of its shelf's."""

    __slots__ = ("blocks", "known", "queue", "shelf", "start", "used_s")

    def __init__(self, shelf: Shelf, start: int, blocks: Chain, known: Known, used_s: float) -> None:
        self.shelf = shelf
        self.queue = shelf.once
        self.start = start
        self.blocks = blocks
        self.known = known
        self.used_s = used_s

    def end(self) -> int:
        return self.start + len(self.blocks)


class Holdings:
    """The runs of one endpoint. `account` counts its bytes together with those of the others."""

    __slots__ = ("_account", "_most", "_ring", "_runs", "_shelves", "block_tokens", "text_bytes", "used_bytes")

    def __init__(self, account: Account, block_tokens: int) -> None:
        self._account = account
        self.block_tokens = block_tokens
        self._runs: dict[int, Run] = {}
        self._shelves: dict[str, Shelf] = {}
        self._ring: deque[Shelf] = deque()  # the same shelves, to be looked at in turn
        self._most = Shelf("")
        self.text_bytes = 0
        self.used_bytes = 0

    def depth(self, chain: Chain) -> int:
        """How many blocks of this chain are held."""
        runs = self._runs
        if chain[-1] in runs:
            return len(chain)
        if chain[0] not in runs:
            return 0
        return bisect_left(chain, True, key=lambda block: block not in runs)

    def fresh(self, chain: Chain, depth: int, since_s: float) -> int:
        """How many of the first `depth` blocks, all held, were used since then."""
        while depth:
            run = self._runs[chain[depth - 1]]
            if run.used_s >= since_s:
                break
            depth = run.start
        return depth

    def renew(self, chain: Chain, depth: int, now: float) -> None:
        """The first `depth` blocks, all held, are used now."""
        while depth:
            run = self._runs[chain[depth - 1]]
            run.used_s = now
            run.queue.move_to_end(run)
            depth = run.start

    def use(self, chain: Chain, depth: int, now: float) -> bool:
        """The first `depth` blocks, all held, are used now by one more request. True when that took a cut."""
        cut = False
        while depth:
            run = self._runs[chain[depth - 1]]
            if run.start + len(run.blocks) > depth:
                run, cut = self._cut(run, depth), True
            run.used_s = now
            if run.queue is run.shelf.once:
                del run.queue[run]
                run.queue = run.shelf.again
                run.queue[run] = None
            else:
                run.queue.move_to_end(run)
            depth = run.start
        return cut

    def add(self, tenant: str, chain: Chain, depth: int, known: Known, now: float) -> None:
        """Hold this chain from `depth` on; what is before that is held."""
        shelf = self._runs[chain[depth - 1]].shelf if depth else self._shelf(tenant)
        run = Run(shelf, depth, chain[depth:], known, now)
        run.queue[run] = None
        self._hand(run)
        shelf.blocks += len(run.blocks)
        self._text(depth, len(chain), 1)
        self._charge(RUN_BYTES + BLOCK_BYTES * len(run.blocks))

    def drop(self, run: Run, most: int) -> Chain:
        """Forget the last blocks of a run, at most so many; they are returned."""
        keep = max(0, len(run.blocks) - most)
        gone = run.blocks[keep:]
        self._text(run.start + keep, run.end(), -1)
        run.blocks = run.blocks[:keep]
        if not keep:
            del run.queue[run]
        for block in gone:
            del self._runs[block]
        run.shelf.blocks -= len(gone)
        self._charge(-BLOCK_BYTES * len(gone) - (0 if keep else RUN_BYTES))
        return gone

    def first(self, now: float = inf) -> Run | None:
        """The run whose end is to go first: one of the tenant with the most blocks. Without `now` all go some time."""
        looks = 0
        while looks < min(LOOKS, len(self._ring)) or (self._ring and not self._most.blocks):
            shelf = self._look()
            if shelf.blocks > self._most.blocks:
                self._most = shelf
            looks += 1
        return self._most.first(now)

    def stale(self, before_s: float) -> Run | None:
        """A run last used before then, of the tenant whose turn it is; None also when only others have one."""
        if not self._ring:
            return None
        shelf = self._look()
        return shelf.stale(before_s) if shelf.oldest_s < before_s else None

    def own_end(self, chain: Chain) -> Run | None:
        """The run that only the last request with this chain has brought, if there is one."""
        depth = self.depth(chain)
        run = self._runs[chain[depth - 1]] if depth else None
        return run if run is not None and run.queue is run.shelf.once and run.end() == depth else None

    def _look(self) -> Shelf:
        """The next shelf in turn; one that has become empty is put away."""
        shelf = self._ring[0]
        if shelf.blocks:
            self._ring.rotate(-1)
        else:
            self._ring.popleft()
            del self._shelves[shelf.tenant]
            self._charge(-SHELF_BYTES)
        return shelf

    def _shelf(self, tenant: str) -> Shelf:
        shelf = self._shelves.get(tenant)
        if shelf is None:
            shelf = self._shelves[tenant] = Shelf(tenant)
            self._ring.append(shelf)
            self._charge(SHELF_BYTES)
        return shelf

    def _cut(self, run: Run, depth: int) -> Run:
        """Cut a run in two at this depth; the second part keeps its place. Returns the first: two prompts have it now."""
        first = Run(run.shelf, run.start, run.blocks[: depth - run.start], run.known, run.used_s)
        run.blocks = run.blocks[depth - run.start :]
        run.start = depth
        first.queue = run.shelf.again
        first.queue[first] = None
        self._hand(first)
        self._charge(RUN_BYTES)
        return first

    def _hand(self, run: Run) -> None:
        runs = self._runs
        for block in run.blocks:
            runs[block] = run

    def _text(self, start: int, end: int, sign: int) -> None:
        tokens = self.block_tokens
        self.text_bytes += sign * (depth_bytes(end, tokens) - depth_bytes(start, tokens))

    def _charge(self, more_bytes: int) -> None:
        self.used_bytes += more_bytes
        self._account.used_bytes += more_bytes


def mark(known: Known, blocks: Sequence[int], bit: int) -> None:
    """Note that the endpoint of this bit holds these blocks, which follow one another in a chain."""
    before, joined = 0, bit
    for block in blocks:
        mask = known.get(block, 0)
        if mask is not before:  # equal masks are one object as far as possible
            before, joined = mask, mask | bit
        known[block] = joined


def clear(known: Known, blocks: Sequence[int], bit: int) -> None:
    """Note that the endpoint of this bit holds these blocks no longer."""
    before = left = 0
    for block in blocks:
        mask = known[block]
        if mask is not before:
            before, left = mask, mask & ~bit
        if left:
            known[block] = left
        else:
            del known[block]
