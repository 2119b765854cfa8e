"""What of a body is the prompt, and how it begins: the facts by which requests are compared and kept together.

Nothing is rendered or decoded. Raw slices of the body stand for the text, in the order in which engines render it:
tools, system, messages. A list without its closing bracket is the beginning of the same list with a message more, and
a client spells the same messages the same way each turn, so equal prompts begin with equal bytes; role marks are in
them. A client that changes its spelling between turns loses its prefix and nothing else. Media are their own digest.

Token ids are decoded, since their blocks are numbers of ids: at most `IDS_BYTES` of them, which takes under 1 ms.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec
import xxhash

from gateway.dialects.call import Call
from gateway.dialects.plan import EFFORTS, FORMATS, GRAMMARS, TOOLS
from gateway.dialects.routes import Kind
from gateway.dialects.values import Fields
from policies import fingerprint

IDS_BYTES: Final = 128 * 1024
SAMPLE_BYTES: Final = 256
_HALF: Final = SAMPLE_BYTES // 2
CODE_SHARE: Final = 1 / 25  # one of these characters in 200 is in prose, in code one in 4 to 16
CJK_SHARE: Final = 1 / 2

_GENERATE: Final = Kind.GENERATE
_LIST: Final = ord("[")
_BACKSLASH: Final = ord("\\")
_SPACE: Final = b" \t\r\n"
_USER: Final = b'[{"role":"user"'  # how most lists of messages begin
_USER_TOO: Final = b'[{"role": "user"'
_USER_BYTES: Final = 16
_IDS: Final = re.compile(rb"\[\s*(?:\[\s*)?[0-9]").match
_ROLE: Final = re.compile(rb'"role"\s*:\s*"(\w*)"').match
_SYSTEM: Final = (b"system", b"developer")
_CODE: Final = bytes.maketrans(b"{}[]()<>=;", b"{" * 10)  # to count one byte is cheaper than to delete ten
_CJK: Final = bytes(range(0xE3, 0xEE))  # the first of three bytes: U+3000 to U+DFFF
_decode_ids: Final = msgspec.json.Decoder(list[int]).decode


# What is known of a prompt. How many tokens it has, if it is a list of their ids (0: it is none); its kind: text, code or
# cjk; its shape, which begins with `schema` or `tool` where that fixes the form of the answer; chain and head as in
# policies.fingerprint, none where nothing is generated, for then nothing follows.
Prompt = tuple[int, str, str, tuple[int, ...], int]


def look(call: Call, block_tokens: int, domain: tuple[str, str, str]) -> Prompt:
    """Look at the prompt of a call. `domain`: the tenant, the salt of its caches, the engine's name of the model."""
    fields, route = call.fields, call.route
    shapes = call.plan.shapes
    shape = _shape(fields, shapes) if shapes else ""
    parts: list[memoryview] = []
    for name in call.plan.rendered:
        last = memoryview(fields[name])
        parts.append(last)
    if not parts:
        return 0, "text", shape, (), 0
    generates = route.kind is _GENERATE
    begins_with = bytes(last[:_USER_BYTES])  # a tuple of beginnings takes five times longer
    from_user = begins_with.startswith(_USER) or begins_with.startswith(_USER_TOO)  # noqa: PIE810
    if not from_user and _IDS(last):
        return _of_ids(bytes(last), shape, block_tokens, _seeds(domain)[0] if generates else None)
    kind = _kind(last)
    if not generates:
        return 0, kind, shape, (), 0
    parts[-1] = open_end = _open(last)
    salted, plain = _seeds(domain)
    chain = fingerprint.chain(parts, block_tokens, salted)
    if from_user:  # there is no head
        begins = 0
    elif route.name == "completions":
        begins = _template_bytes(open_end)
    else:
        begins = _system_bytes(last)
    if not begins and len(parts) == 1:
        return 0, kind, shape, chain, 0
    parts[-1] = open_end[:begins]
    return 0, kind, shape, chain, fingerprint.head(parts, plain)


def _open(raw: memoryview) -> memoryview:
    """A list or a string as it may go on in the next turn."""
    end = len(raw) - 1
    while raw[end - 1] in _SPACE and raw[0] == _LIST:
        end -= 1
    return raw[:end]


def _kind(raw: memoryview) -> str:
    """By the middle of the text; a character that is escaped takes six bytes."""
    middle = len(raw) // 2
    sample = bytes(raw[middle - _HALF if middle > _HALF else 0 : middle + _HALF])
    size = len(sample)
    if not sample.isascii() or (_BACKSLASH in sample and b"\\u" in sample):  # to look for one byte takes a tenth
        wide = 3 * (size - len(sample.translate(None, _CJK))) + 6 * sample.count(b"\\u")
        if wide > CJK_SHARE * size:
            return "cjk"
    return "code" if sample.translate(_CODE).count(b"{") > CODE_SHARE * size else "text"


def _shape(fields: Fields, names: tuple[str, ...]) -> str:
    return " ".join(sorted(_shapes(fields, names), reverse=True))  # tool, schema, effort


def _shapes(fields: Fields, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        raw = bytes(fields[name]) if name in fields else b"null"
        if raw == b"null":
            continue
        if name in GRAMMARS or (name in FORMATS and b'"json_' in raw):
            yield f"schema:{_digest(raw)}"
        elif name in TOOLS and b'"auto"' not in raw and b'"none"' not in raw:
            yield f"tool:{_digest(raw)}"
        elif name in EFFORTS or name == "output_config":
            yield f"effort:{_digest(raw)}"


def _digest(raw: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(raw)


@lru_cache(maxsize=4096)  # beyond it only speed is lost
def _seeds(domain: tuple[str, str, str]) -> tuple[int, int]:
    """Of chains, and of heads: these must be the same after a restart, with another salt."""
    tenant, salt, model = domain
    return fingerprint.seed(salt, model), fingerprint.seed(tenant, model)


def _of_ids(raw: bytes, shape: str, block_tokens: int, seed: int | None) -> Prompt:
    """A list of ids, or several lists; `seed` None: nothing is generated."""
    chain = _chain_of_ids(raw, block_tokens, seed) if seed is not None else ()
    return raw.count(b",") + 1, "text", shape, chain, 0


def _chain_of_ids(raw: bytes, block_tokens: int, seed: int) -> tuple[int, ...]:
    """Of several lists the first is compared."""
    begin, end = raw.rfind(b"[", 0, 64), raw.find(b"]")
    if end > IDS_BYTES:
        end = raw.rfind(b",", begin, IDS_BYTES)
    try:
        return fingerprint.chain_of_ids(_decode_ids(raw[begin:end] + b"]"), block_tokens, seed)
    except ValueError:  # numbers that are no ids: the engine will say so
        return ()


def _template_bytes(text: memoryview) -> int:
    """A prompt without roles may begin with a template, if it is long enough."""
    return fingerprint.HEAD_BYTES if len(text) >= fingerprint.HEAD_BYTES else 0


def _system_bytes(messages: memoryview) -> int:
    """Where the system messages at the beginning of a list end; 0 without any.

    Quotes in text are escaped, so the bytes `"role"` stand only where a role is told, or a string is just that word.
    """
    end = 0
    if messages[0] != _LIST:
        return end
    beginning = bytes(messages[: fingerprint.HEAD_BYTES])
    at = beginning.find(b'"role"')
    while at >= 0:
        role = _ROLE(messages, at)
        if role is not None and role[1] not in _SYSTEM:
            return at if end and beginning[:at].rstrip().endswith(b"{") else end
        if role is not None:
            end = role.end()
        at = beginning.find(b'"role"', at + 1)
    return len(messages) if end else 0
