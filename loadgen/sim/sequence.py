"""One sequence inside an engine: what was asked, and how far it is."""

from collections.abc import Sequence as Chain
from enum import Enum


class State(Enum):
    """Where a sequence is; the last two are ends."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class Sequence:
    """Asked: `prompt_tokens`, the `output_tokens` it will give, and `hashes`, the chained hash of each full block of
    prompt and answer (a shorter chain leaves the rest unshared; the salt is in the first hash, so in all).
    `max_new_tokens` is what the engine is told about the length of the answer (None: nothing).

    Progress: `known` tokens exist (prompt and generated), `computed` of them are in the KV cache, `share` is
    the prefill chunk scheduled in the running step. `hit` came from the prefix cache at the last admission, `cached`
    at the first (None before it).
    """

    __slots__ = (
        "aborted",
        "blocks",
        "cached",
        "capacity",
        "computed",
        "decoding",
        "final",
        "grows_at",
        "hashes",
        "hit",
        "id",
        "known",
        "max_new_tokens",
        "output_tokens",
        "preemptions",
        "priority",
        "prompt_tokens",
        "published",
        "rank",
        "reads_cache",
        "ready_s",
        "share",
        "started_s",
        "state",
    )

    def __init__(
        self,
        id: str,  # noqa: A002
        *,
        prompt_tokens: int,
        output_tokens: int,
        hashes: Chain[int] = (),
        priority: int = 0,
    ) -> None:
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError("a sequence has at least one prompt token and one output token")
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.hashes = hashes
        self.priority = priority
        self.max_new_tokens: int | None = None
        self.reads_cache = True
        self.ready_s = 0.0
        self.started_s: float | None = None  # when the first step with it began
        self.rank: tuple[int, int] = (0, 0)  # place in the waiting queue
        self.state = State.WAITING
        self.aborted = False
        self.known = prompt_tokens
        self.computed = 0
        self.final = prompt_tokens + output_tokens  # `known` at the end
        self.decoding = False  # its next share is one token after an emitted one
        self.capacity = 0  # tokens that its blocks hold
        self.grows_at = (
            0  # `known` at which a block has to be published or taken; until then a decode has nothing to do
        )
        self.share = 0
        self.hit = 0
        self.cached: int | None = None
        self.preemptions = 0
        self.blocks: list[int] = []
        self.published = 0  # leading blocks that are in the prefix table, or came from it

    @property
    def generated(self) -> int:
        """Tokens given out so far."""
        return self.known - self.prompt_tokens
