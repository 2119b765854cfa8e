"""New keys: `fbk-<id>-<secret>`. The id is public, the secret has 256 bits, so that a plain hash of the whole is enough."""

import hashlib
import json
import re
import secrets
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from gateway.config.show import scalar
from gateway.config.tenant import Key

_ID = string.digits + string.ascii_lowercase
_SECRET = string.digits + string.ascii_letters
_DURATION = re.compile(r"([1-9][0-9]{0,4})(h|d|w)")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_STYLES: dict[str, Callable[[object], str]] = {
    "sha256": json.dumps,
    "created": str,
    "expires": str,
}  # as people write them
_FOREIGN = re.compile(r"[!-~]{20,256}")


class BadInput(ValueError):
    """What was asked for is none of what is possible; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A new key: what its owner presents, and what the tenant's file holds of it."""

    secret: str
    id: str
    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What shall be said of a new key. `foreign`: it exists already, elsewhere."""

    name: str | None = None
    expires: datetime | None = None
    class_ceiling: str | None = None
    foreign: str | None = None


def make(wanted: Wanted, taken: Collection[str], now: datetime) -> Made:
    """A key with an id that nobody has yet."""
    key_id = _new_id(taken)
    secret = wanted.foreign or f"fbk-{key_id}-{''.join(secrets.choice(_SECRET) for _ in range(43))}"
    fields: dict[str, object] = {
        "id": key_id,
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "name": wanted.name,
        "created": f"{now:%Y-%m-%d}",
        "expires": moment(wanted.expires) if wanted.expires else None,
        "class_ceiling": wanted.class_ceiling,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        Key.model_validate(given)
    except ValidationError as error:
        raise BadInput("; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors())) from None
    shown = [f"{name}: {_STYLES.get(name, scalar)(value)}" for name, value in given.items()]
    return Made(secret=secret, id=key_id, record=f"{{{', '.join(shown)}}}")


def foreign(text: str) -> str:
    """A key that was made elsewhere, as it came on stdin."""
    key = text.strip("\r\n")
    if not _FOREIGN.fullmatch(key):
        raise BadInput("a key is 20 to 256 printable ASCII characters without spaces")
    return key


def later(text: str, now: datetime) -> datetime:
    """`90d`, `24h`, `2w` from now, or a time of its own like 2027-02-01T00:00:00Z."""
    found = _DURATION.fullmatch(text)
    if found:
        return now.replace(microsecond=0) + timedelta(**{_UNITS[found[2]]: int(found[1])})
    try:
        given = datetime.fromisoformat(text)
        given.astimezone(UTC)
    except (ValueError, OverflowError):
        given = None
    if given is None or given.tzinfo is None:
        raise BadInput(f"{text!r} is neither a duration like 90d, 24h or 2w nor a time like 2027-02-01T00:00:00Z")
    return given


def moment(time: datetime) -> str:
    """A time as the file has it."""
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _new_id(taken: Collection[str]) -> str:
    while True:
        made = "".join(secrets.choice(_ID) for _ in range(12))
        if made not in taken:
            return made
