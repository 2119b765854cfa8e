"""Writes a journal of a busy, faulty minute: `python -m tests.loadgen.journals FILE SEED`. Used under several hash seeds."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random

from policies import journal
from policies.core import Core
from policies.decisions import Dispatch
from policies.events import (
    Arrived,
    Bounced,
    Cancelled,
    Cause,
    EndpointDown,
    EndpointUp,
    Event,
    Finished,
    FirstToken,
    Outcome,
    SettingsChanged,
    Tick,
)
from policies.types import Band, Endpoint, InferenceRequest, Pool, Settings

SETTINGS = Settings(
    pools={"main": Pool(name="main", model="llama"), "other": Pool(name="other", model="qwen")},
    bands={
        "interactive": Band(name="interactive", rank=1, queue_timeout_s=2.0, max_queued=50),
        "standard": Band(name="standard", rank=2, queue_timeout_s=6.0, max_queued=80),
    },
    max_queued=100,
    max_queued_bytes=1 << 20,
    max_attempts=2,
    seed=7,
)


def write(path: Path, seed: int, events: int = 2000, settings: Mapping[int, Settings] = {0: SETTINGS}) -> None:
    """`events` events drawn with `seed`, handled by a core, in journal form. `settings`: by the event that tells them."""
    core, random, now = Core(), Random(seed), 0.0
    flying: dict[str, int] = {}
    with path.open("w") as file:
        file.write(json.dumps(journal.header(SETTINGS.seed, "test")) + "\n")
        for seq in range(events):
            event = _first(seq, settings) or _any(random, seq, now, flying)
            decisions = core.handle(event, now)
            for decision in decisions:
                if isinstance(decision, Dispatch):
                    flying[decision.request_id] = decision.attempt
            file.write(json.dumps(journal.encode_line(seq, now, event, decisions)) + "\n")
            now += random.expovariate(40.0)


def _first(seq: int, settings: Mapping[int, Settings]) -> Event | None:
    if seq in settings:
        return SettingsChanged(settings=settings[seq])
    return EndpointUp(endpoint=_endpoint(seq)) if seq < 6 else None


def _endpoint(number: int) -> Endpoint:
    pools = ("main", "other") if number % 2 else ("main",)
    return Endpoint(name=f"e{number}", pools=pools, max_seqs=2, max_prefill_tokens=2048)


def _any(random: Random, seq: int, now: float, flying: dict[str, int]) -> Event:
    kind = random.random()
    if kind < 0.4 or not flying:
        return Arrived(request=_request(random, seq, now))
    if kind < 0.42:
        return random.choice([Tick(), EndpointDown(name="e1"), EndpointUp(endpoint=_endpoint(1))])
    name = random.choice(list(flying))
    attempt = flying[name]
    if kind < 0.65:
        return FirstToken(request_id=name, attempt=attempt)
    del flying[name]
    if kind < 0.68:
        return Bounced(request_id=name, attempt=attempt, cause=random.choice(list(Cause)), retry_after_s=2.0)
    if kind < 0.7:
        return Cancelled(request_id=name)
    return Finished(request_id=name, attempt=attempt, outcome=random.choice(list(Outcome)), output_tokens=seq)


def _request(random: Random, seq: int, now: float) -> InferenceRequest:
    return InferenceRequest(
        id=f"r{seq}",
        tenant=random.choice(["t1", "t2", "t3"]),
        model=random.choice(["llama", "llama", "qwen", "gone"]),
        band=random.choice(["interactive", "standard"]),
        route="chat",
        streamed=random.random() < 0.8,
        arrived_s=now,
        deadline_s=now + random.choice([1.0, 600.0]),
        prompt_tokens=int(random.lognormvariate(6.0, 1.2)),
        max_output_tokens=256,
        sequences=1,
        body_bytes=2048,
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
