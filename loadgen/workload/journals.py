"""A journal of the gateway or the simulator as a trace: the same requests, at the same times, with what they share.

Only arrivals and lengths are taken. Later events of a journal belong to what was decided then, so a request that got no
answer has no known length: it is given the median of its tenant's answers. Prefixes come from the gateway's block hashes:
equal hashes become equal blocks.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median_low
from typing import Any

import msgspec

from loadgen.workload.fields import ScenarioError
from loadgen.workload.prompts import MARK_TOKENS
from loadgen.workload.rows import Part, Row
from policies import journal
from policies.events import Arrived, Cancelled, Event, Finished, SettingsChanged
from policies.journal import JournalError
from policies.types import InferenceRequest

LONG_BLOCKS_FROM_TOKENS = 4096  # scheduling.md 8
_MARKS = 2 * MARK_TOKENS  # of the one message of the user, and of the answer
_DEFAULT_BLOCK_TOKENS = 64


def begins(fields: Mapping[str, Any]) -> bool:
    """Whether this is the first line of a journal."""
    return fields.keys() >= {"version", "seed", "config"}


def rows(file: str, lines: Iterable[tuple[int, dict[str, Any]]], tenants: bool) -> list[Row]:
    """The requests of a journal by time; `lines` are numbered, `tenants` are theirs if it is asked for. ScenarioError."""
    requests: list[InferenceRequest] = []
    told = _Told()
    for now, event in _events(file, lines):
        if isinstance(event, Arrived):
            requests.append(event.request)
        else:
            told.take(event, now)
    requests.sort(key=lambda request: request.arrived_s)
    usual = told.usual(requests)
    found = [told.row(request, requests[0].arrived_s, usual) for request in requests]
    return found if tenants else [replace(row, tenant="") for row in found]


def _events(file: str, lines: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[tuple[float, Event]]:
    for number, line in lines:
        try:
            if number == 1:
                journal.check_header(line)
            elif "dropped" not in line:
                yield msgspec.convert(line["t"], float), journal.decode_event(line)
        except (JournalError, msgspec.MsgspecError, KeyError) as error:
            raise ScenarioError(f"{file}:{number}: {error}") from error


class _Told:
    """What a journal tells of requests beside their arrival."""

    def __init__(self) -> None:
        self._ends: dict[str, Finished] = {}
        self._left: dict[str, float] = {}
        self._block_tokens = _DEFAULT_BLOCK_TOKENS

    def take(self, event: object, now: float) -> None:
        if isinstance(event, Finished):
            self._ends[event.request_id] = event
        elif isinstance(event, Cancelled):
            self._left[event.request_id] = now
        elif isinstance(event, SettingsChanged) and event.settings.affinity is not None:
            self._block_tokens = event.settings.affinity.block_tokens

    def usual(self, requests: Iterable[InferenceRequest]) -> dict[str, int]:
        """The median answer of each tenant, and under "" of all."""
        known: dict[str, list[int]] = defaultdict(list)
        for request in requests:
            length = self._length(request)
            if length is not None:
                known[request.tenant].append(length)
                known[""].append(length)
        return {tenant: median_low(lengths) for tenant, lengths in known.items()}

    def row(self, request: InferenceRequest, zero_s: float, usual: Mapping[str, int]) -> Row:
        length, end, left_s = self._length(request), self._ends.get(request.id), self._left.get(request.id)
        if length is None:
            length = usual.get(request.tenant, usual.get("", 1))
        prompt = end.prompt_tokens if end is not None else None
        size = max(1, (prompt or request.prompt_tokens) - _MARKS)
        return Row(
            t_s=request.arrived_s - zero_s,
            tenant=request.tenant,
            input_tokens=size,
            output_tokens=max(1, length),
            guessed=self._length(request) is None,
            parts=self._parts(request, size),
            label=request.session,
            priority=request.band,
            max_tokens=request.max_output_tokens,
            stream=request.streamed,
            leaves_s=None if left_s is None else left_s - request.arrived_s,
        )

    def _length(self, request: InferenceRequest) -> int | None:
        end = self._ends.get(request.id)
        return end.output_tokens if end is not None else None

    def _parts(self, request: InferenceRequest, size: int) -> tuple[Part, ...]:
        """One for each hash of the prefix, as far as something is left for the request itself."""
        parts: list[Part] = []
        done = 0
        for link in request.prefix:
            tokens = self._block_tokens * (1 if done < LONG_BLOCKS_FROM_TOKENS else 4)
            if done + tokens >= size:
                break
            parts.append((link, tokens, "user"))
            done += tokens
        return tuple(parts)
