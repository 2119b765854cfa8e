"""Which of those at the head goes first? The earliest arrival, whatever its flow."""

from collections.abc import Iterable
from operator import attrgetter

from policies.state.tickets import Ticket

_order = attrgetter("order")


def fcfs(heads: Iterable[Ticket]) -> list[Ticket]:
    """`heads`, the first to arrive first."""
    return sorted(heads, key=_order)
