"""What a prompt begins with, as numbers: a chain of block hashes, equal as far as two prompts are equal.

Each block's hash is seeded with the one before it, so one number stands for all the text up to there. The seed of the
first block names the isolation domain: chains of two domains have nothing in common, whatever their text.

1. A token is four bytes of text. The first 16 blocks hold `block_tokens`, the next 12 four times that, the rest 16 times:
   a block is at most a fourth of what is before it, and a long prompt has few of them.
2. What follows the last full block, or 512 KiB, is not hashed.
3. How the text is cut into parts does not matter. A caller renders tools first, then messages with a role mark each,
   and puts a digest where media stands.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from xxhash import xxh3_64_intdigest

TOKEN_BYTES: Final = 4
FINE: Final = 16  # so many blocks of the smallest size
MIDDLE: Final = 12  # so many after them
WIDER: Final = 4  # so many times larger than the blocks before
_FINE_AND_MIDDLE: Final = FINE + WIDER * MIDDLE  # in blocks of the smallest size
MOST_BYTES: Final = 512 * 1024  # 131,072 tokens, llm-d's limit
HEAD_BYTES: Final = 1024 * TOKEN_BYTES

Text = bytes | memoryview


def seed(domain: str, model: str, adapter: str = "") -> int:
    """Where the chains of an isolation domain start. `domain` must hold its salt (tenancy.md 7), where it has one."""
    return xxh3_64_intdigest("".join(f"{len(name)}:{name}" for name in (domain, model, adapter)).encode())


def chain(parts: Sequence[Text], block_tokens: int, seed: int) -> tuple[int, ...]:
    """The hashes of all full blocks of these parts, one after the other."""
    text = _text(parts, MOST_BYTES)
    fine = block_tokens * TOKEN_BYTES
    if len(text) < fine * (FINE + WIDER):
        return tuple(_hashes(text[: fine * FINE], fine, seed))
    whole = memoryview(text)
    hashes = _hashes(whole[: fine * FINE], fine, seed)
    hashes += _hashes(whole[fine * FINE : fine * _FINE_AND_MIDDLE], fine * WIDER, hashes[-1])
    hashes += _hashes(whole[fine * _FINE_AND_MIDDLE :], fine * WIDER * WIDER, hashes[-1])
    return tuple(hashes)


def chain_of_ids(token_ids: Sequence[int], block_tokens: int, seed: int) -> tuple[int, ...]:
    """The chain of a prompt that is given as token ids: `block_tokens` of them are one block.

    Raises ValueError for what is not an id (an integer of 32 bits, not negative).
    """
    ids = token_ids[: MOST_BYTES // TOKEN_BYTES]
    try:
        return chain((struct.pack(f"<{len(ids)}I", *ids),), block_tokens, seed)
    except struct.error as error:
        raise ValueError("token ids are integers from 0 to 4294967295") from error


def head(parts: Sequence[Text], seed: int) -> int:
    """The fingerprint of how a prompt begins: of its tools and system prompt, or their first 1,024 tokens; 0: none."""
    text = _text(parts, HEAD_BYTES)
    return (xxh3_64_intdigest(text, seed) or 1) if text else 0


def depth_bytes(blocks: int, block_tokens: int) -> int:
    """How many bytes of text the first so many blocks cover."""
    fine = blocks
    if blocks > FINE + MIDDLE:
        fine = _FINE_AND_MIDDLE + (blocks - FINE - MIDDLE) * (WIDER * WIDER)
    elif blocks > FINE:
        fine = FINE + (blocks - FINE) * WIDER
    return fine * block_tokens * TOKEN_BYTES


def block_at(text_bytes: int, block_tokens: int) -> int:
    """How many full blocks so many bytes of text hold."""
    fine = text_bytes // (block_tokens * TOKEN_BYTES)
    if fine > _FINE_AND_MIDDLE:
        return FINE + MIDDLE + (fine - _FINE_AND_MIDDLE) // (WIDER * WIDER)
    return fine if fine <= FINE else FINE + (fine - FINE) // WIDER


def _text(parts: Sequence[Text], most_bytes: int) -> Text:
    """The first bytes of all parts together; a part that begins beyond them is not looked at."""
    if len(parts) == 1:
        return parts[0] if len(parts[0]) <= most_bytes else parts[0][:most_bytes]
    taken, length = 0, 0
    for part in parts:
        if length >= most_bytes:
            break
        taken += 1
        length += len(part)
    return b"".join(parts[:taken])[:most_bytes]


@lru_cache(maxsize=64)
def _blocks(size_bytes: int) -> Callable[[Text], Iterator[tuple[bytes]]]:
    """What cuts a text into blocks of that size."""
    return struct.Struct(f"{size_bytes}s").iter_unpack


def _hashes(text: Text, block_bytes: int, seed: int) -> list[int]:
    digest: Any = xxh3_64_intdigest
    previous: Any = seed  # of 64 bits: compiled, an `int` would be packed and unpacked for each block
    hashes = []
    whole = text[: len(text) // block_bytes * block_bytes]
    for (block,) in _blocks(block_bytes)(whole):
        previous = digest(block, previous)
        hashes.append(previous)
    return hashes
