"""Why a request went where it went: what the core was told and decided about each of the last few thousand.

On a request's path only references are kept, of objects that exist anyway; nothing is copied but the facts of the
request, because its chain of hashes may be long. Answers are put together when somebody asks. Bounds: `ROOM` requests
of about 1 KiB, each with as many steps as its attempts can have.
"""

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from policies.decisions import Decision, Dispatch, Evict, Fail, Reject
from policies.events import Arrived, Bounced, Cancelled, Event, Finished, FirstToken
from policies.types import InferenceRequest

ROOM = 4096

Step = tuple[float, Decision | FirstToken | Finished | Bounced | Cancelled]

_NAMES = (
    "id", "tenant", "model", "band", "route", "streamed", "arrived_s", "deadline_s", "prompt_tokens",
    "max_output_tokens", "sequences", "body_bytes", "session", "text_bytes", "kind", "shape",
)  # fmt: skip
_facts = attrgetter(*_NAMES)
_OF_ONE = (FirstToken, Finished, Bounced, Cancelled)
_WHAT: dict[type, str] = {
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
    """The last requests and what became of them. `record` is called with everything the core handles."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._steps: dict[str, list[Step]] = {}
        self._arrivals: deque[tuple[Any, ...]] = deque()

    def record(self, now: float, event: Event, decisions: Sequence[Decision]) -> None:
        """The core has handled `event` at `now`."""
        steps = self._steps
        if isinstance(event, Arrived):
            self._arrived(event.request)
        elif isinstance(event, _OF_ONE) and event.request_id in steps:
            steps[event.request_id].append((now, event))
        for decision in decisions:
            if decision.request_id in steps:
                steps[decision.request_id].append((now, decision))

    def find(self, request_id: str) -> dict[str, Any] | None:
        """What happened to a request, times in ms since its arrival; None when nothing is known of it (any more)."""
        steps = self._steps.get(request_id)
        if steps is None:
            return None
        facts = dict(zip(_NAMES, next(found for found in self._arrivals if found[0] == request_id), strict=True))
        arrived_s = facts.pop("arrived_s")
        facts["deadline_ms"] = _ms(facts.pop("deadline_s") - arrived_s)
        facts["class"] = facts.pop("band")
        return {"request": facts, "steps": [_step(now - arrived_s, what) for now, what in steps]}

    def _arrived(self, request: InferenceRequest) -> None:
        steps, arrivals = self._steps, self._arrivals
        if request.id in steps:
            return
        steps[request.id] = []
        arrivals.append(_facts(request))
        if len(arrivals) > self._room:
            del steps[arrivals.popleft()[0]]


def _step(after_s: float, what: Any) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(what)
    del fields["request_id"]
    return {"at_ms": _ms(after_s), "what": _WHAT[type(what)], **fields}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
