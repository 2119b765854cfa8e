"""Which URLs a prompt may make an engine fetch: `data:`, and hosts on the tenant's list (http.md 4.1).

No tree is built. Each level is decoded into the few keys that can hold a part or its URL, and the rest is skipped. So a
key spelt with escapes (`"image_\\u0075rl"`) is found like any other, which a search for bytes would miss, and text costs
one more scan at the decoder's speed; a value in which no part can stand (one byte tells) costs none.
What stands inline (`data:`, base64) is weighed on the way: it is no text, and counts as a flat number of tokens a part.
A host must be on the list exactly as the URL spells its authority: user names, numeric addresses, odd slashes and
control characters simply match nothing. What a listed host redirects to is the engine's business.
"""

import re

import msgspec

from gateway.dialects.fields import Media
from gateway.dialects.values import decode_list, invalid
from gateway.errors import GatewayError
from policies.decisions import Reason

# A value larger than this with more objects or elements than these is searched for signs of media instead of walked,
# and refused if there is one: a million parts would stop the loop for half a second.
LARGE_BYTES = 256 * 1024
MOST_OBJECTS = 65_536
MOST_COMMAS = 262_144
PART_BYTES = 4096  # what a part that stands inline counts as, in bytes of text: about 1,024 tokens
_SIGNS = (b'url"', b'embeds"', b"\\u006", b"\\u007")  # the last two: a letter of a key, escaped

_NONE = msgspec.Raw()
_MESSAGES = Media.MESSAGES


class _Message(msgspec.Struct, gc=False):
    content: msgspec.Raw = _NONE


class _Part(msgspec.Struct, gc=False):
    """A part, an item or a source: the keys under which more of them, a URL or a tensor may stand."""

    content: msgspec.Raw = _NONE
    output: msgspec.Raw = _NONE
    source: msgspec.Raw = _NONE
    input_audio: msgspec.Raw = _NONE
    file: msgspec.Raw = _NONE
    data: msgspec.Raw = _NONE
    file_data: msgspec.Raw = _NONE
    image_url: msgspec.Raw = _NONE
    audio_url: msgspec.Raw = _NONE
    video_url: msgspec.Raw = _NONE
    file_url: msgspec.Raw = _NONE
    server_url: msgspec.Raw = _NONE
    url: msgspec.Raw = _NONE
    prompt_embeds: msgspec.Raw = _NONE
    image_embeds: msgspec.Raw = _NONE
    audio_embeds: msgspec.Raw = _NONE
    video_embeds: msgspec.Raw = _NONE


class _Link(msgspec.Struct, gc=False):
    url: msgspec.Raw = _NONE


_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_part = msgspec.json.Decoder(_Part).decode
_decode_link = msgspec.json.Decoder(_Link).decode
_decode_text = msgspec.json.Decoder(str).decode

_NO_MEDIA = _Part()
_BRANCHES = ("content", "output", "source", "input_audio", "file")
_INLINE = ("data", "file_data")  # base64 of a source, a sound, a file
_URLS = ("image_url", "audio_url", "video_url", "file_url", "server_url", "url")
_EMBEDS = ("prompt_embeds", "image_embeds", "audio_embeds", "video_embeds")  # tensors, unpacked by the engine
_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)


def check(name: str, value: bytes, kind: Media, hosts: frozenset[str]) -> int:
    """Look through the raw value of field `name`; how many of its bytes are no text.

    Raises GatewayError(forbidden_target | parameter_not_allowed).
    """
    of_messages = kind is _MESSAGES
    if value.find(b"[" if of_messages else b"{", of_messages) < 0:
        return 0
    if len(value) > LARGE_BYTES and _dense(value):
        if any(sign in value for sign in _SIGNS):
            raise invalid(name, "has too many parts")
        return 0
    return _check_messages(name, value, hosts) if of_messages else _walk(name, value, hosts)


def _dense(value: bytes) -> bool:
    return value.count(b"{") > MOST_OBJECTS or value.count(b",") > MOST_COMMAS


def _check_messages(name: str, value: bytes, hosts: frozenset[str]) -> int:
    try:
        messages: list[_Message] = _decode_messages(value)
    except msgspec.ValidationError:
        raise invalid(name, "must be a list of objects") from None
    inline = 0
    for message in messages:
        inline += _walk(name, bytes(message.content), hosts)
    return inline


def _walk(name: str, value: bytes, hosts: frozenset[str]) -> int:
    """A part stands alone or in a list; text holds none."""
    opens = value[:1]
    if opens == b"{":
        return _check_part(name, _decode_part(value), hosts)
    if opens != b"[":
        return 0
    try:
        parts = _decode_parts(value)
    except msgspec.ValidationError:  # some elements are not objects
        return sum(_walk(name, bytes(item), hosts) for item in decode_list(value))
    return sum(_check_part(name, part, hosts) for part in parts if part != _NO_MEDIA)


def _check_part(name: str, part: _Part, hosts: frozenset[str]) -> int:
    inline = 0
    for key in _URLS:
        link = getattr(part, key)
        if link is not _NONE:
            inline += _check_link(name, bytes(link), hosts)
    for key in _INLINE:
        inline += _weight(bytes(getattr(part, key)))
    for key in _EMBEDS:
        if getattr(part, key) is not _NONE:
            raise GatewayError(Reason.PARAMETER_NOT_ALLOWED, f"Parts with {key} are not allowed here.", param=name)
    for key in _BRANCHES:
        inline += _walk(name, bytes(getattr(part, key)), hosts)
    return inline


def _weight(data: bytes) -> int:
    """How many bytes of an inline part do not count as text."""
    return max(0, len(data) - PART_BYTES) if data[:1] == b'"' else 0


def _check_link(name: str, link: bytes, hosts: frozenset[str]) -> int:
    """A link is a string, or an object with `url`; anything else is not one."""
    if link[:1] == b"{":
        link = bytes(_decode_link(link).url)
    if link[:1] != b'"':
        return 0
    if link[:6].lower() == b'"data:':
        return _weight(link)
    url = _decode_text(link)
    found = _AUTHORITY.match(url)
    if url[:5].lower() != "data:" and (found is None or found[1].lower() not in hosts):
        raise GatewayError(
            Reason.FORBIDDEN_TARGET, "The URL of a part must be data: or a host on your list.", param=name
        )
    return 0
