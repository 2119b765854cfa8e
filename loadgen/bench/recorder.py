"""Keeps what the client tells, request by request: a line in a file, a count on the screen, nothing that is secret."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, Protocol

from loadgen.bench.keys import Keys
from loadgen.report.lines import line
from loadgen.report.record import Sample, Slo


class Counter(Protocol):
    """What a display counts."""

    def sent(self, sample: Sample) -> None:
        """A request went out."""

    def ended(self, sample: Sample) -> None:
        """A request ended."""


class Goals(Protocol):
    """What a request must meet."""

    def __call__(self, sample: Sample, /) -> Slo: ...


class Recorder:
    """The client's watcher: what was done survives whatever comes next, also a kill."""

    def __init__(self, file: BinaryIO, goal_of: Goals, window_end_s: float, keys: Keys) -> None:
        """`file` is unbuffered, or flushed by the second."""
        self.ideal: Sequence[int] = ()  # by id: tokens of a prompt that a cache without a limit would know
        self.counter: Counter | None = None
        self.settled: Callable[[Sample], None] = lambda sample: None  # is told of each end
        self._file = file
        self._goal_of = goal_of
        self._window_end_s = window_end_s
        self._keys = keys

    def sent(self, sample: Sample) -> None:
        """Counted."""
        if self.counter is not None:
            self.counter.sent(sample)

    def ended(self, sample: Sample) -> None:
        """Counted and written. Servers repeat keys in error messages: `reason` loses them here."""
        if sample.reason:
            sample.reason = self._keys.scrubbed(sample.reason)
        sample.ideal_tokens = self.ideal[sample.id] if self.ideal else 0
        if self.counter is not None:
            self.counter.ended(sample)
        with suppress(OSError):  # a full disk must not change what is measured
            self._file.write(line(sample, self._goal_of(sample), self._window_end_s))
        self.settled(sample)
