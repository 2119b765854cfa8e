"""Whose the rest of an answer is when its client has left and the engine must not be aborted (http.md 8).

It is read to its end, under the timers of the request, and nobody gets it. The attempt ends as it would for the client.
"""

from collections.abc import Callable

from gateway.relay.attempt import Owner
from gateway.relay.end import End


class Rest:
    """Owns an attempt in the place of a request whose client has left."""

    def __init__(self, of: Owner, first_token: Callable[[], None], ended: Callable[[End], None]) -> None:
        self.exchange = of.exchange  # its connection is gone: what is written there goes nowhere
        self.route = of.route
        self.first_byte_by_s = of.first_byte_by_s
        self.deadline_s = of.deadline_s
        self.strips_usage = of.strips_usage
        self.deadline_reason = of.deadline_reason
        self.request_id = of.request_id
        self._first_token = first_token
        self._ended = ended

    def commit(self, status: int, content_type: bytes, coding: bytes, length: int | None) -> None:
        """There is nobody to begin an answer for."""

    def answer(self, content_type: bytes, coding: bytes, body: bytes) -> None:
        """There is nobody to answer."""

    def first_token(self) -> None:
        """The engine has finished its prefill."""
        self._first_token()

    def attempt_ended(self, end: End) -> None:
        """The answer is read."""
        self._ended(end)
