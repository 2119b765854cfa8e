"""What every request of a gateway shares: put together once by the app, handed to each run."""

import ipaddress
from dataclasses import InitVar, dataclass, field
from typing import Protocol

from gateway.backends import Backends
from gateway.compose import Ids
from gateway.config import Timers
from gateway.describe import Given
from gateway.dispatcher import Dispatcher
from gateway.http.exchange import Exchange
from gateway.relay.end import Rules
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.log import EventLog
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Book, Tenants
from policies.decisions import Reason

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Active(Protocol):
    """A request that counts and has not ended."""

    def check(self, now: float) -> None:
        """Act on its timers."""

    def interrupt(self, reason: Reason) -> None:
        """End it because the gateway ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the configuration says to requests. Times are scaled already."""

    book: Book
    timers: Timers
    relay_rules: Rules
    given: Given
    body_bytes: int
    trusted_proxies: tuple[Network, ...]


@dataclass(slots=True, kw_only=True)
class Services:
    """The terms stand here by themselves: each request reads some of them."""

    dispatcher: Dispatcher
    backends: Backends
    tenants: Tenants
    metrics: Metrics
    access_log: AccessLog
    events: EventLog
    terms: InitVar[Terms]
    timers: Timers = field(init=False)
    relay_rules: Rules = field(init=False)
    given: Given = field(init=False)
    body_bytes: int = field(init=False)
    trusted_proxies: tuple[Network, ...] = field(init=False)
    ids: Ids = field(default_factory=Ids)
    runs: set[Active] = field(default_factory=set)
    ready: bool = False
    refusing: bool = False  # draining, near the end of the grace: whatever is new gets 503

    def __post_init__(self, terms: Terms) -> None:
        self.change(terms)

    def change(self, terms: Terms) -> None:
        """From now on requests come under these terms."""
        self.tenants.use(terms.book)
        self.given = terms.given
        self.timers, self.relay_rules = terms.timers, terms.relay_rules
        self.body_bytes, self.trusted_proxies = terms.body_bytes, terms.trusted_proxies

    def client_address(self, exchange: Exchange) -> str:
        """Whose request it is: the peer; or, where that is a trusted proxy, whom it and those before it say that it is. What
        stands left of the first address that is nobody trusted anybody can have written."""
        address = exchange.peer
        if not self.trusted_proxies or exchange.head is None or not self._trusts(address):
            return address
        for claimed in reversed(exchange.head.get(b"x-forwarded-for").decode("ascii").split(",")):
            if not _is_address(claimed.strip()):
                return address
            address = claimed.strip()
            if not self._trusts(address):
                return address
        return address

    def _trusts(self, peer: str) -> bool:
        return _is_address(peer) and any(ipaddress.ip_address(peer) in network for network in self.trusted_proxies)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
