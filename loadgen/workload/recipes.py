"""What is in a prompt: shared heads, tool results that come again, and what only this request says.

A prompt is tool definitions, a system message, tool results with what called for them, then the request's own tokens:
what many share stands first, where a prefix cache can find it. Warm-up has shared heads of its own: it fills engines,
not the prefix cache of what is measured (sglang#37359).
"""

from collections.abc import Mapping
from itertools import accumulate
from random import Random
from typing import Literal

from loadgen.workload.fields import Count, Fields, NonNegative, ScenarioError, Share
from loadgen.workload.lengths import Fixed, Length, tokens
from loadgen.workload.prompts import ANSWERS, CALLS, OWN, RESULTS, Block, Role
from loadgen.workload.results import WAYS, Noise

CALL_TOKENS = 8
OPENING_TOKENS = 8
LEAST_TOOLS = 48  # tokens of a definition of a tool without a word of description


class Prefix(Fields, frozen=True):
    """`count` shared texts of `tokens` tokens; the i-th most popular is used as 1/i^zipf."""

    count: Count
    tokens: Count
    zipf: NonNegative = 0.0


class ToolResults(Fields, frozen=True):
    """`count` results of `tokens` tokens in each prompt, each of them called for.

    With probability `repeat` a result is one of `pool` that come again, the i-th most popular as 1/i^zipf; otherwise
    nobody has seen it. With `noise` it comes again in other bytes that mean the same (results.py).
    """

    tokens: Length
    count: Length = Fixed(value=1)
    pool: Count = 200
    zipf: NonNegative = 1.2
    repeat: Share = 0.6
    noise: Noise = "none"


class Prompt(Fields, frozen=True):
    """How a tenant's prompts are built. `prefix` and `tools` name prefixes: the system message, the tool definitions.

    `answers` of a conversation are said again as they were `real`ly received, or in `planned` words of their length.
    """

    prefix: str | None = None
    tools: str | None = None
    tool_results: ToolResults | None = None
    answers: Literal["real", "planned"] = "planned"


class Recipe:
    """Makes the prompts of one tenant; what is drawn comes from streams that are handed in."""

    def __init__(self, prompt: Prompt, prefixes: Mapping[str, Prefix], tenant: str, seed: int) -> None:
        """ScenarioError if `prompt` names a prefix that is not there."""
        self._prompt = prompt
        self._tenant = tenant
        self._seed = seed
        self._system = _Choice(prompt.prefix, prefixes, "system")
        self._tools = _Choice(prompt.tools, prefixes, "tools")
        results = prompt.tool_results
        self._popular = _cumulative(results.pool, results.zipf) if results else []
        self._call = Block(namespace=CALLS + tenant, id=0, tokens=CALL_TOKENS, role="call")

    def head(self, phase: str, systems: Random, tools: Random) -> tuple[Block, ...]:
        """What many share: the definitions of tools and the system message, and the question that tools are called for.

        `systems` and `tools` draw which ones.
        """
        parts = [self._tools.block(phase, tools), self._system.block(phase, systems)]
        if self._prompt.tool_results is not None:
            parts.append(Block(namespace=f"{phase}/opening/{self._tenant}", id=0, tokens=OPENING_TOKENS))
        return tuple(one for one in parts if one is not None)

    def said(self, place: str, number: int, size: int, stream: Random) -> tuple[Block, ...]:
        """The tool results of turn `number` of `place`, drawn from `stream`, and `size` tokens that only it says."""
        own = Block(namespace=OWN + place, id=number, tokens=size)
        results = self._prompt.tool_results
        if results is None:
            return (own,)
        count = round(results.count.draw(stream))
        pairs = ((self._call, self._result(results, f"{place}/{number}/{i}", stream)) for i in range(count))
        return (*(block for pair in pairs for block in pair), own)

    def answer(self, session: str, turn: int, size: int) -> Block:
        """The answer of that turn, as it is said again in later ones."""
        namespace = (ANSWERS if self._prompt.answers == "real" else "planned/") + session
        return Block(namespace=namespace, id=turn, tokens=size, role="assistant")

    def _result(self, results: ToolResults, place: str, stream: Random) -> Block:
        known = stream.random() < results.repeat
        chosen = stream.choices(range(results.pool), cum_weights=self._popular)[0]
        name = str(chosen) if known else place  # of its length
        size = tokens(results.tokens, Random(f"{self._seed}/{self._tenant}/result/{known}/{name}"))
        namespace = RESULTS + (self._tenant if known else place)
        way = stream.randrange(WAYS[results.noise]) if results.noise != "none" else 0
        noise = f"{results.noise}/{way}" if way else ""
        return Block(namespace=namespace, id=chosen if known else 0, tokens=size, role="tool", noise=noise)


class _Choice:
    """Draws one of the texts of a prefix, if there is one."""

    def __init__(self, name: str | None, prefixes: Mapping[str, Prefix], role: Role) -> None:
        if name is not None and name not in prefixes:
            raise ScenarioError(f"no prefix is called {name}")
        self._name = name
        self._role = role
        self._prefix = prefixes[name] if name is not None else None
        self._weights = _cumulative(self._prefix.count, self._prefix.zipf) if self._prefix else []

    def block(self, phase: str, stream: Random) -> Block | None:
        if self._prefix is None:
            return None
        chosen = stream.choices(range(self._prefix.count), cum_weights=self._weights)[0]
        namespace = f"{phase}/prefix/{self._name}"
        return Block(namespace=namespace, id=chosen, tokens=self._prefix.tokens, role=self._role)


def _cumulative(count: int, zipf: float) -> list[float]:
    return list(accumulate(1 / rank**zipf for rank in range(1, count + 1)))
