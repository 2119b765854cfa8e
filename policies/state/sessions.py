"""Where the last turn of a client's session went. A hint for when the index has forgotten; it never pins a session.

A table per tenant, so that nobody fills another's (dynamo PR#14570). A session that is quiet for `ttl_s` is forgotten.
"""

from collections import OrderedDict

from policies.types import record

PRUNED = 2  # quiet sessions dropped for each one kept


@record
class Turn:
    """The last turn of a session: where it went, and how many tokens of prompt (a hint of what is cached) it had."""

    endpoint: str
    prompt_tokens: int
    at_s: float


class Sessions:
    """At most `most` sessions of each tenant, the least recently used going first (tenancy.md 1.2 `session`)."""

    def __init__(self, most: int = 10_000, ttl_s: float = 1800.0) -> None:
        self._most = most
        self._ttl_s = ttl_s
        self._tables: OrderedDict[str, OrderedDict[str, Turn]] = OrderedDict()  # the longest quiet tenant first
        self._down: dict[str, float] = {}  # since when what these endpoints had is gone

    def find(self, tenant: str, session: str, now: float) -> Turn | None:
        """The last turn of a session, if it is not too old and its endpoint has been up ever since."""
        table = self._tables.get(tenant)
        turn = table.get(session) if table is not None else None
        if turn is None or turn.at_s < now - self._ttl_s or turn.at_s <= self._down.get(turn.endpoint, turn.at_s - 1):
            return None
        return turn

    def keep(self, tenant: str, session: str, turn: Turn) -> None:
        """A turn of this session goes out."""
        table = self._tables.setdefault(tenant, OrderedDict())
        table[session] = turn
        table.move_to_end(session)
        self._tables.move_to_end(tenant)
        if len(table) > self._most:
            table.popitem(last=False)
        self._prune(tenant, turn.at_s)
        self._prune(next(iter(self._tables)), turn.at_s)

    def down(self, endpoint: str, now: float) -> None:
        """An endpoint is gone or restarted: what sessions had there is lost."""
        self._down = {name: at_s for name, at_s in self._down.items() if at_s >= now - self._ttl_s}
        self._down[endpoint] = now

    def _prune(self, tenant: str, now: float) -> None:
        table = self._tables[tenant]
        for _ in range(min(PRUNED, len(table))):
            oldest = next(iter(table))
            if table[oldest].at_s >= now - self._ttl_s:
                return
            del table[oldest]
        if not table:
            del self._tables[tenant]
