"""Requests that are nothing but a prompt, for what remembers prompts; and a look into the prefix index's books."""

from random import Random

from policies.fingerprint import depth_bytes
from policies.state.prefixes import Prefixes
from policies.types import InferenceRequest


def asked(
    prefix: tuple[int, ...], *, tenant: str = "acme", tokens: int | None = None, text_bytes: int = 0, head: int = 0
) -> InferenceRequest:
    """A prompt of these blocks and ten tokens more, unless `tokens` says how many."""
    return InferenceRequest(
        id="r",
        tenant=tenant,
        model="llama",
        band="standard",
        route="chat",
        streamed=True,
        arrived_s=0.0,
        deadline_s=1e9,
        prompt_tokens=depth_bytes(len(prefix), 64) // 4 + 10 if tokens is None else tokens,
        max_output_tokens=256,
        sequences=1,
        body_bytes=1000,
        prefix=prefix,
        text_bytes=text_bytes,
        head=head,
    )


def fresh(random: Random, blocks: int) -> tuple[int, ...]:
    """A chain that nothing else has in common with."""
    return tuple(random.getrandbits(64) for _ in range(blocks))


def blocks_of(index: Prefixes, endpoint: str, tenant: str) -> int:
    """How many blocks this tenant's requests have left there."""
    shelf = index._slots[endpoint].holdings._shelves.get(tenant)
    return shelf.blocks if shelf is not None else 0


def audit(index: Prefixes, bounded: bool = True) -> None:
    """The masks say what the endpoints' runs say, all counts are true, and all bounds hold (`bounded`: none was lowered)."""
    said: dict[int, int] = {}
    counted = 0
    for slot in [*index._slots.values(), *index._leaving]:
        holdings, runs = slot.holdings, set(slot.holdings._runs.values())
        assert all(holdings._runs[block] is run for run in runs for block in run.blocks)
        assert sum(len(run.blocks) for run in runs) == len(holdings._runs)
        assert sum(shelf.blocks for shelf in holdings._shelves.values()) == len(holdings._runs)
        queued = [run for shelf in holdings._shelves.values() for queue in (shelf.once, shelf.again) for run in queue]
        assert len(queued) == len(runs) and set(queued) == runs
        size = index.block_tokens
        text = sum(depth_bytes(run.end(), size) - depth_bytes(run.start, size) for run in runs)
        assert holdings.text_bytes == text
        most = slot.belief.text_bytes
        assert not bounded or most is None or slot.belief.kept < 1 or text <= most
        counted += holdings.used_bytes
        for block in holdings._runs:
            said[block] = said.get(block, 0) | slot.bit
    assert counted == index.used_bytes
    assert not bounded or counted <= index._affinity.index_bytes
    assert said == {block: mask for known in index._known for block, mask in known.items()}
