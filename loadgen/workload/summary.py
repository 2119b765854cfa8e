"""What a schedule amounts to, counted while it goes by: nothing is kept of a request but numbers."""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from loadgen.workload.planned import Planned
from loadgen.workload.prompts import ANSWERS, OWN, Block

_SESSIONS_KEPT = 65_536  # those that were silent the longest are taken for over


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Of all requests, but for `measured` and `ideal_cached_tokens`, which are of the measured ones. The last is due at `last_s`.

    `ideal_cached_tokens` are prompt tokens that a cache without a limit would know, requests taken in this order, by
    whole and cut blocks, without the template's marks. Answers count where they are said again as they were received.
    """

    requests: int = 0
    measured: int = 0
    input_tokens: int = 0
    measured_input_tokens: int = 0
    output_tokens: int = 0
    ideal_cached_tokens: int = 0
    sessions: int = 0
    last_s: float = 0.0
    tenants: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def ideal_share(self) -> float:
        """Of the measured prompt tokens, those known to a cache without a limit."""
        return self.ideal_cached_tokens / self.measured_input_tokens if self.measured_input_tokens else 0.0


class Summary:
    """Counts what is fed to it. `inputs` and `outputs`: how many measured requests have how many tokens.

    `think_s` and `turns`: seconds of thinking in all, and how often somebody thinks; `in_sessions`: requests of conversations.
    """

    def __init__(self) -> None:
        self.inputs: Counter[int] = Counter()
        self.outputs: Counter[int] = Counter()
        self.classes: Counter[str] = Counter()
        self.think_s = 0.0
        self.turns = self.in_sessions = 0
        self._last_s = 0.0
        self._tenants: Counter[str] = Counter()
        self._ideal = Ideal()
        self._counts: Counter[str] = Counter()

    def feed(self, planned: Planned) -> None:
        """The next request, in order of time."""
        known = self._ideal.known(planned)
        counts = self._counts
        counts["input_tokens"] += planned.input_tokens
        counts["output_tokens"] += planned.answer_tokens
        self.in_sessions += bool(planned.session)
        counts["sessions"] += bool(planned.session) and (planned.turn == 0 or planned.after is None)
        if planned.measured:
            counts["measured"] += 1
            counts["measured_input_tokens"] += planned.input_tokens
            counts["ideal_cached_tokens"] += known
            self.inputs[planned.input_tokens] += 1
            self.outputs[planned.answer_tokens] += 1
            self.classes[planned.cls] += 1
        if planned.after is not None:
            self.think_s += planned.think_s
            self.turns += 1
        self._tenants[planned.tenant] += 1
        self._last_s = planned.t

    def totals(self) -> Totals:
        """Of all that was fed."""
        tenants = dict(sorted(self._tenants.items()))
        return Totals(**self._counts, requests=sum(tenants.values()), last_s=self._last_s, tenants=tenants)


def quantile(counts: Mapping[int, int], share: float) -> int:
    """The least value that at least `share` of what was counted does not exceed; 0 of nothing."""
    left = share * sum(counts.values())
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return 0


class Ideal:
    """What a cache without a limit would know of each prompt. What only one session says is kept as a length."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, str, int], tuple[int, int]] = {}  # (parent, block) -> (node, tokens known of it)
        self._said: OrderedDict[str, int] = OrderedDict()  # session -> blocks of its last prompt

    def known(self, planned: Planned) -> int:
        """Tokens of the head that was there before; remembers the rest."""
        blocks, session = planned.blocks, planned.session
        known, shared, private = self._common(blocks, session)
        if private is not None and shared and session:
            known += _private(blocks, private, self._said.get(session, 0))
        if session:
            self._said[session] = len(blocks)
            self._said.move_to_end(session)
            if len(self._said) > _SESSIONS_KEPT:
                self._said.popitem(last=False)
        return known

    def _common(self, blocks: Sequence[Block], session: str) -> tuple[int, bool, int | None]:
        """Tokens known of what others may say too, whether that is all of it, and where it ends."""
        nodes = self._nodes
        cached, parent, shared = 0, 0, True
        for place, block in enumerate(blocks):
            space = block.namespace
            if space.startswith(OWN):
                return cached, shared and space == OWN + session, place
            key = (parent, space + block.noise, block.id)
            parent, known = nodes.get(key, (len(nodes) + 1, 0))
            nodes[key] = (parent, max(known, block.tokens))
            cached += min(known, block.tokens) if shared else 0
            shared = shared and known >= block.tokens
        return cached, shared, None


def _private(blocks: Sequence[Block], first: int, said: int) -> int:
    """Tokens known of what only this session says: its last prompt, and the answer where that comes again as it was."""
    again = said < len(blocks) and blocks[said].namespace.startswith(ANSWERS) and said > 0
    return sum(block.tokens for block in blocks[first : said + again])
