"""The prefix index: which endpoint probably has how much of a prompt in its cache already.

A guess from what was sent where, corrected by what engines report; it never holds a request back from anywhere.

1. Block -> bitmask of endpoints. Whoever holds a block holds all before it (lru.py), so the depths at which endpoints
   leave a chain are found by halving: a few look-ups, however long the prompt and however many the endpoints.
2. Bounds: each endpoint to what its KV cache holds and to an even part of `index_bytes`; all together `index_bytes`.
   A part that shrank because endpoints joined is given back as others need it.
3. Known by a stretch of a chain's first block, in dictionaries small enough that none grows for milliseconds.
4. An endpoint that goes is unknown at once; its blocks are swept away bit by bit, and only then is its bit given again.
"""

from policies.fingerprint import TOKEN_BYTES, block_at, depth_bytes
from policies.state.belief import Belief
from policies.state.lru import BLOCK_BYTES, RUN_BYTES, SHELF_BYTES, Account, Chain, Holdings, Known, Run, clear, mark
from policies.types import Affinity, InferenceRequest

STRETCHES = 64  # one dictionary of 800,000 blocks stops everything for 43 ms when it grows
MOST_HOLDERS = 8  # [o]: who scores more than that many warm endpoints gains nothing
SWEEP_BLOCKS = 64  # of endpoints that have gone, at each insert
STALE_RUNS = 2  # looked for at each insert, which makes two at most
EVICTIONS = 64  # at one insert, beyond the blocks it needs


class Slot:
    """An endpoint in the index."""

    __slots__ = ("belief", "bit", "holdings", "name")

    def __init__(self, name: str, bit: int, holdings: Holdings, belief: Belief) -> None:
        self.name = name
        self.bit = bit
        self.holdings = holdings
        self.belief = belief


class Match:
    """What one request would find where. To be asked at once: the next insert may change the answer.

    `holders`: endpoints that hold some of it, deepest first; at most 8, in turn where more hold equally much.
    """

    __slots__ = ("_found", "_prefixes", "_request", "_seconds", "_warm", "holders")

    def __init__(self, prefixes: "Prefixes", request: InferenceRequest, now: float) -> None:
        self._prefixes = prefixes
        self._request = request
        self._seconds = now
        self._warm, levels = prefixes.levels(request.prefix)
        self._found = {slot.name: self._tokens(slot, depth) for depth, slots in levels for slot in slots}
        self.holders = tuple(
            sorted((name for name, tokens in self._found.items() if tokens), key=self._found.__getitem__, reverse=True)
        )

    def tokens(self, endpoint: str) -> int:
        """Tokens of the prompt that were sent there before and not too long ago; before any trust."""
        known = self._found.get(endpoint)
        if known is not None or not self._warm:
            return known or 0
        slot = self._prefixes.slot(endpoint)
        if slot is None or not slot.bit & self._warm:
            return 0
        known = self._found[endpoint] = self._tokens(slot, slot.holdings.depth(self._request.prefix))
        return known

    def cached(self, endpoint: str) -> int:
        """Tokens of the prompt that this endpoint will probably not have to compute."""
        tokens = self.tokens(endpoint)
        return int(tokens * self._prefixes.trust(endpoint)) if tokens else 0

    def _tokens(self, slot: Slot, depth: int) -> int:
        request = self._request
        since_s = self._seconds - slot.belief.lifetime_s(self._seconds)
        depth = slot.holdings.fresh(request.prefix, depth, since_s)
        text_bytes = depth_bytes(depth, self._prefixes.block_tokens)
        if request.text_bytes and request.prompt_tokens:
            tokens = text_bytes * request.prompt_tokens // request.text_bytes
        else:
            tokens = text_bytes // TOKEN_BYTES
        return max(0, min(tokens, request.prompt_tokens - 1))


class Prefixes:
    """The index. For other `block_tokens` make a new one: chains of two sizes have no block in common."""

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

    @property
    def used_bytes(self) -> int:
        """Memory of the index, as counted; never more than `index_bytes`."""
        return self._account.used_bytes

    def up(self, endpoint: str, kv_tokens: int) -> None:
        """An endpoint is there; one that was there keeps what it has. Of `kv_tokens` 0 means unknown."""
        slot = self._slots.get(endpoint)
        if slot is not None:
            slot.belief.kv_tokens = kv_tokens
            return
        bit = self._free_bits.pop() if self._free_bits else 1 << (len(self._slots) + len(self._leaving))
        slot = Slot(endpoint, bit, Holdings(self._account, self.block_tokens), Belief(self._affinity, kv_tokens))
        self._slots[endpoint] = self._by_bit[bit] = slot
        self._up |= bit

    def down(self, endpoint: str) -> None:
        """An endpoint is gone, restarted or has another model: it holds nothing any more."""
        slot = self._slots.pop(endpoint, None)
        if slot is not None:
            del self._by_bit[slot.bit]
            self._up &= ~slot.bit
            self._leaving.append(slot)

    def slot(self, endpoint: str) -> Slot | None:
        return self._slots.get(endpoint)

    def trust(self, endpoint: str) -> float:
        """Which part of what it was sent this endpoint still had, by its own reports (0..1)."""
        slot = self._slots.get(endpoint)
        return slot.belief.trust if slot is not None else 0.0

    def match(self, request: InferenceRequest, now: float) -> Match:
        """Who holds how much of a prompt. O(log blocks) for each of the first few holders."""
        return Match(self, request, now)

    def levels(self, chain: Chain) -> tuple[int, list[tuple[int, list[Slot]]]]:
        """The bits of all who hold the first block; and the first few holders by depth in blocks, deepest first."""
        known = self._stretch(chain)
        warm = known.get(chain[0], 0) & self._up if chain else 0
        levels: list[tuple[int, list[Slot]]] = []
        left, depth, room = warm, len(chain), MOST_HOLDERS
        while left and room > 0:
            depth = self._deepest(known, chain, depth, left)
            here = known[chain[depth - 1]] & left
            slots = self._some(here, room)
            levels.append((depth, slots))
            left &= ~here
            room -= len(slots)
        return warm, levels

    def insert(self, endpoint: str, request: InferenceRequest, now: float) -> None:
        """The request goes to this endpoint, which will hold its prompt. A burst finds its leader so."""
        slot, chain = self._slots.get(endpoint), request.prefix
        if slot is None or not chain:
            return
        holdings = slot.holdings
        depth = holdings.depth(chain)
        holdings.use(chain, depth, now, again=True)
        self._forget_stale(slot, now)
        end = min(len(chain), self._reach(slot))
        if depth < end:
            depth = self._room(slot, chain, depth, end)
        if depth < end:
            known = self._stretch(chain)
            holdings.add(request.tenant, chain[:end], depth, known, now)
            mark(known, chain[depth:end], slot.bit)
        self.sweep(SWEEP_BLOCKS)

    def confirm(self, endpoint: str, request: InferenceRequest, now: float) -> None:
        """The request ended there: until now the engine has surely had its prompt."""
        slot = self._slots.get(endpoint)
        if slot is not None and request.prefix:
            slot.holdings.use(request.prefix, slot.holdings.depth(request.prefix), now, again=False)

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
        return bool(self._leaving)

    def _stretch(self, chain: Chain) -> Known:
        return self._known[chain[0] % STRETCHES if chain else 0]

    @staticmethod
    def _deepest(known: Known, chain: Chain, most: int, bits: int) -> int:
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

    def _some(self, bits: int, most: int) -> list[Slot]:
        """At most so many endpoints of these bits; of more, each time others, so that no place in the list is better."""
        if bits.bit_count() > most:
            self._turn = (self._turn + 1) % bits.bit_length()
            low = bits & ((1 << self._turn) - 1)
            return [*self._lowest(bits ^ low, most), *self._lowest(low, most)][:most]
        return self._lowest(bits, most)

    def _lowest(self, bits: int, most: int) -> list[Slot]:
        slots: list[Slot] = []
        while bits and len(slots) < most:
            bit = bits & -bits
            slots.append(self._by_bit[bit])
            bits ^= bit
        return slots

    def _part_bytes(self) -> int:
        return self._affinity.index_bytes // max(1, len(self._slots) + len(self._leaving))

    def _reach(self, slot: Slot) -> int:
        """The longest chain that fits an endpoint's bounds alone."""
        blocks = (self._part_bytes() - RUN_BYTES - SHELF_BYTES) // BLOCK_BYTES
        text_bytes = slot.belief.text_bytes()
        return max(0, blocks if text_bytes is None else min(blocks, block_at(text_bytes, self.block_tokens)))

    def _room(self, slot: Slot, chain: Chain, depth: int, end: int) -> int:
        """Make room for blocks `depth` to `end`. Returns from where on to add: `end` where there is no room yet."""
        for _ in range(EVICTIONS + end - depth):
            giver = self._giver(slot, depth, end)
            if giver is None:
                return depth
            run = giver.holdings.first()
            if run is not None:
                self._drop(giver, run, end - depth)
            depth = slot.holdings.depth(chain)  # the room may have come from its own beginning
        return end

    def _giver(self, slot: Slot, depth: int, end: int) -> Slot | None:
        """Who has to give before this endpoint takes these blocks: itself, one that has too much, or nobody."""
        more_bytes = (end - depth) * BLOCK_BYTES + RUN_BYTES + SHELF_BYTES
        text_bytes = slot.belief.text_bytes()
        if slot.holdings.used_bytes + more_bytes > self._part_bytes():
            return slot
        if text_bytes is not None:
            more_text = depth_bytes(end, self.block_tokens) - depth_bytes(depth, self.block_tokens)
            if slot.holdings.text_bytes + more_text > text_bytes:
                return slot
        if self._account.used_bytes + more_bytes > self._affinity.index_bytes:
            return max((*self._slots.values(), *self._leaving), key=lambda other: other.holdings.used_bytes)
        return None

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
