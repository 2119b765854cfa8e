"""Text and tokens of the simulated model: four bytes are one token.

A prompt is rendered to bytes (tools, then messages: a role mark of one token, then the content padded to whole
tokens, then one mark that asks for the answer). Words of the load generator are four bytes, so planned and counted
lengths agree exactly. An answer is words drawn from a hash of (prompt, seed): equal prompts give equal answers, and
an answer sent back as history is the same tokens again.
"""

from collections.abc import Sequence

import xxhash

TOKEN_BYTES = 4
ROLE_MARKS = {
    "system": b"<S>\n",
    "developer": b"<S>\n",
    "user": b"<U>\n",
    "assistant": b"<A>\n",
    "tool": b"<T>\n",
}
ANSWER_MARK = ROLE_MARKS["assistant"]
WORDS = (
    *("the ", "and ", "for ", "you ", "are ", "not ", "but ", "all ", "any ", "can ", "had ", "her ", "was "),
    *("one ", "our ", "out ", "day ", "get ", "has ", "him ", "his ", "how ", "man ", "new ", "now ", "old ", "see "),
    *("two ", "way ", "who ", "boy ", "did ", "its ", "let ", "put ", "say ", "she ", "too ", "use ", "end ", "run "),
    *("set ", "ask ", "try ", "why ", "own ", "big ", "low ", "top "),
)
RING = 8192


def padded(text: str) -> bytes:
    """UTF-8 of `text`, filled with spaces to whole tokens."""
    data = text.encode("utf-8", "surrogatepass")
    return data + b" " * (-len(data) % TOKEN_BYTES)


def render(tools: bytes, messages: Sequence[tuple[str, str]]) -> bytes:
    """The prompt of a conversation: `tools` as raw JSON, messages as (role, text)."""
    parts = [tools, b" " * (-len(tools) % TOKEN_BYTES)]
    for role, text in messages:
        parts += (ROLE_MARKS.get(role, ROLE_MARKS["user"]), padded(text))
    parts.append(ANSWER_MARK)
    return b"".join(parts)


def count(prompt: bytes) -> int:
    """Tokens of a rendered prompt; an empty one has one."""
    return max(1, -(-len(prompt) // TOKEN_BYTES))


def chain(text: bytes, salt: bytes, block_tokens: int) -> list[int]:
    """The chained hash of each full block of `text`; the salt enters the first one, and so all."""
    size = block_tokens * TOKEN_BYTES
    digest = xxhash.xxh3_64_intdigest
    link = digest(salt)
    hashes = []
    for start in range(0, len(text) - size + 1, size):
        link = digest(text[start : start + size], link)
        hashes.append(link)
    return hashes


def _ring() -> list[str]:
    state = 1
    found = []
    for _ in range(RING):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        found.append(WORDS[(state >> 33) % len(WORDS)])
    return found


_TEXT = _ring()


def words(key: int, number: int) -> list[str]:
    """`number` answer words that follow from the 64-bit `key`: five from its bits, the rest out of a fixed text."""
    head = [WORDS[(key >> shift) % len(WORDS)] for shift in range(0, 50, 10)]
    start = key % RING
    text = _TEXT[start : start + number]
    while len(text) < number:
        text += _TEXT
    return (head + text)[:number]


def cut(text: str) -> list[str]:
    """ASCII text in pieces of one token, the last one filled with spaces."""
    return [text[start : start + TOKEN_BYTES].ljust(TOKEN_BYTES) for start in range(0, len(text), TOKEN_BYTES)]
