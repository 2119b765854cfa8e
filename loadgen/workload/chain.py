"""Which blocks do two prompts share? Chained hashes of a recipe, as an engine would see them, without writing the text.

A recipe says which prompts begin with the same bytes, so no byte is needed: the hash at a boundary follows from the
blocks before it and the offset inside the block it lies in: a shorter block of an id is a longer one's head. Role marks stand where the text renderer has them
(prompts.py), so simulated and live runs share the same engine blocks. Sessions ask for the same long head again and
again: what a head of a recipe gives is kept, and only the rest is worked out.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from loadgen.workload.prompts import MARK_TOKENS, Block, Role, opens

KEPT_HEADS = 4096
HEAD_BLOCKS = 32  # heads of that many blocks, and of its multiples, are kept
_SPREAD = 0x9E3779B97F4A7C15  # odd: no two offsets in a block give one hash
_MASK = (1 << 64) - 1
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
_MARKS: dict[Role, Block] = {role: Block(namespace=f"mark/{role}", id=0, tokens=MARK_TOKENS) for role in _ROLES}
_MARKS["call"] = _MARKS["assistant"]


@dataclass(frozen=True, slots=True)
class _Head:
    """What some leading blocks give: the hashes so far, the tokens so far, and the link to what follows."""

    hashes: tuple[int, ...] = ()
    tokens: int = 0
    link: int = 0


_heads: OrderedDict[tuple[int, tuple[Block, ...]], _Head] = OrderedDict()


def rendered(blocks: Sequence[Block], salt: str = "") -> tuple[Block, ...]:
    """The blocks of a whole prompt, with the mark of each message and that of the answer.

    Prompts of different `salt` share nothing; it takes no tokens, like an engine's `cache_salt`.
    """
    found = [Block(namespace="salt/" + salt, id=0, tokens=0)] if salt else []
    before: Role | None = None
    for block in blocks:
        if opens(before, block.role):
            found.append(_MARKS[block.role])
        found.append(block)
        before = block.role
    return (*found, _MARKS["assistant"])


def chain(blocks: Sequence[Block], every: int) -> tuple[int, ...]:
    """The hash of all before it at each full `every` tokens of `blocks`; equal heads give equal hashes, else none."""
    asked = tuple(blocks)
    last = len(asked) - len(asked) % HEAD_BLOCKS
    known, head = 0, _Head()
    for count in range(last, 0, -HEAD_BLOCKS):
        kept = _heads.get((every, asked[:count]))
        if kept is not None:
            _heads.move_to_end((every, asked[:count]))
            known, head = count, kept
            break
    for count in range(known + HEAD_BLOCKS, last + 1, HEAD_BLOCKS):
        head = _continued(head, asked[count - HEAD_BLOCKS : count], every)
        _keep((every, asked[:count]), head)
    return _continued(head, asked[last:], every).hashes


def _continued(head: _Head, blocks: Sequence[Block], every: int) -> _Head:
    hashes, tokens, link = list(head.hashes), head.tokens, head.link
    for block in blocks:
        base = xxhash.xxh3_64_intdigest(f"{block.namespace}\0{block.id}{block.noise}".encode(), link)
        first = every - tokens % every
        hashes += [(base + offset * _SPREAD) & _MASK for offset in range(first, block.tokens + 1, every)]
        tokens += block.tokens
        link = (base + block.tokens * _SPREAD) & _MASK
    return _Head(tuple(hashes), tokens, link)


def _keep(key: tuple[int, tuple[Block, ...]], head: _Head) -> None:
    _heads[key] = head
    if len(_heads) > KEPT_HEADS:
        _heads.popitem(last=False)
