"""What one request would find where: the answer of the prefix index (prefixes.py).

It knows the few endpoints that hold most; what others hold is found when it is asked for.
"""

from collections.abc import Mapping

from policies.fingerprint import TOKEN_BYTES, depth_bytes
from policies.state.belief import Belief
from policies.state.lru import Chain, Holdings, Known
from policies.types import InferenceRequest


class Slot:
    """An endpoint in the index."""

    __slots__ = ("belief", "bit", "holdings", "name")

    def __init__(self, name: str, bit: int, holdings: Holdings, belief: Belief) -> None:
        self.name = name
        self.bit = bit
        self.holdings = holdings
        self.belief = belief


def deepest_of(known: Known, chain: Chain, most: int, bits: int) -> int:
    """How many blocks, at most `most`, the deepest of these endpoints holds; each holds the first one."""
    low, high = 1, most + 1
    middle = most
    while low + 1 < high:
        if known.get(chain[middle - 1], 0) & bits:
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
    return low


class Match:
    """What a request would find at each endpoint. To be asked at once: the next insert may change the answer.

    `expected`: tokens of the prompt that an endpoint will probably not have to compute, of those that were looked at;
    at first the deepest, at most 8, in turn where more hold equally much.
    """

    __slots__ = ("_known", "_now", "_request", "_rest", "_slots", "_tokens", "expected", "found")

    def __init__(
        self, request: InferenceRequest, now: float, slots: Mapping[str, Slot], known: Known, warm: int
    ) -> None:
        """`warm`: in this stretch of the index the bits of all who hold the first block."""
        self._request = request
        self._now = now
        self._slots = slots
        self._known = known
        self._rest = warm  # those that were not looked at
        self._tokens: dict[int, int] = {}  # by depth
        self.found: dict[str, int] = {}  # before any trust
        self.expected: dict[str, int] = {}

    def look(self, slot: Slot, depth: int) -> int:
        """This endpoint holds so many blocks; the tokens of those that are not too old."""
        now, belief = self._now, slot.belief
        tokens = 0
        if depth:
            depth = slot.holdings.fresh(self._request.prefix, depth, now - belief.lifetime_s(now))
            known = self._tokens.get(depth)
            tokens = self._counted(slot, depth) if known is None else known
        self._rest &= ~slot.bit
        self.found[slot.name] = tokens
        self.expected[slot.name] = int(tokens * belief.trust)
        return tokens

    @property
    def holders(self) -> tuple[str, ...]:
        """Endpoints known to hold some of it, deepest first."""
        found = self.found
        return tuple(sorted(filter(found.get, found), key=found.__getitem__, reverse=True))

    def tokens(self, endpoint: str) -> int:
        """Tokens of the prompt that were sent there before and not too long ago; before any trust."""
        known = self.found.get(endpoint)
        if known is not None or not self._rest:
            return known or 0
        slot = self._slots.get(endpoint)
        if slot is None or not slot.bit & self._rest:
            return 0
        return self.look(slot, slot.holdings.depth(self._request.prefix))

    def cached(self, endpoint: str) -> int:
        """Tokens of the prompt that this endpoint will probably not have to compute."""
        if endpoint not in self.expected and self._rest:
            self.tokens(endpoint)
        return self.expected.get(endpoint, 0)

    def most_tokens(self) -> int:
        """No endpoint has more tokens of the prompt now, nor will one be said to have: cheaper than to ask them all."""
        chain = self._request.prefix
        rest = self._rest & self._known.get(chain[0], 0) if self._rest else 0
        most = max(self.found.values(), default=0)
        if not rest:
            return most
        slot = next(iter(self._slots.values()))
        return max(most, self._counted(slot, deepest_of(self._known, chain, len(chain), rest)))

    def _counted(self, slot: Slot, depth: int) -> int:
        """Tokens of the first `depth` blocks; at least one of the prompt is left to compute."""
        request = self._request
        text_bytes = depth_bytes(depth, slot.holdings.block_tokens)
        if request.text_bytes and request.prompt_tokens:
            tokens = text_bytes * request.prompt_tokens // request.text_bytes
        else:
            tokens = text_bytes // TOKEN_BYTES
        tokens = self._tokens[depth] = max(0, min(tokens, request.prompt_tokens - 1))
        return tokens
