"""Why a request went where it went: what the core was told and decided about the last few thousand.

On a request's path only references are kept, of objects that exist anyway; nothing is copied but a request whose chain
of hashes is long. Who asks has the steps searched through, which takes some 5 ms. Bounds: the last `ROOM` steps, of which
a request has three or four, of some 0.5 KiB each.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from policies.decisions import Decision, Dispatch, Evict, Fail, Reject
from policies.events import Arrived, Bounced, Cancelled, Event, Finished, FirstToken
from policies.types import InferenceRequest

ROOM: Final = 16384
KEPT_BLOCKS: Final = 8  # of a chain: 256 bytes

Step = tuple[float, InferenceRequest | Event, Sequence[Decision]]  # of an arrival the request stands for it

_NAMES: Final = (
    "id", "tenant", "model", "band", "route", "streamed", "arrived_s", "deadline_s", "prompt_tokens",
    "max_output_tokens", "sequences", "body_bytes", "session", "text_bytes", "kind", "shape",
)  # fmt: skip
_OF_ONE: Final = (FirstToken, Finished, Bounced, Cancelled)
_KINDS: Final = frozenset(
    _OF_ONE
)  # asked for its type an event costs a fifth of what `isinstance` does where it is none
_WHAT: Final[dict[type, str]] = {
    Dispatch: "dispatch",
    Reject: "reject",
    Evict: "evict",
    Fail: "fail",
    FirstToken: "first_token",
    Finished: "finished",
    Bounced: "bounced",
    Cancelled: "cancelled",
}


class Explain:
    """What the core was told and decided of late. `record` is called with everything it handles."""

    def __init__(self, room: int = ROOM) -> None:
        self._steps: deque[Step] = deque(maxlen=room)

    def record(self, now: float, event: Event, decisions: Sequence[Decision]) -> None:
        """The core has handled `event` at `now`."""
        if type(event) is Arrived:
            request = event.request
            if len(request.prefix) > KEPT_BLOCKS:
                request = replace(request, prefix=())
            self._steps.append((now, request, decisions))
        elif decisions or type(event) in _KINDS:
            self._steps.append((now, event, decisions))

    def find(self, request_id: str) -> dict[str, Any] | None:
        """What happened to a request, times in ms since its arrival; None when nothing is known of it (any more)."""
        arrival: InferenceRequest | None = None
        steps: list[tuple[float, Any]] = []
        for now, what, decisions in self._steps:
            if isinstance(what, InferenceRequest):
                arrival = what if what.id == request_id and arrival is None else arrival
            elif isinstance(what, _OF_ONE) and what.request_id == request_id:
                steps.append((now, what))
            steps += [(now, decision) for decision in decisions if decision.request_id == request_id]
        return _told(arrival, steps) if arrival is not None else None


def _told(arrival: InferenceRequest, steps: list[tuple[float, Any]]) -> dict[str, Any]:
    facts: dict[str, Any] = {name: getattr(arrival, name) for name in _NAMES}
    arrived_s = facts.pop("arrived_s")
    facts["deadline_ms"] = _ms(facts.pop("deadline_s") - arrived_s)
    facts["class"] = facts.pop("band")
    return {"request": facts, "steps": [_step(now - arrived_s, what) for now, what in steps]}


def _step(after_s: float, what: Any) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(what)
    del fields["request_id"]
    if "why" in fields:
        fields["why"]["class"] = fields["why"].pop("band")
    return {"at_ms": _ms(after_s), "what": _WHAT[type(what)], **fields}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
