"""Readers of single raw values: each takes what the field may hold, or raises invalid_parameter naming it.

A raw value is JSON that the decoder has already accepted, without space around it; so its first byte tells its type.
"""

from typing import Final

import msgspec

from gateway.errors import GatewayError
from policies.decisions import Reason

Fields = dict[str, msgspec.Raw]

COUNTED_ITEMS: Final = 262_144  # longer lists are estimated: making a million raw values stops the loop for 50 ms

decode_fields = msgspec.json.Decoder(Fields).decode
decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode

_NULL: Final = msgspec.Raw(b"null")
_TRUE: Final = msgspec.Raw(b"true")
_FALSE: Final = msgspec.Raw(b"false")


def invalid(name: str, fault: str) -> GatewayError:
    """`name` has a value it may not have."""
    return GatewayError(Reason.INVALID_PARAMETER, f"{name} {fault}.", param=name)


def missing(*names: str) -> GatewayError:
    """One of `names` had to be there."""
    return GatewayError(Reason.INVALID_PARAMETER, f"Missing parameter: {' or '.join(names)}.", param=names[0])


def short(name: str) -> str:
    """A client's own name for a field, fit to be repeated in a message."""
    return name[:64]


def text(name: str, raw: msgspec.Raw, longest: int) -> str:
    """A string of 1 to `longest` characters."""
    try:
        value: str = _decode_text(raw)
    except msgspec.ValidationError:
        raise invalid(name, "must be a string") from None
    if not 1 <= len(value) <= longest:
        raise invalid(name, f"must have 1 to {longest} characters")
    return value


def flag(name: str, raw: msgspec.Raw) -> bool:
    """A boolean; null is false."""
    if raw == _TRUE:
        return True
    if raw in (_FALSE, _NULL):
        return False
    raise invalid(name, "must be true, false or null")


def integer(name: str, raw: msgspec.Raw, least: int, most: int) -> int | None:
    """An integer written in digits only: no sign, fraction or exponent. None for null."""
    value = bytes(raw)
    if len(value) <= 10 and value.isdigit():
        number = int(value)
        if least <= number <= most:
            return number
    elif value == b"null":
        return None
    raise invalid(name, f"must be an integer from {least} to {most}")


def fields_of(name: str, raw: msgspec.Raw) -> Fields:
    """An object's raw values; none for null."""
    if raw == _NULL:
        return {}
    try:
        value: Fields = decode_fields(raw)
    except msgspec.ValidationError:
        raise invalid(name, "must be an object") from None
    return value


def batch(raw: msgspec.Raw) -> int:
    """How many prompts a prompt field holds: the elements of a list, but a list of token ids is one prompt.

    Lists with more than COUNTED_ITEMS commas are taken at their commas, which is never too few.
    """
    value = bytes(raw)
    if value[:1] != b"[":
        return 1
    inner = value[1:64].lstrip()[:1]
    if inner == b"[":
        return value.count(b"[") - 1
    if inner not in (b'"', b"{"):
        return 1
    commas = value.count(b",")
    return commas + 1 if commas > COUNTED_ITEMS else len(decode_list(value))
