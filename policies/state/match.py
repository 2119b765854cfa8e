"""What one request would find where: the answer of the prefix index (prefixes.py).

It knows the few endpoints that hold most; what others hold is found when it is asked for.
"""

from collections.abc import Mapping, Sequence

from policies.fingerprint import TOKEN_BYTES, depth_bytes
from policies.state.belief import Belief
from policies.state.lru import Holdings
from policies.types import InferenceRequest


class Slot:
    """An endpoint in the index."""

    __slots__ = ("belief", "bit", "holdings", "name")

    def __init__(self, name: str, bit: int, holdings: Holdings, belief: Belief) -> None:
        self.name = name
        self.bit = bit
        self.holdings = holdings
        self.belief = belief


class Match:
    """What a request would find at each endpoint. To be asked at once: the next insert may change the answer.

    `holders`: endpoints that hold some of it, deepest first; at most 8, in turn where more hold equally much.
    """

    __slots__ = ("_found", "_now", "_request", "_slots", "_warm", "holders")

    def __init__(
        self,
        request: InferenceRequest,
        now: float,
        slots: Mapping[str, Slot],
        warm: int,
        deepest: Sequence[tuple[Slot, int]],
    ) -> None:
        """`warm`: the bits of all who hold its first block; `deepest`: the first few of them with their depth."""
        self._request = request
        self._now = now
        self._slots = slots
        self._warm = warm
        self._found: dict[str, int] = {}
        found = self._found
        for slot, depth in deepest:
            found[slot.name] = self._fresh_tokens(slot, depth)
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

    def _fresh_tokens(self, slot: Slot, depth: int) -> int:
        """Tokens of the first `depth` blocks, as far as they are not too old; at least one is left to compute."""
        request, now, holdings = self._request, self._now, slot.holdings
        since_s = now - slot.belief.lifetime_s(now)
        text_bytes = depth_bytes(holdings.fresh(request.prefix, depth, since_s), holdings.block_tokens)
        prompt_tokens = request.prompt_tokens
        if request.text_bytes and prompt_tokens:
            tokens = text_bytes * prompt_tokens // request.text_bytes
        else:
            tokens = text_bytes // TOKEN_BYTES
        return max(0, min(tokens, prompt_tokens - 1))
