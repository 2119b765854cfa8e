"""Reads one streamed chat answer: what arrives is stamped and counted, and judged when it has ended.

Nothing is decoded while the stream runs: two searches per read tell whether it carries tokens and whether it must be
looked at later. An answer is good only with a finish reason, the end marker, and no error event: a stream that was
cut, at whatever byte, never passes for a success.
"""

import re
from collections.abc import Iterator

import msgspec

from loadgen.report.record import Outcome, Sample

_TOKEN = re.compile(rb'"(?:content|reasoning|reasoning_content|arguments)": ?"[^"]')
_NOTABLE = re.compile(rb'"usage": ?\{|"error"|"finish_reason": ?"|\[DONE\]')
_END = b"\n\n"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Error(msgspec.Struct):
    code: str | int | None = None
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class _Refusal(msgspec.Struct):
    error: _Error


_chunk = msgspec.json.Decoder(_Chunk)
_refusal = msgspec.json.Decoder(_Refusal)


class Answer:
    """The body of one 200 answer, fed read by read."""

    def __init__(self, sample: Sample) -> None:
        """`sample` gets the stamps as they come, usage and outcome at the end."""
        self._sample = sample
        self._tail = b""
        self._notable: list[bytes] = []

    def feed(self, data: bytes, now_s: float) -> None:
        """Bytes that were read at `now_s`. An event counts when it is whole."""
        if self._tail:
            data = self._tail + data
        whole = len(data) if data.endswith(_END) else data.rfind(_END) + len(_END)
        if whole < len(_END):
            self._tail = data
            return
        self._tail, data = data[whole:], data[:whole]
        tokens = len(_TOKEN.findall(data))
        if tokens:
            self._sample.reads.append(now_s)
            self._sample.token_events += tokens
        if _NOTABLE.search(data):
            self._notable.append(data)

    def end(self) -> Outcome:
        """The connection has no more: what this answer was. Sets usage and reason on the sample."""
        finished = marked = False
        try:
            for payload in self._payloads():
                if payload == b"[DONE]":
                    marked = True
                    continue
                chunk = _chunk.decode(payload)
                if chunk.error is not None:
                    self._sample.reason = _words(chunk.error)
                    return Outcome.ERROR_STREAM
                self._take(chunk.usage)
                finished = finished or any(choice.finish_reason for choice in chunk.choices)
                if any(choice.finish_reason == "abort" for choice in chunk.choices):
                    self._sample.reason = "abort"
                    return Outcome.ERROR_STREAM
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._sample.reason = "an event is not JSON of a chat chunk"
            return Outcome.ERROR_PROTOCOL
        return Outcome.OK if finished and marked else Outcome.TRUNCATED

    def _payloads(self) -> Iterator[bytes]:
        for events in self._notable:
            for line in events.split(b"\n"):
                if line.startswith(b"data:"):
                    yield line[5:].strip()

    def _take(self, usage: _Usage | None) -> None:
        if usage is None:
            return
        self._sample.prompt_tokens = usage.prompt_tokens
        self._sample.output_tokens = usage.completion_tokens
        self._sample.cached_tokens = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None


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


def refused(status: int, reason: str) -> Outcome:
    """What an answer other than 200 is; `reason` is the gateway's header, "" without one."""
    if status in (503, 529) or reason in _CAPACITY:
        return Outcome.REJECTED_CAPACITY
    return Outcome.REJECTED_QUOTA if status == 429 else Outcome.ERROR_STATUS


def reason_of(body: bytes) -> str:
    """The code or the first 80 characters of an error body."""
    try:
        return _words(_refusal.decode(body).error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:80].decode("utf-8", "replace")


def _words(error: _Error) -> str:
    return str(error.code) if error.code else error.message[:80]
