"""From a configuration to the parts that stand alone.

`prepare` makes everything that a running gateway takes from its configuration: once at the start, and for a reload in a
thread, so that the swap itself (`reload.py`) only hands over what is there.
"""

import contextlib
import resource
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from gateway import describe
from gateway.backends import served_models
from gateway.config import Config, Timers
from gateway.dispatcher import Dispatcher, Record
from gateway.explain import Explain
from gateway.http.head import Limits
from gateway.lengths import LengthFile
from gateway.recorder import Recorder
from gateway.relay.end import Rules
from gateway.services import Terms
from gateway.syncer import Given, Syncer
from gateway.telemetry.log import EventLog
from gateway.telemetry.metrics import Metrics
from gateway.tenants import make_book
from policies.core import Core
from policies.decisions import Decision
from policies.events import Event
from policies.types import Settings

SEED = 0  # of the core's random numbers
AFTER_END_S = 1.0  # a stream that stays open behind its end marker is closed after this


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the server may hold at a time."""

    max_connections: int
    body_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A configuration, and what was made of it. `checksum` is the same where the values in force are the same."""

    config: Config
    checksum: str
    settings: Settings
    timers: Timers
    terms: Terms
    limits: Limits
    bounds: Bounds


def prepare(config: Config) -> Prepared:
    """Everything that a running gateway takes from its configuration."""
    timers, settings = config.timers(), config.settings(SEED)
    forward = tuple(name.encode() for name in config.upstream.forward_headers)
    return Prepared(
        config=config,
        checksum=config.checksum(),
        settings=settings,
        timers=timers,
        terms=Terms(
            book=make_book(config, served_models(config)),
            timers=timers,
            relay_rules=relay_rules(config, timers),
            given=describe.Given(
                bands=settings.bands, total_s=timers.total_s, first_byte_s=timers.first_byte_s, forward=forward
            ),
            body_bytes=config.limits.body_bytes,
            trusted_proxies=config.listen.trusted_proxies,
        ),
        limits=Limits(
            field_bytes=config.limits.header_bytes,
            fields=config.limits.headers,
            hosts=frozenset(host.encode() for host in config.listen.hosts),
            forward=frozenset(forward),
        ),
        bounds=Bounds(config.listen.max_connections, config.limits.body_bytes, config.admission.max_queued_bytes),
    )


def open_journal(config: Config) -> Recorder | None:
    """The journal that the configuration asks for."""
    path = config.telemetry.journal
    if path is None:
        return None
    return Recorder(Path(path), SEED, config.checksum())


def length_file(config: Config, core: Core, events: EventLog) -> LengthFile | None:
    """The memory of lengths that the configuration asks for."""
    path = config.length.state_file
    return LengthFile(Path(path), core.lengths, events, config.timeouts.scale) if path is not None else None


def open_store(began: Prepared, dispatcher: Dispatcher, events: EventLog, metrics: Metrics) -> Syncer | None:
    """The store of several replicas that the configuration asks for, and who keeps in step with it."""
    redis, scale = began.config.redis, began.config.timeouts.scale
    if redis is None:
        return None
    from gateway.store.redis import Place, RedisStore  # redis-py is needed only here

    place = Place(
        url=redis.url,
        prefix=redis.prefix,
        timeout_s=redis.timeout_s * scale,
        connect_timeout_s=redis.connect_timeout_s * scale,
        scale=scale,
    )
    store = RedisStore(place, secrets.token_hex(8))
    observe = metrics.store_seconds.observe
    return Syncer(Given(store=store, dispatcher=dispatcher, events=events, observe=observe, scale=scale))


def recorded(journal: Recorder | None, explain: Explain) -> Record:
    """Who hears of everything the core handles."""
    if journal is None:
        return explain.record

    def record(now: float, event: Event, decisions: list[Decision]) -> None:
        journal.record(now, event, decisions)
        explain.record(now, event, decisions)

    return record


def closed(settings: Settings) -> Settings:
    """The settings under which nobody waits any longer."""
    return replace(settings, admitting=False, queueing=False)


def relay_rules(config: Config, timers: Timers) -> Rules:
    """How answers are relayed."""
    return Rules(
        idle_s=timers.idle_s,
        stale_s=timers.stale_socket_s,
        write_stall_s=timers.write_stall_s,
        after_end_s=AFTER_END_S * config.timeouts.scale,
        tail_bytes=config.limits.stream_buffer_bytes,
        line_bytes=config.limits.sse_line_bytes,
    )


def raise_fd_limit() -> None:
    """Let this process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
