"""From a scenario and a seed to the list of requests, before anything is sent.

Everything random is decided here, so that two arms of a comparison get the same requests at the same times. Each
(seed, tenant, purpose) has a random stream of its own: a tenant more, or another length, changes no other draw.
A schedule holds recipes and numbers, no prompt text; text is made when a request is about to be sent.
"""

import gzip
import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

import msgspec

from loadgen.drafts import draft
from loadgen.scenario import Scenario
from loadgen.workload.planned import Planned as Planned
from loadgen.workload.prompts import ANSWERS

VERSION = 3


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a run, sorted by time; the measured window is [window_start_s, window_end_s)."""

    name: str
    seed: int
    window_start_s: float
    window_end_s: float
    requests: tuple[Planned, ...]

    @property
    def measured(self) -> int:
        """How many requests count."""
        return sum(request.measured for request in self.requests)

    @property
    def ideal_cached_tokens(self) -> int:
        """Prompt tokens of measured requests that a cache without a limit would know, requests taken in this order.

        Counted by whole and cut blocks, without the template's marks.
        """
        known = ideal_tokens(self.requests)
        return sum(tokens for one, tokens in zip(self.requests, known, strict=True) if one.measured)

    def lines(self) -> bytes:
        """The schedule as JSON Lines: one head line, then one line for each request."""
        head = {
            "version": VERSION,
            "scenario": self.name,
            "seed": self.seed,
            "window_s": [self.window_start_s, self.window_end_s],
            "requests": len(self.requests),
            "measured": self.measured,
            "ideal_cached_tokens": self.ideal_cached_tokens,
        }
        return b"".join(msgspec.json.encode(row) + b"\n" for row in (head, *self.requests))

    def digest(self) -> str:
        """The sha256 that identifies this workload."""
        return hashlib.sha256(self.lines()).hexdigest()

    def write(self, path: Path) -> None:
        """Write `lines()` gzipped; equal schedules give equal files."""
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
            file.write(self.lines())
        path.write_bytes(packed.getvalue())


def build(scenario: Scenario, seed: int) -> Schedule:
    """The schedule of `scenario` under `seed`; equal arguments give equal schedules, on every machine.

    ScenarioError if a trace is missing or cannot be read.
    """
    drawn = [
        (one.t, one.tenant, one.id, place, one)
        for place, tenant in enumerate(scenario.tenants)
        for one in draft(scenario, tenant, seed)
    ]
    drawn.sort(key=lambda row: row[:4])
    numbers = {(place, one.id): number for number, (_, _, _, place, one) in enumerate(drawn)}
    return Schedule(
        name=scenario.name,
        seed=seed,
        window_start_s=scenario.warmup_s,
        window_end_s=scenario.warmup_s + scenario.duration_s,
        requests=tuple(
            msgspec.structs.replace(one, id=number, after=None if one.after is None else numbers[place, one.after])
            for number, (_, _, _, place, one) in enumerate(drawn)
        ),
    )


def ideal_tokens(requests: Iterable[Planned]) -> list[int]:
    """Of each prompt, what a cache without a limit would know if requests were taken in this order.

    Answers are known where they are said again as they were received.
    """
    nodes: dict[tuple[int, str, int], tuple[int, int]] = {}  # (parent, block) -> (node, tokens known of it)
    found = []
    for request in requests:
        parent, shared, cached = 0, True, 0
        for block in request.blocks:
            key = (parent, block.namespace + block.noise, block.id)
            parent, known = nodes.get(key, (len(nodes) + 1, 0))
            nodes[key] = (parent, max(known, block.tokens))
            cached += min(known, block.tokens) if shared else 0
            shared = shared and known >= block.tokens
        found.append(cached)
        if request.session:
            said = request.output_tokens - request.reasoning_tokens
            nodes[parent, ANSWERS + request.session, request.turn] = (len(nodes) + 1, said)
    return found
