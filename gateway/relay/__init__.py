"""An engine's answer to a client, protocol to protocol: no task switch, no copy, no JSON per token (http.md 6, 7).

An `Attempt` waits for the head, then hands the body to one of three readers: `StreamReader` for event streams,
`PlainReader` for everything else that is 2xx, `ErrorReader` for the rest.
"""

from gateway.relay.attempt import Attempt, Body, End, Hooks, How, Terms
from gateway.relay.plain import ErrorReader, PlainReader
from gateway.relay.stream import StreamReader

__all__ = ["Attempt", "End", "Hooks", "How", "Terms", "choose"]


def choose(attempt: Attempt, status: int, fields: dict[bytes, bytes]) -> Body:
    """Who takes the body of an answer with this head."""
    if not 200 <= status < 300:
        return ErrorReader(attempt, status, fields)
    content_type = fields.get(b"content-type", b"")
    if status == 200 and content_type.partition(b";")[0].strip().lower() == b"text/event-stream":
        return StreamReader(attempt, content_type, fields)
    return PlainReader(attempt, status, fields)
