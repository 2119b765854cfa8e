"""The field policy at work: what of a client's fields may pass, is removed, or is refused (tables: fields.py).

A field that may not be sent but asks for nothing (null; false for flags) is removed in silence of an error: clients
write their defaults out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.dialects import media
from gateway.dialects.fields import Group, Table
from gateway.dialects.plan import Plan
from gateway.dialects.values import (
    Fields,
    decode_list,
    fields_of,
    integer,
    invalid,
    missing,
    short,
)
from gateway.errors import GatewayError
from policies.decisions import Reason

BULKY_BYTES: Final = 256 * 1024
STOPS_BYTES: Final = 64 * 1024
NOTICE_BYTES: Final = 256
MOST_COPIES: Final = 8  # vLLM's own bound is 16384: CVE-2026-34756

_TEMPLATE_KEYS: Final = frozenset({"enable_thinking", "thinking"})
_HEADER_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRules:
    """What a tenant may send: granted parameters, hosts of media URLs, and whether unknown fields are refused."""

    parameters: frozenset[str]
    media_hosts: frozenset[str]
    reject_unknown: bool


def apply(plan: Plan, fields: Fields, rules: FieldRules) -> tuple[tuple[str, ...], int]:
    """Hold `fields` to the policy: raises GatewayError, or removes what may not pass.

    Returns the names of that, and how many bytes of the prompt stand inline and are no text.
    """
    shown = _drop(plan, fields, rules) if plan.odd else ()
    if plan.missing:
        raise missing(*plan.missing)
    for name, opens in plan.opens:
        if memoryview(fields[name])[0] not in opens:  # the byte that tells the type
            raise invalid(name, "has the wrong type")
    if plan.bulky and sum(len(fields[name]) for name in plan.bulky) > BULKY_BYTES:
        raise invalid(plan.bulky[0], "and other schemas are larger than 256 KiB together")
    inline = 0
    for name, kind in plan.media:
        inline += media.check(name, bytes(fields[name]), kind, rules.media_hosts)
    return shown, inline


def _drop(plan: Plan, fields: Fields, rules: FieldRules) -> tuple[str, ...]:
    """Remove what may not pass; its names, as far as they fit a header."""
    dropped = [name for name in plan.odd if not _passes(plan.table, name, fields[name], rules)]
    for name in dropped:
        del fields[name]
    return _shown(dropped)


def _passes(table: Table, name: str, raw: msgspec.Raw, rules: FieldRules) -> bool:
    """True: it stays. False: it is removed. Raises where it is refused."""
    match table.groups.get(name):
        case Group.LIMITED:
            LIMITS[name](name, raw)
            return True
        case Group.GRANTED:
            return _granted(name, raw, rules)
        case Group.FORBIDDEN:
            return _asks_nothing(name, raw, b"null")
        case Group.STATEFUL:
            return _asks_nothing(name, raw, b"null", b"false")
        case Group.REMOVED:
            return False
        case None:
            return _unknown(name, rules)


def _unknown(name: str, rules: FieldRules) -> bool:
    if rules.reject_unknown:
        raise GatewayError(Reason.UNKNOWN_PARAMETER, f"Unknown parameter: {short(name)}.", param=short(name))
    return False


def _granted(name: str, raw: msgspec.Raw, rules: FieldRules) -> bool:
    if name not in rules.parameters:
        return _asks_nothing(name, raw, b"null", b"false")
    if name == "chat_template_kwargs":
        for key in fields_of(name, raw):
            if key not in _TEMPLATE_KEYS:
                raise not_allowed(f"{name}.{short(key)}")
    return True


def _asks_nothing(name: str, raw: msgspec.Raw, *harmless: bytes) -> bool:
    if bytes(raw) in harmless:
        return False
    raise not_allowed(name)


def not_allowed(name: str) -> GatewayError:
    """`name` is a field that this client may not send."""
    return GatewayError(Reason.PARAMETER_NOT_ALLOWED, f"The parameter {name} is not allowed here.", param=name)


def _shown(names: list[str]) -> tuple[str, ...]:
    """The names that can stand in a header, as many as fit into NOTICE_BYTES with commas between."""
    room = NOTICE_BYTES + 1
    shown: list[str] = []
    for name in names:
        if len(name) < room and name and _HEADER_SAFE.issuperset(name):
            room -= len(name) + 1
            shown.append(name)
    return tuple(shown)


# ---- limits


def _copies(name: str, raw: msgspec.Raw) -> None:
    integer(name, raw, 1, MOST_COPIES)


def _logprobs(name: str, raw: msgspec.Raw) -> None:
    if bytes(raw) not in (b"true", b"false"):
        integer(name, raw, 0, 20)


def _stops(name: str, raw: msgspec.Raw) -> None:
    value = bytes(raw)
    if value[:1] == b"[" and (len(value) > STOPS_BYTES or len(decode_list(value)) > 16):
        raise invalid(name, "must have at most 16 sequences")


def _biases(name: str, raw: msgspec.Raw) -> None:
    if bytes(raw).count(b",") >= 1024:
        raise invalid(name, "must have at most 1024 entries")


LIMITS: Final[Mapping[str, Callable[[str, msgspec.Raw], None]]] = {
    "n": _copies,
    "best_of": _copies,
    "logprobs": _logprobs,
    "top_logprobs": _logprobs,
    "stop": _stops,
    "stop_sequences": _stops,
    "logit_bias": _biases,
}
