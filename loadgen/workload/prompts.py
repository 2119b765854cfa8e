"""What do prompts say? A recipe is a list of blocks; equal blocks have equal bytes, others share none.

A block opens with a 16-byte tag made of (salt, namespace, id) and goes on with four-byte words, so its length in
tokens is known before anybody counts (the simulated engine takes four bytes for a token) and its first engine block
already differs from every other's. The salt is new for each run: no run ever measures the cache of the last one
(vllm#52884, #54227), and sharing inside a run is untouched.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from random import Random
from typing import Literal

import msgspec

from loadgen.workload.results import document

TOKEN_BYTES = 4
TAG_TOKENS = 4
MARK_TOKENS = 1
_WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two "
    "way who boy did its let put say she too use air big cat dog end far few got hot job key law lot low map may men "
)
_BOOK_WORDS = 1 << 17

Role = Literal["tools", "system", "user", "assistant", "call", "tool"]
"""Who says it. `tools` are the definitions of tools, a `call` is what an assistant asks of one, `tool` its result."""

ANSWERS = "answer/"
"""Namespace of answers that are said again as they were received; the id is the turn."""
OWN = "own/"
"""Namespace of what one request says and no other, but for later turns of its session."""
CALLS = "call/"
"""Namespace of calls that nobody answered with: they are part of the question."""
RESULTS = "result/"
"""Namespace of results of tools that are JSON."""


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """`tokens` tokens of text, identified by (namespace, id). Blocks in a row that have one role are one message.

    `noise`: `KIND/NUMBER`, which of the ways to write it, where the same can be said in many (results.py).
    """

    namespace: str
    id: int
    tokens: int
    role: Role = "user"
    noise: str = ""


class Prose:
    """Writes blocks as text. One long text is made once; a block is its tag and a slice of that text."""

    def __init__(self, salt: str, words_per_token: float = 1.0) -> None:
        """`salt`: new for each run. `words_per_token`: how many words the server's tokenizer takes for a token."""
        self._salt = salt
        self._scale = words_per_token
        words = [_WORDS[i : i + TOKEN_BYTES] for i in range(0, len(_WORDS), TOKEN_BYTES)]
        self._book = "".join(Random("prose").choices(words, k=_BOOK_WORDS))

    def text(self, block: Block) -> str:
        """The text of `block`, exactly 4 x tokens x words per token bytes of ASCII.

        A shorter block of the same id is its head, but for results of tools, which are JSON and have one length.
        """
        digest = blake2b(f"{self._salt}\0{block.namespace}\0{block.id}".encode(), digest_size=16).digest()
        size = max(1, round(block.tokens * self._scale)) if block.tokens else 0
        tag = digest[:8].hex()[:15]
        body = self._slice(int.from_bytes(digest[8:]) % _BOOK_WORDS, max(0, size - TAG_TOKENS))
        if block.namespace.startswith(RESULTS):
            return document(tag, body, size * TOKEN_BYTES, block.noise)
        return (tag + " " + body)[: size * TOKEN_BYTES]

    def _slice(self, start: int, words: int) -> str:
        copies = -(-(start + words) // _BOOK_WORDS)
        book = self._book if copies == 1 else self._book * copies
        return book[start * TOKEN_BYTES : (start + words) * TOKEN_BYTES]


def grouped(blocks: Sequence[Block]) -> Iterator[tuple[Role, list[Block]]]:
    """What is said in a row by one role."""
    group: list[Block] = []
    for block in blocks:
        if group and group[0].role != block.role:
            yield group[0].role, group
            group = []
        group.append(block)
    if group:
        yield group[0].role, group


def opens(before: Role | None, role: Role) -> bool:
    """Whether a message begins with `role` behind `before`: a call goes on with what its assistant says."""
    return role not in ("tools", before) and (before, role) != ("assistant", "call")


def prompt_tokens(blocks: Sequence[Block]) -> int:
    """What the simulated engine counts for this prompt: texts, a role mark for each message, the mark of the answer."""
    total, before = MARK_TOKENS, None
    for block in blocks:
        total += block.tokens + (MARK_TOKENS if opens(before, block.role) else 0)
        before = block.role
    return total
