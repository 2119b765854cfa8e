"""From a configuration to the parts that stand alone."""

import contextlib
import resource
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.config import Config, Timers
from gateway.dispatcher import Record
from gateway.explain import Explain
from gateway.lengths import LengthFile
from gateway.recorder import Recorder
from gateway.relay.end import Rules
from gateway.telemetry.log import EventLog
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
