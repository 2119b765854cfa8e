"""One request of a simulated run, from its arrival to its end."""

from array import array

from loadgen.schedule import Planned, sample_of
from loadgen.sim.sequence import Sequence
from loadgen.workload.chain import chain, rendered

BLOCK_TOKENS = 16  # of an engine's prefix cache


class Call:
    """What was planned, the record of what became of it, and where it is. `arrived_s` is the intended time.

    `hashes` is the chain of its full blocks of 16 prompt tokens, under its cache salt. `engine` is the number of the engine it was last
    sent to (-1: none yet), `attempt` counts the tries.
    """

    __slots__ = ("arrived_s", "attempt", "ended", "engine", "hashes", "id", "planned", "reads", "sample", "sequence")

    def __init__(self, planned: Planned, arrived_s: float, measured: bool, salt: str) -> None:
        self.planned = planned
        self.id = name(planned)
        self.arrived_s = arrived_s
        self.hashes = chain(rendered(planned.blocks, salt), BLOCK_TOKENS)
        self.engine = -1
        self.attempt = 0
        self.ended = False
        self.sequence: Flight | None = None
        self.sample = sample_of(planned, arrived_s, measured)
        self.sample.sent_s = arrived_s
        self.reads = self.sample.reads = array("d")

    def output_tokens(self, context_tokens: int) -> int:
        """How many tokens an engine with that context gives it."""
        return min(self.planned.answer_tokens, context_tokens - self.planned.input_tokens)


def name(planned: Planned) -> str:
    """The id of a planned request on its way."""
    return f"r{planned.id}"


class Flight(Sequence):
    """A sequence that knows its call and the times of its tokens. `opening`: known tokens after the first one."""

    __slots__ = ("call", "opening", "read")

    def __init__(self, call: Call, output_tokens: int) -> None:
        super().__init__(
            call.id, prompt_tokens=call.planned.input_tokens, output_tokens=output_tokens, hashes=call.hashes
        )
        self.call = call
        self.opening = self.prompt_tokens + 1
        self.read = call.reads.append if call.sample.streamed else _unread


def _unread(_: float) -> None:
    """Tokens of an answer that comes whole."""
