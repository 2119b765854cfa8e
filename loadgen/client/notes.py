"""What workers and their parent tell each other over a pipe: frames of a length and as many bytes.

To a worker: a `Job`, then when time 0 is, then perhaps that it shall stop. From it: that it is ready, then what
happened, several times a second. Jobs are pickled, between processes of one user and one program.
"""

import struct
from array import array
from sys import intern
from typing import Any

import msgspec

from loadgen.client.health import Pulse
from loadgen.client.sender import Share, Targets
from loadgen.client.values import ClientOptions
from loadgen.report.record import Outcome, Sample, Try
from loadgen.workload.prompts import Prose

LENGTH = struct.Struct("!I")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker shall send."""

    share: Share
    targets: Targets
    options: ClientOptions
    prose: Prose


class Zero(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Time 0 of the schedule, on the monotonic clock that all processes of a machine share."""

    monotonic_s: float


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Send nothing more, and end what is open after `grace_s`."""

    grace_s: float


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker has its job."""


class Due(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request was due, and went out at `sent_s` (0: it was dropped). Field names are those of `Sample`."""

    id: int
    tenant: str
    priority: str
    measured: bool
    input_tokens: int
    planned_output: int
    leaves: bool
    sched_s: float
    sent_s: float
    cls: str
    session: str
    turn: int
    streamed: bool
    worker: int


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request ended: what was not known when it was due. Field names are those of `Sample`."""

    id: int
    head_s: float
    byte_s: float
    content_s: float
    end_s: float
    reads: bytes
    read_tokens: bytes
    token_events: int
    outcome: Outcome
    status: int
    reason: str
    request_id: str
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    tries: int
    earlier: tuple[Try, ...]
    pool: str
    gateway_class: str
    endpoint: str
    attempts: int
    queued_s: float


class Beat(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A second is over."""

    pulse: Pulse


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Everything has been told."""


Order = Zero | Stop
Note = Ready | Due | Ended | Beat | Done
_ARRAYS = ("reads", "read_tokens")
_NAMES = ("pool", "gateway_class", "endpoint", "reason")  # of which there are few
_FIELDS = tuple(name for name in Ended.__struct_fields__ if name not in _ARRAYS)


def due(sample: Sample) -> Due:
    """What is told of a request that is due."""
    return Due(*(getattr(sample, name) for name in Due.__struct_fields__))


def begun(told: Due) -> Sample:
    """The sample of a request that was due; equal names are one object, there may be very many."""
    values: dict[str, Any] = {name: getattr(told, name) for name in Due.__struct_fields__}
    return Sample(**values | {name: intern(value) for name, value in values.items() if isinstance(value, str)})


def ended(sample: Sample) -> Ended:
    """What is told of an ended request."""
    values: dict[str, Any] = {name: getattr(sample, name) for name in _FIELDS}
    return Ended(
        **values, reads=array("d", sample.reads).tobytes(), read_tokens=array("i", sample.read_tokens).tobytes()
    )


def fill(sample: Sample, told: Ended) -> None:
    """Put what was told into the sample of that request."""
    for name in _FIELDS:
        value = getattr(told, name)
        setattr(sample, name, intern(value) if name in _NAMES else value)
    reads = array("d", told.reads)
    sample.reads = reads if len(reads) > 1 else tuple(reads)
    if told.read_tokens:
        sample.read_tokens = array("i", told.read_tokens)


def framed(data: bytes) -> bytes:
    """`data` as a frame."""
    return LENGTH.pack(len(data)) + data
