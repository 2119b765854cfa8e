"""From a configuration to the parts that stand alone."""

import contextlib
import resource
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import xxhash

from gateway.config import Config
from gateway.dispatcher import Record
from gateway.explain import Explain
from gateway.recorder import Recorder
from policies.decisions import Decision
from policies.events import Event
from policies.types import Settings

SEED = 0  # of the core's random numbers


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
    checksum = xxhash.xxh3_64_hexdigest(msgspec.json.encode(config.model_dump(mode="json")))
    return Recorder(Path(path), SEED, checksum)


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


def raise_fd_limit() -> None:
    """Let this process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
