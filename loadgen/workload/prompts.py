"""What do prompts say? A recipe is a list of blocks; equal blocks have equal bytes, others share none.

A block opens with a 16-byte tag made of (salt, namespace, id) and goes on with four-byte words, so its length in
tokens is known before anybody counts (the simulated engine takes four bytes for a token) and its first engine block
already differs from every other's. The salt is new for each run: no run ever measures the cache of the last one
(vllm#52884, #54227), and sharing inside a run is untouched.
"""

from collections.abc import Sequence
from hashlib import blake2b
from random import Random

import msgspec

TOKEN_BYTES = 4
TAG_TOKENS = 4
MARK_TOKENS = 1
_WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two "
    "way who boy did its let put say she too use air big cat dog end far few got hot job key law lot low map may men "
)
_BOOK_WORDS = 1 << 17


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` tokens of text, identified by (namespace, id)."""

    namespace: str
    id: int
    tokens: int


class Prose:
    """Writes blocks as text. One long text is made once; a block is its tag and a slice of that text."""

    def __init__(self, salt: str) -> None:
        """`salt`: new for each run."""
        self._salt = salt
        words = [_WORDS[i : i + TOKEN_BYTES] for i in range(0, len(_WORDS), TOKEN_BYTES)]
        self._book = "".join(Random("prose").choices(words, k=_BOOK_WORDS))

    def text(self, block: Block) -> str:
        """The text of `block`, exactly 4 x tokens bytes of ASCII. A shorter block of the same id is its head."""
        digest = blake2b(f"{self._salt}\0{block.namespace}\0{block.id}".encode(), digest_size=16).digest()
        words = max(0, block.tokens - TAG_TOKENS)
        start = int.from_bytes(digest[8:]) % _BOOK_WORDS
        body = self._slice(start, words)
        return (digest[:8].hex()[:15] + " " + body)[: block.tokens * TOKEN_BYTES]

    def _slice(self, start: int, words: int) -> str:
        copies = -(-(start + words) // _BOOK_WORDS)
        book = self._book if copies == 1 else self._book * copies
        return book[start * TOKEN_BYTES : (start + words) * TOKEN_BYTES]


def prompt_tokens(system: Block | None, blocks: Sequence[Block]) -> int:
    """What the simulated engine counts for this prompt: texts, a role mark for each, and the mark of the answer."""
    return sum(block.tokens for block in blocks) + (system.tokens + MARK_TOKENS if system else 0) + 2 * MARK_TOKENS


def messages(prose: Prose, system: Block | None, blocks: Sequence[Block], output_tokens: int) -> list[dict[str, str]]:
    """The prompt as chat messages: system, and one of the user with all `blocks`.

    The user's text ends with a marker that sets the length of the answer, in place of as many of its last tokens; a
    prompt shorter than the marker becomes as long as that.
    """
    mark = marker(output_tokens)
    text = "".join(prose.text(block) for block in blocks)
    own = text[: max(0, len(text) - len(mark))]
    said = [{"role": "user", "content": own + mark}]
    return [{"role": "system", "content": prose.text(system)}, *said] if system else said


def marker(output_tokens: int) -> str:
    """Asks the simulated engine (--allow-markers) for an answer of exactly that many tokens; padded to whole tokens."""
    text = f"[[fb out={output_tokens}]]"
    return text + " " * (-len(text) % TOKEN_BYTES)
