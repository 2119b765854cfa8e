"""From a configuration to the parts that stand alone.

`prepare` makes everything that a running gateway takes from its configuration: once at the start, and for a reload in a
thread, so that the swap itself (`reload.py`) only hands over what is there.
"""

import contextlib
import errno
import os
import resource
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from gateway import describe
from gateway.backends import served_models
from gateway.config import Config, Loaded, Timers
from gateway.dispatcher import Dispatcher, Record
from gateway.explain import Explain
from gateway.http.head import Limits
from gateway.http.pool import engine_tls
from gateway.lengths import LengthFile
from gateway.recorder import Recorder
from gateway.relay.end import Rules
from gateway.replica import Replica, own_file, part_of
from gateway.services import Terms
from gateway.syncer import Given, Syncer
from gateway.telemetry.log import EventLog
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sink import Sink
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
    """A configuration, and what was made of it for one of `replicas` processes. `checksum` is the same where the values in
    force are the same."""

    config: Config
    replicas: int
    checksum: str
    settings: Settings
    timers: Timers
    terms: Terms
    limits: Limits
    bounds: Bounds


def prepare(config: Config, replicas: int) -> Prepared:
    """Everything that one of so many running processes takes from its configuration."""
    timers, settings = config.timers(), part_of(config.settings(SEED), replicas)
    if any(each.tls for each in config.endpoints):
        engine_tls()  # now: a reload prepares beside the loop, which this would hold up
    forward = tuple(name.encode() for name in config.upstream.forward_headers)
    return Prepared(
        config=config,
        replicas=replicas,
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


def open_journal(config: Config, events: EventLog, replica: Replica | None) -> Recorder | None:
    """The journal that the configuration asks for."""
    if config.telemetry.journal is None:
        return None
    path = own_file(config.telemetry.journal, replica)
    journal = Recorder(path, SEED, config.checksum())
    journal.on_failure = lambda cause: events.warning("the journal cannot be written", file=str(path), cause=cause)
    return journal


def length_file(config: Config, core: Core, events: EventLog, replica: Replica | None) -> LengthFile | None:
    """The memory of lengths that the configuration asks for."""
    path = config.length.state_file
    if path is None:
        return None
    return LengthFile(own_file(path, replica), core.lengths, events, config.timeouts.scale)


def open_logs(config: Config, replica: Replica | None) -> tuple[Sink, Sink, EventLog]:
    """Where the access log goes, where events go, and their log. Several processes write to the same two."""
    lines, notes = (Sink(fd, name=name, shared=replica is not None) for fd, name in ((1, "access"), (2, "events")))
    telemetry = config.telemetry
    events = EventLog(
        notes,
        level=telemetry.log_level,
        log_format=telemetry.log_format,
        always={} if replica is None else {"worker": replica.index},
    )
    return lines, notes, events


def cannot_listen(loaded: Loaded, section: Literal["admin", "listen"], error: OSError) -> None:
    """Tell an operator that the address of a section cannot be had, and what in the file would change that."""
    place = loaded.config.admin if section == "admin" else loaded.config.listen
    is_unknown = isinstance(error, socket.gaierror)  # the name; then `errno` is none
    reason = os.strerror(error.errno) if error.errno and not is_unknown else error.strerror or str(error)
    match error.errno:
        case errno.EADDRINUSE:
            advice = f"Set another {section}.port in {loaded.file}, or stop what uses this one."
        case errno.EACCES:
            advice = f"Set {section}.port to one above 1023 in {loaded.file}, or allow this process to use it."
        case _:
            advice = f"Set {section}.host in {loaded.file} to an address of this machine."
    sys.stderr.write(f"forebay: cannot listen on {place.host}:{place.port}: {reason}.\n{advice}\n")


def open_store(
    began: Prepared, dispatcher: Dispatcher, events: EventLog, metrics: Metrics, replicated: Callable[[int], None]
) -> Syncer | None:
    """The store of several replicas that the configuration asks for, and who keeps in step with it. `replicated` is called
    with their number."""
    redis, scale = began.config.redis, began.config.timeouts.scale
    if redis is None:
        return None
    from gateway.store.redis import Place, RedisStore  # redis-py is needed only here

    place = Place(
        url=redis.url,
        cluster=redis.cluster,
        prefix=redis.prefix,
        timeout_s=redis.timeout_s * scale,
        connect_timeout_s=redis.connect_timeout_s * scale,
        scale=scale,
    )
    store = RedisStore(place, secrets.token_hex(8))
    return Syncer(
        Given(
            store=store,
            dispatcher=dispatcher,
            events=events,
            observe=metrics.store_seconds.observe,
            replicated=replicated,
            scale=scale,
        )
    )


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
        tail_bytes=min(config.limits.stream_buffer_bytes, config.limits.sse_line_bytes),
        line_bytes=config.limits.sse_line_bytes,
    )


def raise_fd_limit() -> None:
    """Let this process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
