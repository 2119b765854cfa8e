"""What is read out of an engine's answer: how many tokens, and what one event of a stream means.

Shared by the two dialects. Nothing here trusts an engine: a value of the wrong type counts as not there.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, cast

import msgspec

MOST_TOKENS: Final = 2**31 - 1


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the engine told them; None = not told (never zero: engines.md 1.8)."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None

    def over(self, earlier: "Usage | None") -> "Usage":
        """These counts, and `earlier` ones where these are silent: Anthropic streams tell in two events."""
        if earlier is None:
            return self
        return Usage(
            earlier.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens,
            earlier.cached_tokens if self.cached_tokens is None else self.cached_tokens,
            earlier.output_tokens if self.output_tokens is None else self.output_tokens,
        )


UNTOLD: Final = Usage()


class EventKind(StrEnum):
    """What one event of a stream is, the gravest meaning first where it has several."""

    ERROR = "error"  # the engine's own error
    ABORT = "abort"  # finish_reason "abort": a failure that looks like an end
    END = "end"  # the dialect's end marker
    USAGE = "usage"  # nothing but the usage chunk: may be stripped
    TOKEN = "token"  # bears text, reasoning or part of a tool call
    OTHER = "other"
    COMMENT = "comment"  # bytes, not an event: commits nothing, resets no timer


class EventFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One event, understood.

    `usage` may stand in an event of any kind. `status` is the integer code of an ERROR, None where it has none, and
    `error` its JSON. `failed` marks an END that is a failure (`response.failed`): well-formed for the client, not a
    success for us. `garbled`: the data is not JSON, the bytes pass all the same.
    """

    kind: EventKind
    usage: Usage | None = None
    status: int | None = None
    error: bytes = b""
    failed: bool = False
    garbled: bool = False


class BodyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A whole, unstreamed answer, understood."""

    usage: Usage | None = None
    aborted: bool = False


Object = Mapping[str, object]
_NOTHING: Final[Object] = {}


def as_object(value: object) -> Object:
    """The value if it is a JSON object, else an empty one."""
    return cast(Object, value) if isinstance(value, dict) else _NOTHING


def as_objects(value: object) -> Iterable[Object]:
    """The objects in the value if it is a JSON array, else nothing."""
    return [cast(Object, item) for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def as_count(value: object) -> int | None:
    """The value if it is a plausible token count."""
    if type(value) is int and 0 <= value <= MOST_TOKENS:
        return value
    return None


def as_status(*values: object) -> int | None:
    """The first of the values that is an integer (bool is none)."""
    return next((value for value in values if type(value) is int), None)


def is_text(value: object) -> bool:
    """Is there text in the value: a non-empty string, or a non-empty list of parts?"""
    return isinstance(value, str | list) and len(value) > 0
