"""Which reader takes an answer."""

from typing import Final

from gateway.dialects.routes import Kind
from gateway.relay.attempt import Attempt, Body
from gateway.relay.plain import ErrorReader, PlainReader
from gateway.relay.stream import StreamReader

_GENERATE: Final = Kind.GENERATE
_SAY_NOTHING: Final = frozenset((204, 205))  # good answers without a body: nobody has asked for one


def choose(attempt: Attempt, status: int, fields: dict[bytes, bytes]) -> Body:
    """Who takes the body of an answer with this head."""
    if status >= 300 or status in _SAY_NOTHING:
        return ErrorReader(attempt, status, fields)
    content_type = fields.get(b"content-type", b"")
    is_stream = status == 200 and content_type.partition(b";")[0].strip().lower() == b"text/event-stream"
    if is_stream and attempt.route.kind is _GENERATE:  # the events of other routes have no meaning here
        return StreamReader(attempt, content_type, fields)
    return PlainReader(attempt, status, fields)
