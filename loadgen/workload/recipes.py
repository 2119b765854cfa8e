"""What is in a prompt: shared heads, tool results that come again, and what only this request says.

A prompt is a system message, then tool definitions, then tool results, then the request's own tokens, in this order:
what many share stands first, where a prefix cache can find it. Warm-up has shared heads of its own: it fills engines,
not the prefix cache of what is measured (sglang#37359).
"""

from collections.abc import Mapping
from itertools import accumulate
from random import Random

from loadgen.workload.fields import Count, Fields, NonNegative, ScenarioError, Share
from loadgen.workload.lengths import Fixed, Length, tokens
from loadgen.workload.prompts import Block


class Prefix(Fields, frozen=True):
    """`count` shared texts of `tokens` tokens; the i-th most popular is used as 1/i^zipf."""

    count: Count
    tokens: Count
    zipf: NonNegative = 0.0


class ToolResults(Fields, frozen=True):
    """`count` results of `tokens` tokens in each prompt.

    With probability `repeat` a result is one of `pool` that come again, the i-th most popular as 1/i^zipf; otherwise
    nobody has seen it.
    """

    tokens: Length
    count: Length = Fixed(value=1)
    pool: Count = 200
    zipf: NonNegative = 1.2
    repeat: Share = 0.6


class Prompt(Fields, frozen=True):
    """How a tenant's prompts are built. `system` and `tools` name prefixes: the system message, the tool definitions."""

    prefix: str | None = None
    tools: str | None = None
    tool_results: ToolResults | None = None


class Recipe:
    """Makes the prompts of one tenant; every random choice has a stream of its own."""

    def __init__(self, prompt: Prompt, prefixes: Mapping[str, Prefix], tenant: str, seed: int) -> None:
        """ScenarioError if `prompt` names a prefix that is not there."""
        self._prompt = prompt
        self._tenant = tenant
        self._seed = seed
        self._system = _Choice(prompt.prefix, prefixes, Random(f"{seed}/{tenant}/prefix"))
        self._tools = _Choice(prompt.tools, prefixes, Random(f"{seed}/{tenant}/tools"))
        self._results = Random(f"{seed}/{tenant}/results")
        results = prompt.tool_results
        self._popular = _cumulative(results.pool, results.zipf) if results else []

    def head(self, phase: str) -> tuple[Block | None, tuple[Block, ...]]:
        """The system message, and the tool definitions behind it."""
        tools = self._tools.block(phase)
        return self._system.block(phase), (tools,) if tools else ()

    def results(self, number: int) -> tuple[Block, ...]:
        """The tool results of the tenant's request of that `number`."""
        results = self._prompt.tool_results
        if results is None:
            return ()
        return tuple(self._result(results, f"{number}/{i}") for i in range(round(results.count.draw(self._results))))

    def own(self, number: int, size: int) -> Block:
        """What only the request of that `number` says, `size` tokens of it."""
        return Block(namespace=f"own/{self._tenant}", id=number, tokens=size)

    def _result(self, results: ToolResults, place: str) -> Block:
        known = self._results.random() < results.repeat
        chosen = self._results.choices(range(results.pool), cum_weights=self._popular)[0]
        name = str(chosen) if known else place  # of its length
        size = tokens(results.tokens, Random(f"{self._seed}/{self._tenant}/result/{known}/{name}"))
        namespace = f"result/{self._tenant}" if known else f"result/{self._tenant}/{place}"
        return Block(namespace=namespace, id=chosen if known else 0, tokens=size)


class _Choice:
    """Draws one of the texts of a prefix, if there is one."""

    def __init__(self, name: str | None, prefixes: Mapping[str, Prefix], stream: Random) -> None:
        if name is not None and name not in prefixes:
            raise ScenarioError(f"no prefix is called {name}")
        self._name = name
        self._prefix = prefixes[name] if name is not None else None
        self._weights = _cumulative(self._prefix.count, self._prefix.zipf) if self._prefix else []
        self._stream = stream

    def block(self, phase: str) -> Block | None:
        if self._prefix is None:
            return None
        chosen = self._stream.choices(range(self._prefix.count), cum_weights=self._weights)[0]
        return Block(namespace=f"{phase}/prefix/{self._name}", id=chosen, tokens=self._prefix.tokens)


def _cumulative(count: int, zipf: float) -> list[float]:
    return list(accumulate(1 / rank**zipf for rank in range(1, count + 1)))
