"""Judges one answer from what was read of it and when, after the fact: nothing here runs inside a read.

An answer is good only when HTTP says it is complete, it said why it ended, its end mark came, and no error event did:
a stream that was cut, at whatever byte, never passes for a success. An event counts for the read that made it whole.
"""

from array import array
from collections.abc import Iterator

import msgspec

from loadgen.client.events import CONTENT, NOTHING, Events, words
from loadgen.client.values import Api
from loadgen.report.record import Outcome, Sample


class Stream:
    """An answer of server-sent events, taken read by read."""

    __slots__ = ("_events", "_reads", "_sample", "_spoiled", "_tail", "_tokens")

    def __init__(self, api: Api, sample: Sample, said: list[str] | None = None) -> None:
        """`sample` gets the times of reads that carry tokens, and what usage says; `said` the text of the answer."""
        self._events = Events(api, sample, said)
        self._sample = sample
        self._reads = sample.reads = array("d")
        self._tail: list[bytes] = []
        self._spoiled = False
        self._tokens: array[int] | None = None  # of each read, once one had another number than 1

    def take(self, when_s: float, data: bytes) -> None:
        """`data` of the body, read at `when_s` of the run."""
        if self._spoiled or self._events.error:
            return
        tokens = content = 0
        try:
            for payload in self._payloads(data):
                bears = self._events.event(payload)
                tokens += bears != NOTHING
                content += bears == CONTENT
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._spoiled = True
        if tokens:
            sample = self._sample
            self._reads.append(when_s)
            sample.token_events += tokens
            if self._tokens is None and tokens != 1:
                self._tokens = array("i", [1] * (len(self._reads) - 1))
            if self._tokens is not None:
                self._tokens.append(tokens)
            if content and not sample.content_s:
                sample.content_s = when_s

    def end(self, *, complete: bool) -> Outcome:
        """What this answer was; `complete` as HTTP sees it. Sets the sample's reason where something went wrong."""
        if self._tokens is not None:
            self._sample.read_tokens = self._tokens
        if self._events.error:
            self._sample.reason = self._events.error
            return Outcome.ERROR_STREAM
        if self._spoiled:
            self._sample.reason = "an event is no JSON of this API"
            return Outcome.ERROR_PROTOCOL
        return Outcome.OK if complete and self._events.finished and self._events.marked else Outcome.TRUNCATED

    def _payloads(self, data: bytes) -> Iterator[bytes]:
        if self._tail:
            self._tail.append(data)
            if b"\n" not in data and b"\r" not in data:  # a long event in many reads is joined once
                return
            data = b"".join(self._tail)
            self._tail.clear()
        held = b""
        if b"\r" in data:  # the other line ends that the standard allows; the last one may be half of one
            held = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, tail = data.split(b"\n\n")
        if tail or held:
            self._tail.append(tail + held)
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                yield event[6:]
                continue
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines)


class Whole:
    """An answer that comes at once."""

    __slots__ = ("_api", "_last_s", "_pieces", "_said", "_sample")

    def __init__(self, api: Api, sample: Sample, said: list[str] | None = None) -> None:
        """`sample` gets the time of the last read, and what usage says; `said` the text of the answer."""
        self._api = api
        self._said = said
        self._sample = sample
        self._pieces: list[bytes] = []
        self._last_s = 0.0

    def take(self, when_s: float, data: bytes) -> None:
        """`data` of the body, read at `when_s` of the run."""
        self._pieces.append(data)
        self._last_s = when_s

    def end(self, *, complete: bool) -> Outcome:
        """As of a stream."""
        if not complete:
            return Outcome.TRUNCATED
        events = Events(self._api, self._sample, self._said)
        try:
            events.whole(b"".join(self._pieces))
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._sample.reason = "the answer is no JSON of this API"
            return Outcome.ERROR_PROTOCOL
        if events.error:
            self._sample.reason = events.error
            return Outcome.ERROR_STREAM
        end_s = self._sample.end_s
        self._sample.reads = (end_s if end_s == self._last_s else self._last_s,)
        return Outcome.OK if events.finished and events.marked else Outcome.TRUNCATED


class Refusal:
    """An answer other than 200."""

    __slots__ = ("_pieces", "_sample")

    def __init__(self, sample: Sample) -> None:
        """`sample` has status and, with our gateway, the reason."""
        self._sample = sample
        self._pieces: list[bytes] = []

    def take(self, when_s: float, data: bytes) -> None:
        """`data` of the body."""
        self._pieces.append(data)

    def end(self, *, complete: bool) -> Outcome:
        """What it was, complete or not: the status said it."""
        sample = self._sample
        said = _reason_of(b"".join(self._pieces))
        sample.reason = sample.reason or said.removeprefix(f"{sample.status} ")
        return _refused(sample.status, sample.reason)


class Page:
    """The answer to a question that is no generation: its status is all there is to judge."""

    __slots__ = ()

    def take(self, when_s: float, data: bytes) -> None:
        """`data` of the body."""

    def end(self, *, complete: bool) -> Outcome:
        """Good when it is complete."""
        return Outcome.OK if complete else Outcome.TRUNCATED


Answer = Stream | Whole | Refusal | Page

_CAPACITY = (
    "overloaded",
    "queue_full",
    "queue_timeout",
    "evicted",
    "backend_saturated",
    "no_endpoint",
    "partition_unavailable",
    "draining",
)


class _Body(msgspec.Struct):
    error: object = None
    message: object = None


_body = msgspec.json.Decoder(_Body)


def _refused(status: int, reason: str) -> Outcome:
    if status in (503, 529) or reason in _CAPACITY:
        return Outcome.REJECTED_CAPACITY
    return Outcome.REJECTED_QUOTA if status == 429 else Outcome.ERROR_STATUS


def _reason_of(body: bytes) -> str:
    """The code or the first 80 characters of an error body."""
    try:
        said = _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:80].decode("utf-8", "replace")
    found = said.error or said.message
    return words(found) if found else body[:80].decode("utf-8", "replace")
