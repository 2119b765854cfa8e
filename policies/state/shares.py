"""What each class holds of a pool, and what its tenants have had of it: numbers that `classes` and `fairness` decide by."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from policies.state.forecasts import PACE, Forecast
from policies.state.served import Served
from policies.state.views import ForecastView, ShareView
from policies.types import Band, Fairness, Settings, Tenant

if TYPE_CHECKING:
    from policies.state.flows import Flow
    from policies.state.tickets import Ticket

# tenancy.md 5: with less room nothing is reserved, and a ceiling would leave half of two places empty.
SHARED_OUT_FROM_SEQS: Final = 8
ROUNDING: Final = 1e-9  # 0.95 x 20 is 19
UNBOUNDED: Final = 1 << 30
COVERED: Final = 0.9  # of the first tokens come within margin x expectation (scheduling.md 9)
UNKNOWN: Final = Tenant(id="")

CREDIT, OVERDUE, RANK = range(3)
"""Why it is a class's turn, the strongest first."""

Standing = tuple[bool, int, float, bool, "Flow", list["Ticket"]]
"""Is not new, round, place, is long: no two are equal in these. Then the flow and its heads in that lane, in order."""


class Account:
    """What one tenant has had of a class, in rounds: in one it may have a quantum times its weight.

    It is served first, `until` it has had a round, after it was away.
    """

    __slots__ = ("elsewhere", "flow", "heard", "left_s", "place", "running", "spent", "tenant", "until")

    def __init__(self, tenant: Tenant, spent: float, now: float) -> None:
        self.tenant = tenant
        self.spent = spent
        self.until = spent
        self.place = 0.0  # among those that wait,
        self.left_s = now
        self.flow: Flow | None = None  # while something of it waits
        self.running = 0  # requests that were charged here and have not ended
        self.heard = False  # of what other replicas serve it
        self.elsewhere = 0.0  # rounds of that which are not charged yet


class Share:
    """One class in one pool: `held` sequences of it run, of `most` it may hold; of each engine's prefill bound it may use `ratio`."""

    __slots__ = (
        "accounts",
        "band",
        "came",
        "credit",
        "entered",
        "flows",
        "forecasts",
        "held",
        "most",
        "ratio",
        "renew_s",
        "reserved",
        "right",
        "round",
        "served",
        "slack",
        "standings",
        "tenants",
        "terms",
        "until_s",
        "untold",
    )

    def __init__(self, band: Band, settings: Settings) -> None:
        self.held = 0
        self.most = UNBOUNDED
        self.slack = 0  # sequences it may take on, when that was looked at last
        self.ratio = 1.0
        self.reserved = 0
        self.renew_s = 0.0  # one that comes after that is to be noted
        self.until_s = 0.0  # its coming counts until then
        self.flows = 0  # tenants that wait in it
        self.right = RANK
        self.credit = 0.0
        self.round = 0.0  # the one that is being served
        self.entered = 0.0
        self.accounts: dict[str, Account] = {}
        self.standings: list[Standing] = []
        self.served = Served()
        self.untold: dict[str, float] = {}  # cost by tenant, where other replicas are to hear of it
        # Of first tokens, for short and long prompts. A class of its own has waits of its own: what makes standard
        # requests late says nothing about critical ones.
        self.forecasts = (Forecast(COVERED, PACE), Forecast(COVERED, PACE))
        self.change(band, settings)

    def change(self, band: Band, settings: Settings) -> None:
        """It is this class now."""
        self.band = band
        self.terms: Fairness = settings.fairness
        self.tenants = settings.tenants
        for name, account in self.accounts.items():
            account.tenant = self.tenants.get(name, UNKNOWN)

    def is_of(self, settings: Settings) -> bool:
        """Whether these settings say of the class what it is already."""
        return self.band == settings.bands.get(self.band.name) and self.terms == settings.fairness

    def account(self, tenant: str, now: float) -> Account:
        """Of this tenant; it begins with what a round gives."""
        account = self.accounts.get(tenant)
        if account is None:
            named = self.tenants.get(tenant, UNKNOWN)
            account = self.accounts[tenant] = Account(named, self.round - 1.0, now)
        return account

    def tell(self, tenant: str, cost: float) -> None:
        """Other replicas are to hear that it was served that much more, or less."""
        self.untold[tenant] = self.untold.get(tenant, 0.0) + cost

    def told(self, tenant: str, cost: int) -> None:
        """They know of so much."""
        left = self.untold.get(tenant, 0.0) - cost
        if abs(left) >= 1.0:
            self.untold[tenant] = left
        else:
            self.untold.pop(tenant, None)

    def view(self, pool: str, partition: str, waiting: Iterable[str], now: float) -> ShareView:
        """What its tenants were served in the last minute; those of `waiting` wait."""
        served = dict(self.served.last_minute(self.terms, now))
        weights = {name: self.tenants.get(name, UNKNOWN).weight for name in (*served, *waiting)}
        return ShareView(pool=pool, partition=partition, band=self.band.name, served=served, weights=weights)

    def views(self) -> list[ForecastView]:
        """How good its forecasts were."""
        return [
            ForecastView(band=self.band.name, long=bool(long), seen=one.seen, covered=one.covered, margin=one.margin)
            for long, one in enumerate(self.forecasts)
        ]


def bound(shares: list[Share], room: int) -> None:
    """Say what each class may hold of so many sequences. `shares`: all of a pool, the most urgent first."""
    left, large = room, room >= SHARED_OUT_FROM_SEQS
    for share in shares:
        most = max(1, min(left, floor(share.band.ceiling * room + ROUNDING)))
        share.most = most if most < room and large else UNBOUNDED
        share.reserved = ceil(share.band.reserved * room - ROUNDING) if large else 0
        left -= share.reserved


def look(shares: list[Share], room: int) -> int:
    """Find how many sequences each class may take on now; the least of them."""
    below = sum(share.held for share in shares)
    open_to_all, left, least = room, UNBOUNDED, UNBOUNDED
    for share in shares:
        share.slack = min(share.most - share.held, left)
        least = min(least, share.slack)
        open_to_all -= share.reserved
        below -= share.held
        if open_to_all < room:
            left = min(left, max(1, open_to_all) - below)
    return least
