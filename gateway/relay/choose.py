"""Which reader takes an answer."""

from gateway.relay.attempt import Attempt, Body
from gateway.relay.plain import ErrorReader, PlainReader
from gateway.relay.stream import StreamReader


def choose(attempt: Attempt, status: int, fields: dict[bytes, bytes]) -> Body:
    """Who takes the body of an answer with this head."""
    if not 200 <= status < 300:
        return ErrorReader(attempt, status, fields)
    content_type = fields.get(b"content-type", b"")
    if status == 200 and content_type.partition(b";")[0].strip().lower() == b"text/event-stream":
        return StreamReader(attempt, content_type, fields)
    return PlainReader(attempt, status, fields)
