"""Which URLs a prompt may make an engine fetch: `data:`, and hosts on the tenant's list (http.md 4.1).

The tree is not built: each level is decoded into the few keys that can hold a part or its URL, the rest is skipped. So
a key spelt with escapes (`"image_\\u0075rl"`) is found like any other, which a search for bytes would miss, and text costs
one more scan at the decoder's speed. A host must be on the list exactly as the URL spells its authority: user names,
numeric addresses, odd slashes and control characters simply match nothing. What a listed host redirects to is the
engine's business.
"""

import re

import msgspec

from gateway.errors import GatewayError
from policies.decisions import Reason

_NONE = msgspec.Raw()


class _Node(msgspec.Struct, gc=False):
    """A message, an item, a part or a source: the keys under which more of them, or a URL, may stand."""

    content: msgspec.Raw = _NONE
    output: msgspec.Raw = _NONE
    source: msgspec.Raw = _NONE
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


_node = msgspec.json.Decoder(_Node)
_nodes = msgspec.json.Decoder(list[_Node])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_link = msgspec.json.Decoder(_Link)
_text = msgspec.json.Decoder(str)
_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)

_BRANCHES = ("content", "output", "source")
_URLS = ("image_url", "audio_url", "video_url", "file_url", "server_url", "url")
_EMBEDS = ("prompt_embeds", "image_embeds", "audio_embeds", "video_embeds")  # tensors, loaded by the engine


def check(field: str, value: bytes, hosts: frozenset[str]) -> None:
    """Look through one field's raw value. Raises GatewayError(forbidden_target | parameter_not_allowed)."""
    opens = value[:1]
    if opens == b"[":
        for node in _list(field, value, hosts):
            _check_node(field, node, hosts)
    elif opens == b"{":
        _check_node(field, _node.decode(value), hosts)


def _list(field: str, value: bytes, hosts: frozenset[str]) -> list[_Node]:
    try:
        return _nodes.decode(value)
    except msgspec.ValidationError:  # something in it is not an object
        for item in _raws.decode(value):
            check(field, bytes(item), hosts)
        return []


def _check_node(field: str, node: _Node, hosts: frozenset[str]) -> None:
    for name in _URLS:
        link = getattr(node, name)
        if link is not _NONE:
            _check_link(field, bytes(link), hosts)
    for name in _EMBEDS:
        if getattr(node, name) is not _NONE:
            raise GatewayError(Reason.PARAMETER_NOT_ALLOWED, f"Parts with {name} are not allowed here.", param=field)
    for name in _BRANCHES:
        branch = getattr(node, name)
        if branch is not _NONE:
            check(field, bytes(branch), hosts)


def _check_link(field: str, link: bytes, hosts: frozenset[str]) -> None:
    """A link is a string, or an object with `url`; anything else is not one."""
    if link[:1] == b"{":
        link = bytes(_link.decode(link).url)
    if link[:1] != b'"' or link[:6].lower() == b'"data:':
        return
    url = _text.decode(link)
    found = _AUTHORITY.match(url)
    if url[:5].lower() != "data:" and (found is None or found[1].lower() not in hosts):
        raise GatewayError(
            Reason.FORBIDDEN_TARGET, "The URL of a part must be data: or a host on your list.", param=field
        )
