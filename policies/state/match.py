"""What one request would find where: the answer of the prefix index (prefixes.py).

It knows the few endpoints that hold most; what others hold is found when it is asked for.
"""

from collections.abc import Mapping, Sequence

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

    `holders`: endpoints that hold some of it, deepest first; at most 8, in turn where more hold equally much.
    """

    __slots__ = (
        "_block_tokens",
        "_found",
        "_known",
        "_now",
        "_request",
        "_rest",
        "_slots",
        "_tokens",
        "_warm",
        "holders",
    )

    def __init__(
        self,
        request: InferenceRequest,
        now: float,
        slots: Mapping[str, Slot],
        warm: tuple[Known, int],
        deepest: Sequence[tuple[Slot, int]],
    ) -> None:
        """`warm`: of this stretch of the index the bits of all who hold the first block; `deepest`: the first few of them."""
        self._request = request
        self._now = now
        self._slots = slots
        self._block_tokens = deepest[0][0].holdings.block_tokens if deepest else 0
        self._known, self._warm = warm
        self._rest = self._warm  # those that were not looked at
        self._tokens: dict[int, int] = {}  # by depth
        self._found: dict[str, int] = {}
        for slot, depth in deepest:
            self._rest ^= slot.bit
            self._found[slot.name] = self._fresh_tokens(slot, depth)
        found = self._found
        self.holders = tuple(sorted(filter(found.get, found), key=found.__getitem__, reverse=True))

    def tokens(self, endpoint: str) -> int:
        """Tokens of the prompt that were sent there before and not too long ago; before any trust."""
        known = self._found.get(endpoint)
        if known is not None or not self._warm:
            return known or 0
        slot = self._slots.get(endpoint)
        if slot is None or not slot.bit & self._warm:
            return 0
        known = self._found[endpoint] = self._fresh_tokens(slot, slot.holdings.depth(self._request.prefix))
        return known

    def cached(self, endpoint: str) -> int:
        """Tokens of the prompt that this endpoint will probably not have to compute."""
        tokens = self._found.get(endpoint)
        if tokens is None:
            tokens = self.tokens(endpoint)
        return int(tokens * self._slots[endpoint].belief.trust) if tokens else 0

    def most_tokens(self) -> int:
        """No endpoint has more tokens of the prompt now, nor will one be said to have: cheaper than to ask them all."""
        chain = self._request.prefix
        rest = self._rest & self._known.get(chain[0], 0)
        deepest = self._tokens_to(deepest_of(self._known, chain, len(chain), rest)) if rest else 0
        return max(0, deepest, *self._found.values())

    def _fresh_tokens(self, slot: Slot, depth: int) -> int:
        """Tokens of the first `depth` blocks, as far as they are not too old."""
        now = self._now
        return self._tokens_to(slot.holdings.fresh(self._request.prefix, depth, now - slot.belief.lifetime_s(now)))

    def _tokens_to(self, depth: int) -> int:
        """Tokens of the first `depth` blocks; at least one of the prompt is left to compute."""
        tokens = self._tokens.get(depth)
        if tokens is None:
            tokens = self._tokens[depth] = self._counted(depth)
        return tokens

    def _counted(self, depth: int) -> int:
        request = self._request
        text_bytes = depth_bytes(depth, self._block_tokens)
        if request.text_bytes and request.prompt_tokens:
            tokens = text_bytes * request.prompt_tokens // request.text_bytes
        else:
            tokens = text_bytes // TOKEN_BYTES
        return max(0, min(tokens, request.prompt_tokens - 1))
