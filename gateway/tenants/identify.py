"""From the head of a request to its Caller: `Authorization: Bearer KEY` or `x-api-key: KEY`, hashed and looked up.

Whoever is refused is told the same, whatever the cause; that is only in `failures`, for the metrics. A head that comes
again on its connection is not asked about again as long as `book` is the same object (pipeline.py `_identify`): a new
configuration is in force for all requests from the moment it stands in `book`, and nowhere else must anything be told.
"""

import hashlib
import hmac
import time
from collections.abc import Iterable

from gateway.callers import Caller, Urgency
from gateway.errors import GatewayError
from gateway.http.head import Head
from gateway.tenants.book import Book, Entry
from gateway.tenants.throttle import Throttle
from policies.decisions import Reason

CAUSES = ("missing", "malformed", "contradicting", "unknown", "blocked", "expired", "disabled")
_NOBODY = Entry(bytes(32), None, "unknown")


class Tenants:
    """Finds the caller of a request by its credential."""

    def __init__(self, book: Book, throttle: Throttle) -> None:
        self.book = self._of_files = book
        self.failures = dict.fromkeys(CAUSES, 0)
        self.clamped: dict[tuple[str, str], int] = {}  # classes asked for and given
        self.unknown_classes = 0
        self.used_s: dict[str, float] = {}  # when the last request of a key came, on the monotonic clock
        self._throttle = throttle
        self._blocked: set[str] = set()  # by an operator, whatever the files say

    def use(self, book: Book) -> None:
        """Go by another configuration."""
        self._of_files = book
        self.book = book.without(self._blocked)

    def block(self, keys: Iterable[str]) -> list[str]:
        """These keys open nothing any more. Those of them that did."""
        fresh = set(keys) - self._blocked
        if not fresh:
            return []
        self._blocked.update(fresh)
        before, self.book = self.book, self.book.without(fresh)
        if self.book is before:
            return []
        return [entry.key for entry in before.keys.values() if entry.caller is not None and entry.key in fresh]

    def unblock(self, keys: Iterable[str]) -> list[str]:
        """An operator blocks these no more: it is for the files to say what they open. Those that one did block."""
        found = [key for key in keys if key in self._blocked]
        self._blocked.difference_update(found)
        if found:
            self.book = self._of_files.without(self._blocked)
        return found

    def blocked(self) -> frozenset[str]:
        """What an operator has blocked, whatever the files say."""
        return frozenset(self._blocked)

    def knows(self, key: str) -> bool:
        """Whether there is such a key, open or not, or was when it was blocked."""
        return key in self._blocked or self.book.knows(key)

    def identify(self, head: Head, client: str) -> Caller:
        """Who has sent a head; raises GatewayError (401, or 429 for an address that is wrong too often)."""
        presented, cause = _credential(head)
        if self.book.anonymous is not None:
            if cause == "contradicting":
                raise self._refusal(cause, client)
            return self.book.anonymous
        digest = hashlib.sha256(presented).digest()
        entry = self.book.keys.get(digest, _NOBODY)
        same = hmac.compare_digest(digest, entry.digest)
        caller = entry.caller
        if same and caller is not None and not cause and not expired(caller):
            return caller
        raise self._refusal(cause or entry.cause or "expired", client)

    def note(self, urgency: Urgency) -> None:
        """A request has asked for a class that it does not get."""
        if urgency.clamped is not None:
            self.clamped[urgency.clamped] = self.clamped.get(urgency.clamped, 0) + 1
        self.unknown_classes += urgency.unknown

    def _refusal(self, cause: str, client: str) -> GatewayError:
        self.failures[cause] += 1
        wait_s = self._throttle.failed(client, time.monotonic())
        return GatewayError(Reason.AUTH_THROTTLED, retry_after_s=wait_s) if wait_s else GatewayError(Reason.BAD_KEY)


def expired(caller: Caller) -> bool:
    """Whether a key's time is over, by the wall clock."""
    return caller.expires_s is not None and time.time() >= caller.expires_s


def _credential(head: Head) -> tuple[bytes, str]:
    """What was presented, and what is wrong with how."""
    authorization, key = head.fields.get(b"authorization"), head.fields.get(b"x-api-key")
    bearer: bytes | None = None
    if authorization is not None:
        scheme, _, bearer = authorization.partition(b" ")
        bearer = bearer.strip()
        if key is not None and bearer != key:
            return b"", "contradicting"
        if scheme.lower() != b"bearer":
            return b"", "malformed"
    presented = key if bearer is None else bearer
    if presented is None:
        return b"", "missing"
    return presented, "" if presented else "malformed"
