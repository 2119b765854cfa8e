"""The endpoints in service: what probes, scrapes and engines' events say of each, told to the core and to whoever looks.

An endpoint is made known with the operator's bounds as soon as a probe finds it well. What it tells of itself comes
a moment later: its context and the size of its KV cache then go to the core as new bounds of the same endpoint.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gateway.config import Config, Timers
from gateway.dispatcher import Dispatcher
from gateway.endpoints.directory import Directory, Standing
from gateway.endpoints.exposition import Load
from gateway.endpoints.kv_events import Feed, KvEvents
from gateway.endpoints.probe import Prober, ProbeTarget
from gateway.endpoints.scrape import Facts, Report, Scraper, ScrapeTarget
from gateway.engines import ENGINES
from gateway.telemetry.log import EventLog
from policies.events import CacheCleared, CacheTurned, EndpointDown, EndpointUp, LoadObserved


class Roster:
    """All endpoints of a configuration, looked after from `start` to `close`."""

    def __init__(self, config: Config, timers: Timers, dispatcher: Dispatcher, events: EventLog) -> None:
        self._endpoints = {endpoint.name: endpoint.described() for endpoint in config.endpoints}
        self._dispatcher = dispatcher
        self._events = events
        scale = config.timeouts.scale
        self._directory = Directory(self._endpoints, on_up=self._up, on_down=self._down)
        self._prober = Prober(self._directory, _probe_targets(config), every_s=timers.probe_s, scale=scale)
        self._scraper = Scraper(_scrape_targets(config), every_s=timers.scrape_s, scale=scale)
        self._scraper.on_load, self._scraper.on_facts = self._load, self._facts
        urls = [(each.name, each.kv_events) for each in config.endpoints if each.kv_events]
        self._kv_events = KvEvents(urls, scale=scale)
        self._kv_events.on_cleared, self._kv_events.on_turned = self._cleared, self._turned

    def start(self) -> None:
        """Begin to look. Needs a running loop."""
        self._scraper.start()
        self._prober.start()
        self._kv_events.start()

    async def close(self) -> None:
        """Stop looking."""
        await self._prober.close()
        await self._scraper.close()
        await self._kv_events.close()

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

    def _up(self, name: str) -> None:
        self._events.info("endpoint up", endpoint=name)
        self._dispatcher.handle(EndpointUp(endpoint=self._endpoints[name]))
        self._scraper.up(name)

    def _down(self, name: str) -> None:
        self._events.warning("endpoint down", endpoint=name, cause=self._directory.standing(name).cause)
        self._scraper.down(name)
        self._kv_events.down(name)
        self._dispatcher.handle(EndpointDown(name=name))

    def _facts(self, name: str, facts: Facts) -> None:
        self._events.info("endpoint known", endpoint=name, context=facts.context_tokens, kv=facts.kv_tokens)
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
        url = endpoint.url + ENGINES[endpoint.engine].health_path
        yield ProbeTarget(name=endpoint.name, url=url, api_key=endpoint.api_key)


def _scrape_targets(config: Config) -> Iterable[ScrapeTarget]:
    for endpoint in config.endpoints:
        engine = ENGINES[endpoint.engine]
        yield ScrapeTarget(
            name=endpoint.name,
            url=endpoint.url,
            served_as=frozenset(config.models[config.pools[pool].model].served_as for pool in endpoint.pools),
            metrics_path=engine.metrics_path,
            gauges=engine.gauges,
            api_key=endpoint.api_key,
        )
