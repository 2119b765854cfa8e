"""The paged KV cache of one engine: who holds which block, which text a block holds, what is evicted next.

Rules (vLLM's `block_pool.py`):
- A block is untouched, or referenced by at least one sequence, or idle. Idle blocks keep their text until they are
  taken for something else, oldest first, and count as free.
- Only full blocks have an identity: the chained hash of all text up to their end. Equal blocks are not merged.
- A sequence's blocks are given back tail first, so a prompt's head outlives its tail.
"""

from collections import OrderedDict
from collections.abc import Sequence


class InvariantError(Exception):
    """The model contradicts itself."""


class KvCache:
    """`total` blocks; the caller checks `free` before it takes any."""

    __slots__ = ("_hashes", "_holders", "_idle", "_referenced", "_refs", "_twins", "_withheld", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._refs: list[int] = []  # by block; as long as blocks have been touched
        self._hashes: list[int | None] = []
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._holders: dict[int, int] = {}  # hash -> the block that is found
        self._twins: dict[int, list[int]] = {}  # hash -> further blocks with that text
        self._referenced = 0
        self._withheld: list[int] = []

    @property
    def referenced(self) -> int:
        """Blocks some sequence holds."""
        return self._referenced

    @property
    def free(self) -> int:
        """Blocks that can be taken: idle and untouched ones."""
        return self.total - self._referenced

    @property
    def cached(self) -> int:
        """Distinct full blocks that a lookup can find."""
        return len(self._holders)

    def match(self, hashes: Sequence[int], limit: int) -> list[int]:
        """The blocks that hold the longest cached head of `hashes`, at most `limit` of them."""
        holders = self._holders
        found: list[int] = []
        for index in range(min(limit, len(hashes))):
            block = holders.get(hashes[index])
            if block is None:
                break
            found.append(block)
        return found

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` nobody references: to claim them costs a free block each."""
        refs = self._refs
        return [refs[block] for block in blocks].count(0)

    def claim(self, blocks: Sequence[int]) -> None:
        """One more reference on each block."""
        refs = self._refs
        for block in blocks:
            if refs[block] == 0:
                del self._idle[block]
                self._referenced += 1
            refs[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` blank blocks, untouched ones first, then the longest idle, whose text is forgotten."""
        refs, hashes, idle = self._refs, self._hashes, self._idle
        start = len(refs)
        fresh = min(count, self.total - start)
        taken = list(range(start, start + fresh))
        refs += [1] * fresh
        hashes += [None] * fresh
        for _ in range(count - fresh):
            block = idle.popitem(last=False)[0]
            if hashes[block] is not None:
                self._forget(block)
            refs[block] = 1
            taken.append(block)
        self._referenced += count
        return taken

    def publish(self, block: int, text: int) -> None:
        """From now on a lookup of the hash `text` can find this full block."""
        self._hashes[block] = text
        if self._holders.setdefault(text, block) != block:
            self._twins.setdefault(text, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less on each, tail first."""
        refs, idle = self._refs, self._idle
        freed = 0
        for block in reversed(blocks):
            left = refs[block] - 1
            refs[block] = left
            if left == 0:
                idle[block] = None
                freed += 1
        self._referenced -= freed

    def withhold(self, share: float) -> None:
        """Let this share of all blocks (0..1) be of use to nobody, as far as blocks are free; call it again for the rest."""
        short = int(share * self.total) - len(self._withheld)
        if short > 0:
            self._withheld += self.take(min(short, self.free))
        elif short < 0:
            self.release(self._withheld[short:])
            del self._withheld[short:]

    def clear(self) -> bool:
        """Forget the text of all blocks. While a sequence holds one nothing happens, and this is False (as vLLM's reset)."""
        if self._referenced > len(self._withheld):
            return False
        self._hashes = [None] * len(self._hashes)
        self._holders.clear()
        self._twins.clear()
        return True

    def check(self) -> None:
        """Raise `InvariantError` unless every block is in exactly one state and the table is true."""
        referenced = sum(1 for count in self._refs if count > 0)
        if referenced != self._referenced or self._referenced > self.total:
            raise InvariantError(f"{referenced} blocks referenced, {self._referenced} counted, {self.total} in all")
        if referenced + len(self._idle) != len(self._refs):
            raise InvariantError(f"{referenced} referenced + {len(self._idle)} idle != {len(self._refs)} touched")
        if any(self._refs[block] != 0 for block in self._idle):
            raise InvariantError("a block is both free and referenced")
        if any(self._hashes[block] != text for text, block in self._holders.items()):
            raise InvariantError("the prefix table finds a block with other text")

    def _forget(self, block: int) -> None:
        text = self._hashes[block]
        if text is None:
            return
        self._hashes[block] = None
        twins = self._twins.get(text)
        if self._holders[text] != block:
            if twins is not None:
                twins.remove(block)
        elif twins:
            self._holders[text] = twins.pop(0)
        else:
            del self._holders[text]
        if twins is not None and not twins:
            del self._twins[text]
