"""The prefix index: which endpoint probably has how much of a prompt in its cache already.

A guess from what was sent where, corrected by what engines report; it never holds a request back from anywhere.

1. Block -> bitmask of endpoints. Whoever holds a block holds all before it (lru.py), so the depths at which endpoints
   leave a chain are found by halving: a few look-ups, however long the prompt and however many the endpoints.
2. Bounds: each endpoint to what its KV cache holds and to an even part of `index_bytes`; all together `index_bytes`.
   A part that shrank because endpoints joined is given back as others need it.
3. Known by a stretch of a chain's first block, in dictionaries small enough that none grows for milliseconds.
4. An endpoint that goes is unknown at once; its blocks are swept away bit by bit, and only then is its bit given again.
"""

from typing import Final

from policies.fingerprint import block_at, depth_bytes
from policies.state.belief import Belief
from policies.state.lru import BLOCK_BYTES, RUN_BYTES, SHELF_BYTES, Account, Chain, Holdings, Known, Run, clear, mark
from policies.state.match import Match, Slot, deepest_of
from policies.types import Affinity, InferenceRequest

# One dictionary of 800,000 blocks stops everything for 43 ms when it grows, one of 12,000 for 2 ms.
STRETCHES: Final = 1024
MOST_HOLDERS: Final = 8  # [o]: who scores more than that many warm endpoints gains nothing
SWEEP_BLOCKS: Final = 64  # of endpoints that have gone, at each insert
STALE_RUNS: Final = 2  # looked for at each insert, which makes two at most
EVICTIONS: Final = 64  # at one insert, beyond the blocks it needs


class Prefixes:
    """The index. For other `block_tokens` make a new one: chains of two sizes mean nothing to each other."""

    def __init__(self, affinity: Affinity) -> None:
        self.block_tokens = affinity.block_tokens
        self._affinity = affinity
        self._account = Account()
        self._known: list[Known] = [{} for _ in range(STRETCHES)]
        self._slots: dict[str, Slot] = {}
        self._by_bit: dict[int, Slot] = {}
        self._up = 0  # the bits of all endpoints that are
        self._leaving: list[Slot] = []
        self._free_bits: list[int] = []
        self._turn = 0
        self._part_bytes = affinity.index_bytes  # of each endpoint

    @property
    def used_bytes(self) -> int:
        """Memory of the index, as counted; it does not grow beyond `index_bytes`."""
        return self._account.used_bytes

    def bound(self, affinity: Affinity) -> None:
        """Take other bounds and times. What is known stays; what is too much goes as others come."""
        self._affinity = affinity
        self._share()
        for slot in self._slots.values():
            slot.belief.bound(affinity)

    def up(self, endpoint: str, kv_tokens: int) -> None:
        """An endpoint is there; one that was there keeps what it has. Of `kv_tokens` 0 means unknown."""
        slot = self._slots.get(endpoint)
        if slot is not None:
            slot.belief.resize(kv_tokens)
            return
        bit = self._free_bits.pop() if self._free_bits else 1 << (len(self._slots) + len(self._leaving))
        slot = Slot(endpoint, bit, Holdings(self._account, self.block_tokens), Belief(self._affinity, kv_tokens))
        self._slots[endpoint] = self._by_bit[bit] = slot
        self._up |= bit
        self._share()

    def down(self, endpoint: str) -> None:
        """An endpoint is gone, restarted or has another model: it holds nothing any more."""
        slot = self._slots.pop(endpoint, None)
        if slot is not None:
            del self._by_bit[slot.bit]
            self._up &= ~slot.bit
            self._leaving.append(slot)

    def cleared(self, endpoint: str) -> None:
        """An endpoint that is there holds nothing any more, and nothing learned of it counts."""
        slot = self._slots.get(endpoint)
        if slot is not None:
            self.down(endpoint)
            self.up(endpoint, slot.belief.kv_tokens)

    def match(self, request: InferenceRequest, now: float) -> Match:
        """Who holds how much of a prompt. A few look-ups for each of the first few holders, however long it is."""
        chain = request.prefix
        if not chain:
            return Match(request, now, self._slots, {}, 0)
        known = self._known[chain[0] % STRETCHES]
        left = known.get(chain[0], 0) & self._up
        match = Match(request, now, self._slots, known, left)
        depth, looks = len(chain), MOST_HOLDERS
        while left and looks > 0:
            here = known.get(chain[depth - 1], 0) & left
            if not here:  # who asks again is found at once
                depth = deepest_of(known, chain, depth, left)
                here = known[chain[depth - 1]] & left
            for slot in self._some(here, looks):
                match.look(slot, depth)
                looks -= 1
            left &= ~here
        return match

    def insert(self, endpoint: str, request: InferenceRequest, now: float) -> None:
        """The request goes to this endpoint, which will hold its prompt. A burst finds its leader so."""
        slot, chain = self._slots.get(endpoint), request.prefix
        if slot is None or not chain:
            return
        holdings = slot.holdings
        depth = holdings.depth(chain)
        cut = holdings.use(chain, depth, now)
        if depth == len(chain) and not cut and not self._leaving:
            return  # nothing has become more
        self._forget_stale(slot, now)
        end = self._room(slot, chain, depth, now)
        if depth < end:
            known = self._known[chain[0] % STRETCHES]
            holdings.add(request.tenant, chain[:end], depth, known, now)
            mark(known, chain[depth:end], slot.bit)
        if self._leaving:
            self.sweep(SWEEP_BLOCKS)

    def confirm(self, endpoint: str, request: InferenceRequest, now: float) -> None:
        """The request ended there: until now the engine has surely had its prompt."""
        slot, chain = self._slots.get(endpoint), request.prefix
        if slot is not None and chain:
            holdings = slot.holdings
            holdings.renew(chain, holdings.depth(chain), now)

    def remove(self, endpoint: str, request: InferenceRequest) -> None:
        """The request came back from there without having been served: what only it had brought is not there."""
        slot = self._slots.get(endpoint)
        run = slot.holdings.own_end(request.prefix) if slot is not None and request.prefix else None
        if slot is not None and run is not None:
            self._drop(slot, run, len(run.blocks))

    def reported(self, endpoint: str, matched_tokens: int, cached_tokens: int) -> None:
        """The engine says how much it had of a prompt of which `Match.tokens` were found. Not for engines that do not say."""
        slot = self._slots.get(endpoint)
        if slot is not None:
            slot.belief.reported(matched_tokens, cached_tokens)

    def used(self, endpoint: str, tokens: int, now: float) -> None:
        """So many tokens, uncached or generated, entered the endpoint's cache."""
        slot = self._slots.get(endpoint)
        if slot is not None:
            slot.belief.used(tokens, now)

    def turned(self, endpoint: str, stored_tokens: int, removed_tokens: int, now: float) -> None:
        """The engine says how many tokens entered and left its cache."""
        slot = self._slots.get(endpoint)
        if slot is not None:
            slot.belief.turned(stored_tokens, removed_tokens, now)

    def sweep(self, blocks: int) -> bool:
        """Forget so many blocks of endpoints that are gone; whether there are more. For a timer too."""
        while self._leaving and blocks > 0:
            slot = self._leaving[-1]
            run = slot.holdings.first()
            if run is not None:
                blocks -= self._drop(slot, run, blocks)
            else:
                self._free_bits.append(slot.bit)
                self._leaving.pop()
                self._share()
        return bool(self._leaving)

    def _some(self, bits: int, most: int) -> list[Slot]:
        """At most so many endpoints of these bits; of more, each time others, so that no place in the list is better."""
        only = self._by_bit.get(bits)
        if only is not None:
            return [only]
        if bits.bit_count() > most:
            self._turn = (self._turn + 1) % bits.bit_length()
            low = bits & ((1 << self._turn) - 1)
            slots = self._lowest(bits ^ low, most)
            return slots if len(slots) == most else slots + self._lowest(low, most - len(slots))
        return self._lowest(bits, most)

    def _lowest(self, bits: int, most: int) -> list[Slot]:
        slots: list[Slot] = []
        while bits and len(slots) < most:
            bit = bits & -bits
            slots.append(self._by_bit[bit])
            bits ^= bit
        return slots

    def _share(self) -> None:
        self._part_bytes = self._affinity.index_bytes // max(1, len(self._slots) + len(self._leaving))

    def _reach(self, slot: Slot) -> int:
        """The longest chain that fits an endpoint's bounds alone."""
        blocks = (self._part_bytes - RUN_BYTES - SHELF_BYTES) // BLOCK_BYTES
        text_bytes = slot.belief.text_bytes
        return max(0, blocks if text_bytes is None else min(blocks, block_at(text_bytes, self.block_tokens)))

    def _room(self, slot: Slot, chain: Chain, depth: int, now: float) -> int:
        """Make room for a chain of which `depth` blocks are held. Returns how far it may be held."""
        end = len(chain)
        if depth < end:
            end = max(depth, min(end, self._reach(slot)))
        for _ in range(EVICTIONS + end - depth):
            giver, blocks = self._giver(slot, depth, end)
            if giver is None:
                return end
            run = giver.holdings.first(now)
            if run is not None and giver is slot and run.start < depth < end and chain[run.start] == run.blocks[0]:
                end = max(depth, end - blocks)  # nothing is older than its own beginning
            elif run is not None:
                self._drop(giver, run, blocks)
        return depth

    def _giver(self, slot: Slot, depth: int, end: int) -> tuple[Slot | None, int]:
        """Who must give how many blocks before this endpoint takes these: itself, one that has too much, or nobody."""
        more_bytes = (end - depth) * BLOCK_BYTES + RUN_BYTES + SHELF_BYTES if depth < end else 0
        over_bytes = slot.holdings.used_bytes + more_bytes - self._part_bytes
        if over_bytes > 0:
            return slot, -(-over_bytes // BLOCK_BYTES)
        text_bytes = slot.belief.text_bytes
        if text_bytes is not None:
            more_text = depth_bytes(end, self.block_tokens) - depth_bytes(depth, self.block_tokens)
            over_text = slot.holdings.text_bytes + more_text - text_bytes
            if over_text > 0:
                return slot, -(-over_text // depth_bytes(1, self.block_tokens))
        over_bytes = self._account.used_bytes + more_bytes - self._affinity.index_bytes
        if over_bytes > 0:
            most = max((*self._slots.values(), *self._leaving), key=lambda other: other.holdings.used_bytes)
            return most, -(-over_bytes // BLOCK_BYTES)
        return None, 0

    def _forget_stale(self, slot: Slot, now: float) -> None:
        before_s = now - slot.belief.lifetime_s(now)
        for _ in range(STALE_RUNS):
            run = slot.holdings.stale(before_s)
            if run is not None:
                self._drop(slot, run, len(run.blocks))

    @staticmethod
    def _drop(slot: Slot, run: Run, most: int) -> int:
        blocks = slot.holdings.drop(run, most)
        clear(run.known, blocks, slot.bit)
        return len(blocks)
