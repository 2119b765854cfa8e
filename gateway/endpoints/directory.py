"""Which endpoints there are, and how healthy each is.

Up after one good probe, down after `FAILURES` failed ones in a row: one blip ejects nothing, and a death is certain
before anybody acts on it. An endpoint that was never reached is not up. Only probes decide; a failed request is merely
a reason to probe sooner (`suspect`), because it may have been the request's own fault. One that an operator has taken out
is probed like any other, and is `drained` however well it is.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

FAILURES = 3  # http.md 9


@dataclass(slots=True, kw_only=True)
class Standing:
    """What probes have told about one endpoint. `cause`: why the last one failed, "" after a good one.

    Times are Unix time: it is up, down or drained `since_s`, and the last failed probe, of `failed_s`, failed because of `failure`.
    """

    up: bool = False
    drained: bool = False
    since_s: float = field(default_factory=time.time)
    suspected: bool = False
    failures: int = 0  # in a row
    cause: str = ""
    failed_s: float = 0.0
    failure: str = ""
    probes_good: int = 0
    probes_failed: int = 0


class Directory:
    """Standings by endpoint name, and the two moments that matter: `on_up` and `on_down`, called once per change."""

    def __init__(self, names: Iterable[str], *, on_up: Callable[[str], None], on_down: Callable[[str], None]) -> None:
        self._standings = {name: Standing() for name in names}
        self._on_up = on_up
        self._on_down = on_down
        self.on_unreached: Callable[[str], None] = lambda name: None  # as many failed, and it never was up
        self.on_suspect: Callable[[str], None] = lambda name: None  # the prober's, once it runs

    def change(self, names: Iterable[str], anew: Collection[str]) -> None:
        """The endpoints are these now. Nothing is known any more of those in `anew`: they are others under old names."""
        before = self._standings
        self._standings = {name: before[name] if name in before and name not in anew else Standing() for name in names}

    def standing(self, name: str) -> Standing:
        """What is known about one endpoint; KeyError for a name that is not configured."""
        return self._standings[name]

    def standings(self) -> list[tuple[str, Standing]]:
        """All of them, in the order of the configuration."""
        return list(self._standings.items())

    def good(self, name: str) -> None:
        """A probe was answered well."""
        standing = self._standings[name]
        standing.probes_good += 1
        standing.failures = 0
        standing.cause = ""
        standing.suspected = False
        if not standing.up:
            _turn(standing, up=True)
            self._on_up(name)

    def failed(self, name: str, cause: str) -> None:
        """A probe was refused, answered badly, or not answered in time."""
        standing = self._standings[name]
        standing.probes_failed += 1
        standing.failures += 1
        standing.cause = standing.failure = cause
        standing.failed_s = time.time()
        if standing.up and standing.failures >= FAILURES:
            _turn(standing, up=False)
            standing.suspected = False
            self._on_down(name)
        elif standing.probes_failed == FAILURES and not standing.probes_good:
            self.on_unreached(name)

    def set_drained(self, name: str, drained: bool) -> bool:
        """An operator takes it out, or gives it back. Whether that is another state than before."""
        standing = self._standings[name]
        if standing.drained is drained:
            return False
        standing.drained, standing.since_s = drained, time.time()
        return True

    def suspect(self, name: str) -> None:
        """A request could not reach this endpoint: have probes decide soon, if they have not already."""
        standing = self._standings.get(name)  # None: it was removed while the request was on its way
        if standing is not None and standing.up and not standing.suspected:
            standing.suspected = True
            self.on_suspect(name)


def _turn(standing: Standing, *, up: bool) -> None:
    standing.up = up
    if not standing.drained:
        standing.since_s = time.time()
