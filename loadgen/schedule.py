"""From a scenario and a seed to the list of requests, before anything is sent.

Everything random is decided here, so that two arms of a comparison get the same requests at the same times. Each
(seed, tenant, purpose) has a random stream of its own: a tenant more, or another length, changes no other draw.
A schedule holds recipes and numbers, no prompt text; text is made when a request is about to be sent. Warm-up has
blocks of its own: it fills engines, not the prefix cache of what is measured (sglang#37359).
"""

import gzip
import hashlib
import io
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from random import Random

import msgspec

from loadgen.scenario import Prefix, Scenario, Tenant
from loadgen.workload.lengths import tokens
from loadgen.workload.prompts import Block, prompt_tokens

VERSION = 1


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One request to come: `t` seconds after the start, what it asks, and when its client leaves (None: never).

    `input_tokens` is the whole planned prompt as the engine will count it. `measured` False is warm-up.
    """

    id: int
    t: float
    tenant: str
    priority: str
    input_tokens: int
    output_tokens: int
    max_tokens: int | None
    cancel_after_s: float | None
    measured: bool
    system: Block | None
    user: Block


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

    def lines(self) -> bytes:
        """The schedule as JSON Lines: one head line, then one line for each request."""
        head = {
            "version": VERSION,
            "scenario": self.name,
            "seed": self.seed,
            "window_s": [self.window_start_s, self.window_end_s],
            "requests": len(self.requests),
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
    """The schedule of `scenario` under `seed`; equal arguments give equal schedules, on every machine."""
    end_s = scenario.warmup_s + scenario.duration_s
    drawn = [one for tenant in scenario.tenants for one in _of_tenant(scenario, tenant, seed)]
    drawn.sort(key=lambda one: (one.t, one.tenant, one.id))
    return Schedule(
        name=scenario.name,
        seed=seed,
        window_start_s=scenario.warmup_s,
        window_end_s=end_s,
        requests=tuple(msgspec.structs.replace(one, id=number) for number, one in enumerate(drawn)),
    )


def _of_tenant(scenario: Scenario, tenant: Tenant, seed: int) -> Iterator[Planned]:
    streams = {
        p: Random(f"{seed}/{tenant.name}/{p}") for p in ("arrivals", "input", "output", "cap", "prefix", "cancel")
    }
    times = tenant.arrivals.times(streams["arrivals"], scenario.warmup_s + scenario.duration_s)
    for number, t in enumerate(times):
        phase = "measure" if t >= scenario.warmup_s else "warmup"
        system = _pick(phase, tenant.prompt.prefix, scenario.prefixes, streams["prefix"])
        user = Block(namespace=f"{phase}/{tenant.name}", id=number, tokens=tokens(tenant.input, streams["input"]))
        yield Planned(
            id=number,
            t=t,
            tenant=tenant.name,
            priority=tenant.priority,
            input_tokens=prompt_tokens(system, user),
            output_tokens=tokens(tenant.output, streams["output"]),
            max_tokens=tokens(tenant.max_tokens, streams["cap"]) if tenant.max_tokens else None,
            cancel_after_s=_leaves(tenant, streams["cancel"]),
            measured=phase == "measure",
            system=system,
            user=user,
        )


def _pick(phase: str, name: str | None, prefixes: dict[str, Prefix], stream: Random) -> Block | None:
    if name is None:
        return None
    prefix = prefixes[name]
    weights = accumulate(1 / rank**prefix.zipf for rank in range(1, prefix.count + 1))
    chosen = stream.choices(range(prefix.count), cum_weights=list(weights))[0]
    return Block(namespace=f"{phase}/prefix/{name}", id=chosen, tokens=prefix.tokens)


def _leaves(tenant: Tenant, stream: Random) -> float | None:
    if tenant.cancel is None:
        return None
    leaves, after_s = stream.random() < tenant.cancel.p, tenant.cancel.after.draw(stream)
    return after_s if leaves else None
