"""What engines say of themselves: one task per endpoint that reads its model list once and its metrics again and again.

Only while the endpoint is up. The model list is asked until it is answered, anew after each return; metrics every
`every_s` ± 10 %, so that many gateways do not ask in step. A page is parsed as it arrives and never held, so that none
of any size stalls the loop. What fails, is late, or is no number, is no news: `on_load` is called with good figures only,
and an endpoint without any for `STALE_PERIODS` is stale. So is one that is busy and whose figures do not move at all for
so long: an engine at work fills its cache. Nothing here counts as load or as a sign of health.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from gateway.endpoints.ask import OK, Asker, NoAnswer
from gateway.endpoints.exposition import Exposition, Load, NotMetrics, load, wanted
from gateway.endpoints.watches import Watches
from gateway.engines.row import Gauges
from gateway.http.resolve import Address

STALE_PERIODS = 4  # scheduling.md 5
TIMEOUT_S = 0.5  # engines.md 5
PAGE_BYTES = 8 * 1024 * 1024
MODELS_BYTES = 1024 * 1024
RESULTS = ("good", "failed", "invalid", "frozen")
_NO_ANSWER = (NoAnswer, TimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """Where one endpoint is asked: `authority` is the host header, `served_as` the models it should have by its own names.

    `metrics_path` and `gauges` None: it has no metrics. `api_key` is the endpoint's own, None for none.
    """

    name: str
    host: str
    port: int
    tls: bool
    authority: str
    served_as: frozenset[str]
    metrics_path: str | None
    gauges: Gauges | None
    api_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an endpoint is, as far as it told; 0 = not known. `context_tokens`: the longest of its models' contexts."""

    context_tokens: int = 0
    kv_tokens: int = 0
    block_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One endpoint as it presents itself. `load` None: nothing is known that is not too old. `counts` by `RESULTS`."""

    name: str
    has_metrics: bool
    stale: bool
    load: Load | None
    load_age_s: float
    facts: Facts
    counts: Mapping[str, int]


@dataclass(slots=True, kw_only=True)
class _Scraped:
    """What one endpoint has told since `up_s`. `load` is the last good one, of `load_s`, and has been the same since
    `moved_s`; all times are monotonic."""

    facts: Facts = Facts()
    load: Load | None = None
    load_s: float = 0.0
    moved_s: float = 0.0
    up_s: float = 0.0
    asked: bool = False
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))
    up: asyncio.Event = field(default_factory=asyncio.Event)


class _Model(msgspec.Struct):
    id: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


_read_models = msgspec.json.Decoder(_Models).decode


class Scraper:
    """Asks all targets from `start` to `close`. Times in seconds; `scale` multiplies the fixed ones (tests).

    `on_load` is called with every good page, `on_facts` when an endpoint turns out to be another than was known.
    """

    def __init__(self, targets: Iterable[ScrapeTarget], *, every_s: float, scale: float = 1.0) -> None:
        self.on_load: Callable[[str, float, Load], None] = lambda name, seen_s, load: None
        self.on_facts: Callable[[str, Facts], None] = lambda name, facts: None
        self._targets = tuple(targets)
        self._every_s = every_s
        self._scale = scale
        self._random = random.Random()
        self._scraped = {target.name: _Scraped() for target in self._targets}
        self._watches = Watches(self._watch, "scrape")

    def start(self) -> None:
        """Begin to ask whoever is up. Needs a running loop."""
        self._watches.change(self._targets)

    def change(self, targets: Iterable[ScrapeTarget], every_s: float) -> None:
        """Ask these from now on, in that period. One that is another than before, and up, is asked anew what it is."""
        before = {target.name: target for target in self._targets}
        self._targets, self._every_s = tuple(targets), every_s
        known = self._scraped
        self._scraped = {
            target.name: known[target.name] if before.get(target.name) == target else _Scraped()
            for target in self._targets
        }
        self._watches.change(self._targets)
        for name, scraped in self._scraped.items():
            if name in known and known[name] is not scraped and known[name].up.is_set():
                self.up(name)

    def facts(self, name: str) -> Facts:
        """What an endpoint has told it is."""
        return self._scraped[name].facts

    async def close(self) -> None:
        """End every task, also one whose engine hangs."""
        await self._watches.close()

    def up(self, name: str) -> None:
        """An endpoint can be asked now: it may be a new process at the old address."""
        scraped = self._scraped[name]
        scraped.facts, scraped.load, scraped.asked = Facts(), None, False
        scraped.up_s = time.monotonic()
        scraped.up.set()

    def down(self, name: str) -> None:
        """An endpoint is not to be asked."""
        scraped = self._scraped[name]
        scraped.load = None
        scraped.up.clear()

    def reports(self) -> Iterator[Report]:
        """What is known of each endpoint now."""
        now_s = time.monotonic()
        for target in self._targets:
            scraped = self._scraped[target.name]
            since_s = max(scraped.load_s, scraped.up_s)
            stale = scraped.up.is_set() and now_s - since_s > STALE_PERIODS * self._every_s
            yield Report(
                name=target.name,
                has_metrics=target.gauges is not None,
                stale=stale and target.gauges is not None,
                load=None if stale else scraped.load,
                load_age_s=now_s - scraped.load_s,
                facts=scraped.facts,
                counts=scraped.counts,
            )

    async def _watch(self, target: ScrapeTarget) -> None:
        address = Address(target.host, target.port)
        asker = Asker(address, target.authority, tls=target.tls, api_key=target.api_key)
        try:
            await self._ask(target, self._scraped[target.name], asker)
        finally:
            asker.close()

    async def _ask(self, target: ScrapeTarget, scraped: _Scraped, asker: Asker) -> None:
        loop = asyncio.get_running_loop()
        while self._watches.has(target):
            await scraped.up.wait()
            began_s = loop.time()
            if not scraped.asked:
                await self._ask_models(target, scraped, asker)
            elif target.gauges is None:
                scraped.up.clear()  # nothing more to ask until it has been away
            if target.gauges is not None and self._watches.has(target):
                await self._scrape(target, target.gauges, scraped, asker)
            await asyncio.sleep(began_s + self._every_s * self._random.uniform(0.9, 1.1) - loop.time())

    async def _ask_models(self, target: ScrapeTarget, scraped: _Scraped, asker: Asker) -> None:
        """Read how long its models' contexts are. An engine that has no such list is not asked again."""
        body = bytearray()

        def take(piece: bytes) -> None:
            if len(body) + len(piece) > MODELS_BYTES:
                raise NoAnswer
            body.extend(piece)

        try:
            status = await asker.get("/v1/models", take, self._timeout_s())
        except _NO_ANSWER:
            return
        if not self._watches.has(target) or not scraped.up.is_set() or status >= 500:
            return
        scraped.asked = True
        lengths = _contexts(bytes(body), target.served_as) if status == OK else []
        self._learn(target.name, scraped, replace(scraped.facts, context_tokens=max(lengths, default=0)))

    async def _scrape(self, target: ScrapeTarget, gauges: Gauges, scraped: _Scraped, asker: Asker) -> None:
        began_s, seen, result = time.monotonic(), None, "failed"
        try:
            page = await self._page(target, wanted(gauges), asker)
            seen, result = load(page, gauges), "invalid"
        except NotMetrics:
            result = "invalid"
        except _NO_ANSWER:
            pass
        if not self._watches.has(target) or not scraped.up.is_set():
            return
        if seen is not None:
            result = self._take(target.name, scraped, began_s, seen)
        else:
            scraped.moved_s = math.inf  # what comes after silence is news, even if it is the same
        scraped.counts[result] += 1

    def _take(self, name: str, scraped: _Scraped, seen_s: float, seen: Load) -> str:
        """Pass on what is news. Returns how good it was."""
        if seen != scraped.load or not seen.running + seen.waiting or scraped.moved_s > seen_s:
            scraped.moved_s = seen_s
        elif seen_s - scraped.moved_s > STALE_PERIODS * self._every_s:
            scraped.load_s = scraped.moved_s
            return "frozen"
        scraped.load, scraped.load_s = seen, seen_s
        known = scraped.facts
        size = seen.kv_tokens or known.kv_tokens, seen.block_tokens or known.block_tokens
        self._learn(name, scraped, replace(known, kv_tokens=size[0], block_tokens=size[1]))
        self.on_load(name, seen_s, seen)
        return "good"

    def _learn(self, name: str, scraped: _Scraped, facts: Facts) -> None:
        if facts != scraped.facts:
            scraped.facts = facts
            self.on_facts(name, facts)

    async def _page(self, target: ScrapeTarget, names: frozenset[str], asker: Asker) -> Exposition:
        page, left = Exposition(names), PAGE_BYTES

        def take(piece: bytes) -> None:
            nonlocal left
            left -= len(piece)
            if left < 0:
                raise NotMetrics
            page.feed(piece)

        if await asker.get(target.metrics_path or "", take, self._timeout_s()) != OK:
            raise NoAnswer
        page.close()
        return page

    def _timeout_s(self) -> float:
        return min(self._every_s, TIMEOUT_S * self._scale)


def _contexts(body: bytes, served_as: frozenset[str]) -> list[int]:
    """The context lengths a model list tells of the models in question."""
    try:
        models: _Models = _read_models(body)
    except msgspec.MsgspecError:
        return []
    return [model.max_model_len for model in models.data if model.id in served_as and model.max_model_len]
