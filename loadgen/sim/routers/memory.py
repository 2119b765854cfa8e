"""Which prefixes went to one engine: the leading block hashes of its requests, longest unused first out.

Chained hashes make this a tree: a block is known only behind all before it, and each use touches heads after tails,
so a tail is forgotten before its head.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixMemory:
    """At most `capacity` blocks after each `remember` (0: no limit until `shrink`)."""

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._used: OrderedDict[int, float] = OrderedDict()  # hash -> last use, oldest first

    def __len__(self) -> int:
        return len(self._used)

    def known(self, hashes: Sequence[int]) -> int:
        """How many leading blocks are known."""
        used = self._used
        for count, block in enumerate(hashes):
            if block not in used:
                return count
        return len(hashes)

    def last_use(self, block: int) -> float:
        """When this known block was last touched."""
        return self._used[block]

    def remember(self, hashes: Sequence[int], now: float) -> None:
        """The engine got this prompt."""
        used = self._used
        for block in reversed(hashes):
            used[block] = now
            used.move_to_end(block)
        if self._capacity:
            self.shrink(self._capacity)

    def shrink(self, most: int) -> None:
        """Forget the longest unused until at most `most` blocks are left."""
        while len(self._used) > most:
            self._used.popitem(last=False)
