"""Where prompts with one beginning go when nobody has it yet, and how many endpoints carry one that is asked often.

1. A head is how a prompt begins: its chain at 4,096 tokens, or what stands before the conversation where it is shorter.
   It names the isolation domain (fingerprint.py), so tenants who share a template do not share a place.
2. Endpoints are ranked for a head by rendezvous hashing: every replica of the gateway ranks alike without talking, and
   an endpoint that comes or goes moves only its own heads.
3. A head with more than 0.3 of the last dispatches is carried by a quarter more endpoints than its share needs.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from math import ceil

from xxhash import xxh3_64_intdigest

from policies.fingerprint import FINE_BYTES, block_at
from policies.types import InferenceRequest

WINDOW = 1024  # dispatches
FEWEST = 128  # [o]: before so many a share means little, and is counted of so many
HOT_SHARE = 0.3
SPARE = 1.25  # the load ratio affinity allows anyway
CHOICES = 2


class Heads:
    """The heads of the last 1,024 dispatches, and the ranking of endpoints for each of them."""

    def __init__(self, block_tokens: int) -> None:
        self._blocks = block_at(FINE_BYTES, block_tokens)
        self._last: deque[int] = deque()
        self._counts: dict[int, int] = {}
        self._ranked: OrderedDict[int, tuple[Sequence[str], tuple[str, ...]]] = OrderedDict()

    def of(self, request: InferenceRequest) -> int:
        """The head of a request; 0: it has none, nothing says that another prompt will begin like it."""
        return request.prefix[self._blocks - 1] if len(request.prefix) >= self._blocks else request.head

    def dispatched(self, head: int) -> None:
        """A request with this head, or none, went out."""
        self._last.append(head)
        self._counts[head] = self._counts.get(head, 0) + 1
        if len(self._last) > WINDOW:
            oldest = self._last.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    def share(self, head: int) -> float:
        """Which part of the last dispatches had this head (0..1)."""
        return self._counts.get(head, 0) / max(FEWEST, len(self._last)) if head else 0.0

    def carriers(self, head: int, endpoints: Sequence[str]) -> tuple[str, ...]:
        """Which of these endpoints are to carry a head: the first of its ranking, or as many as a hot one needs."""
        share = self.share(head)
        count = ceil(share * len(endpoints) * SPARE) if share > HOT_SHARE else 1
        return self._ranking(head, endpoints)[:count] if head else ()

    def cold(self, head: int, endpoints: Sequence[str]) -> tuple[str, ...]:
        """The two of these endpoints between which a prompt with this head is placed when nobody holds it."""
        return self._ranking(head, endpoints)[:CHOICES] if head else ()

    def _ranking(self, head: int, endpoints: Sequence[str]) -> tuple[str, ...]:
        """All of these endpoints, best first, whatever their order; remembered for the last 1,024 heads."""
        found = self._ranked.get(head)
        if found is not None and found[0] == endpoints:
            self._ranked.move_to_end(head)
            return found[1]
        weights = sorted(((xxh3_64_intdigest(name.encode(), head), name) for name in endpoints), reverse=True)
        ranking = tuple(name for _, name in weights)
        self._ranked[head] = (endpoints, ranking)
        self._ranked.move_to_end(head)
        if len(self._ranked) > WINDOW:
            self._ranked.popitem(last=False)
        return ranking
