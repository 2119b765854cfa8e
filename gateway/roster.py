"""The endpoints in service: what probes, scrapes and engines' events say of each, told to the core and to whoever looks.

An endpoint is made known with the operator's bounds as soon as a probe finds it well. What it tells of itself comes
a moment later: its context and the size of its KV cache then go to the core as new bounds of the same endpoint.

One that an operator has drained is down for the core and for nobody else: probes and scrapes go on, so that it can be used
at once when it is given back, and nothing they find gives it back.

Bounds are an engine's, whoever sends to it. So each of several replicas is given its part of them: of the workers of one
command from the start, of all that a store knows as they come and go (tenancy.md 8.4).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.config import Config, Timers
from gateway.dispatcher import Dispatcher
from gateway.endpoints.directory import Directory, Standing
from gateway.endpoints.exposition import Load
from gateway.endpoints.kv_events import KvEvents
from gateway.endpoints.kv_feed import Feed, Source
from gateway.endpoints.marks import Marks
from gateway.endpoints.probe import Prober, ProbeTarget
from gateway.endpoints.scrape import Facts, Report, Scraper, ScrapeTarget
from gateway.engines import ENGINES
from gateway.replica import Replica, replicas
from gateway.telemetry.log import EventLog
from policies.events import CacheCleared, CacheTurned, EndpointDown, EndpointUp, LoadObserved
from policies.types import Endpoint


class Roster:
    """All endpoints of a configuration, looked after from `start` to `close`."""

    def __init__(
        self, config: Config, timers: Timers, dispatcher: Dispatcher, events: EventLog, replica: Replica | None = None
    ) -> None:
        self._config = config
        self._workers = replicas(replica)
        self._marks = Marks(replica.folder if replica is not None else None)
        self._told = 0  # replicas, by the store
        self._endpoints = self._described(config)
        self._urls = {endpoint.name: endpoint.url for endpoint in config.endpoints}
        self._leaving: dict[str, Endpoint] = {}  # by URL: removed, and requests still run there
        self._dispatcher = dispatcher
        self._events = events
        scale = config.timeouts.scale
        self._directory = Directory(self._endpoints, on_up=self._up, on_down=self._down)
        self._directory.on_unreached = self._say_down
        self._prober = Prober(self._directory, _probe_targets(config), every_s=timers.probe_s, scale=scale)
        self._scraper = Scraper(_scrape_targets(config), every_s=timers.scrape_s, scale=scale)
        self._scraper.on_load, self._scraper.on_facts = self._load, self._facts
        self._kv_events = KvEvents(_sources(config), scale=scale)
        self._kv_events.on_cleared, self._kv_events.on_turned = self._cleared, self._turned

    def start(self) -> None:
        """Begin to look. Needs a running loop."""
        self.recall()
        self._scraper.start()
        self._prober.start()
        self._kv_events.start()

    async def look(self) -> None:
        """Probe all once, so that those that are well can be used at once. It takes no longer than a probe may."""
        for name in await self._prober.well(_probe_targets(self._config)):
            self._directory.good(name)

    async def well(self, config: Config) -> set[str]:
        """Those of a new configuration that are new and well: they can be used at once."""
        kept = self._kept(config)
        return await self._prober.well(target for target in _probe_targets(config) if target.name not in kept)

    def _kept(self, config: Config) -> set[str]:
        engines = {each.name: each.identity for each in self._config.endpoints}
        return {each.name for each in config.endpoints if engines.get(each.name) == each.identity}

    def recall(self) -> None:
        """Drain what was drained before this process was there."""
        for endpoint in self._config.endpoints:
            if self._marks.has(endpoint):
                self.drain(endpoint.name, "the worker before")

    def drain(self, name: str, by: str) -> bool:
        """Send nothing new to it; what runs there ends there. Again is harmless. False: there is none of this name."""
        return self._set_drained(name, True, by)

    def undrain(self, name: str, by: str) -> bool:
        """Send to it again when it is well. Again is harmless. False: there is none of this name."""
        return self._set_drained(name, False, by)

    def change(self, config: Config, timers: Timers, well: Collection[str]) -> None:
        """The endpoints are these now. One that is gone, or is another under an old name, gets nothing new: what runs
        there ends there. One that is the same with other bounds has them at once, and is drained if it was."""
        kept = self._kept(config)
        for endpoint in self._config.endpoints:
            if endpoint.name not in kept:
                self._marks.set(endpoint, False)
        self._config = config
        for name, _ in self._directory.standings():
            if name not in kept:
                self._remove(name)
        self._urls = {endpoint.name: endpoint.url for endpoint in config.endpoints}
        known, self._endpoints = self._endpoints, self._described(config)
        self._directory.change(self._endpoints, [name for name in self._endpoints if name not in kept])
        self._prober.change(_probe_targets(config), timers.probe_s)
        self._scraper.change(_scrape_targets(config), timers.scrape_s)
        self._kv_events.change(_sources(config))
        self._tell_changed(known, kept)
        for name in self._endpoints:
            if name in well and name not in kept:
                self._directory.good(name)

    def divide(self, replicas: int) -> None:
        """So many replicas there are now."""
        self._told = replicas
        known, self._endpoints = self._endpoints, self._described(self._config)
        self._tell_changed(known, known)

    def _tell_changed(self, known: Mapping[str, Endpoint], kept: Collection[str]) -> None:
        """Those of `kept` that are in service have their new bounds at once."""
        for name in kept:
            changed = self._endpoints[name] != known[name]
            if changed and self._may_be_used(name):
                self._tell(name, self._scraper.facts(name))

    async def close(self) -> None:
        """Stop looking."""
        await self._prober.close()
        await self._scraper.close()
        await self._kv_events.close()

    def sweep(self) -> None:
        """Make known who was only waiting for its hardware to be free of what another partition had there."""
        gone = [url for url, left in self._leaving.items() if not self._holds(left.name)]
        for url in gone:
            left = self._leaving.pop(url)
            heirs = [name for name, where in self._urls.items() if where == url and self._directory.standing(name).up]
            for name in heirs:
                if self._endpoints[name].partition != left.partition:
                    self._up(name)

    def suspect(self, name: str) -> None:
        """A request could not reach this endpoint."""
        self._directory.suspect(name)

    def standings(self) -> Sequence[tuple[str, Standing]]:
        """What probes have told."""
        return self._directory.standings()

    def reports(self) -> Iterator[Report]:
        """What engines have told of themselves."""
        return self._scraper.reports()

    def feeds(self) -> Iterator[Feed]:
        """What engines have published of their KV caches."""
        return self._kv_events.feeds()

    def _described(self, config: Config) -> dict[str, Endpoint]:
        """Every endpoint with the operator's bounds, of which each replica uses its part."""
        expected = config.redis.expected_replicas if config.redis is not None else 1
        replicas = max(self._workers, self._told or expected)
        return {each.name: replace(each.described(), replicas=replicas) for each in config.endpoints}

    def _remove(self, name: str) -> None:
        self._events.info("endpoint removed", endpoint=name)
        self._kv_events.down(name)
        self._dispatcher.handle(EndpointDown(name=name))
        if self._holds(name):
            self._leaving.setdefault(self._urls[name], self._endpoints[name])

    def _holds(self, name: str) -> bool:
        """Whether requests run on one that is down."""
        return any(view.name == name for view in self._dispatcher.core.endpoints())

    def _up(self, name: str) -> None:
        if self._is_awaited(name):
            return
        self._events.info("endpoint up", endpoint=name)
        if not self._directory.standing(name).drained:
            self._dispatcher.handle(EndpointUp(endpoint=self._endpoints[name]))
        self._scraper.up(name)

    def _set_drained(self, name: str, drained: bool, by: str) -> bool:
        endpoint = next((each for each in self._config.endpoints if each.name == name), None)
        if endpoint is None:
            return False
        self._marks.set(endpoint, drained)
        if self._directory.set_drained(name, drained):
            self._events.info("endpoint drained" if drained else "endpoint undrained", endpoint=name, by=by)
            if drained:
                self._dispatcher.handle(EndpointDown(name=name))
            elif self._may_be_used(name):
                self._tell(name, self._scraper.facts(name))
        return True

    def _may_be_used(self, name: str) -> bool:
        standing = self._directory.standing(name)
        return standing.up and not standing.drained and not self._is_awaited(name)

    def _is_awaited(self, name: str) -> bool:
        """Whether its hardware still is another partition's: it is drained first."""
        leaving = self._leaving.get(self._urls[name])
        return leaving is not None and leaving.partition != self._endpoints[name].partition

    def _say_down(self, name: str) -> None:
        self._events.warning("endpoint down", endpoint=name, cause=self._directory.standing(name).cause)

    def _down(self, name: str) -> None:
        self._say_down(name)
        self._scraper.down(name)
        self._kv_events.down(name)
        self._dispatcher.handle(EndpointDown(name=name))

    def _facts(self, name: str, facts: Facts) -> None:
        told = {"context": facts.context_tokens, "kv": facts.kv_tokens, "block": facts.block_tokens}
        self._events.info("endpoint known", endpoint=name, **told)
        if self._may_be_used(name):
            self._tell(name, facts)

    def _tell(self, name: str, facts: Facts) -> None:
        known = replace(self._endpoints[name], context_tokens=facts.context_tokens, kv_tokens=facts.kv_tokens)
        self._dispatcher.handle(EndpointUp(endpoint=known))

    def _load(self, name: str, seen_s: float, load: Load) -> None:
        self._dispatcher.handle(
            LoadObserved(
                endpoint=name,
                observed_s=seen_s,
                running=load.running,
                waiting=load.waiting,
                kv_usage=load.kv_usage,
                kv_tokens=load.kv_tokens,
            )
        )

    def _cleared(self, name: str) -> None:
        self._events.info("cache cleared", endpoint=name)
        self._dispatcher.handle(CacheCleared(endpoint=name))

    def _turned(self, name: str, stored_tokens: int, removed_tokens: int) -> None:
        self._dispatcher.handle(CacheTurned(endpoint=name, stored_tokens=stored_tokens, removed_tokens=removed_tokens))


def _probe_targets(config: Config) -> Iterable[ProbeTarget]:
    for endpoint in config.endpoints:
        row = ENGINES[endpoint.engine]
        url = endpoint.url + row.health_path
        yield ProbeTarget(name=endpoint.name, url=url, api_key=endpoint.api_key, health_s=row.health_s)


def _sources(config: Config) -> Iterable[Source]:
    return [
        Source(endpoint=each.name, url=each.kv_events, replay_url=each.kv_events_replay, ranks=each.kv_events_ranks)
        for each in config.endpoints
        if each.kv_events
    ]


def _scrape_targets(config: Config) -> Iterable[ScrapeTarget]:
    for endpoint in config.endpoints:
        engine = ENGINES[endpoint.engine]
        yield ScrapeTarget(
            name=endpoint.name,
            host=endpoint.host,
            port=endpoint.port,
            tls=endpoint.tls,
            authority=endpoint.authority,
            served_as=frozenset(config.models[config.pools[pool].model].served_as for pool in endpoint.pools),
            metrics_path=engine.metrics_path,
            gauges=engine.gauges,
            api_key=endpoint.api_key,
        )
