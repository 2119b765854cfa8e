"""A core to talk to in tests: short ways to say what happens, and the books checked after every event."""

from collections.abc import Sequence
from typing import Any

from policies.core import Core
from policies.decisions import Decision, Dispatch, Evict, Fail, Reject, Why
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
    LoadObserved,
    Outcome,
    SettingsChanged,
    Tick,
)
from policies.types import Affinity, Band, Endpoint, Fairness, InferenceRequest, Pool, Settings

BANDS = (
    Band(name="interactive", rank=1, queue_timeout_s=30.0, max_queued=5000),
    Band(name="standard", rank=2, queue_timeout_s=60.0, max_queued=5000),
)


def settings(
    *,
    pools: Sequence[Pool] = (Pool(name="main", model="llama", lanes="off"),),
    bands: Sequence[Band] = BANDS,
    max_queued: int = 10_000,
    max_queued_bytes: int = 1 << 29,
    max_attempts: int = 2,
    seed: int = 7,
    admitting: bool = True,
    queueing: bool = True,
    ordering: str = "fcfs",
    shed: str = "auto",
    affinity: Affinity | None = None,
    fairness: Fairness = Fairness(),  # noqa: B008
) -> Settings:
    return Settings(
        pools={pool.name: pool for pool in pools},
        bands={band.name: band for band in bands},
        max_queued=max_queued,
        max_queued_bytes=max_queued_bytes,
        max_attempts=max_attempts,
        seed=seed,
        admitting=admitting,
        queueing=queueing,
        ordering=ordering,
        shed=shed,
        affinity=affinity,
        fairness=fairness,
    )


def request(
    name: str,
    *,
    at: float = 0.0,
    tokens: int = 100,
    sequences: int = 1,
    band: str = "standard",
    tenant: str = "default",
    model: str = "llama",
    deadline_s: float = 1800.0,
    streamed: bool = True,
    body_bytes: int = 1000,
    prefix: tuple[int, ...] = (),
    session: str = "",
    max_output: int = 256,
    text_bytes: int = 0,
    **more: Any,
) -> InferenceRequest:
    """`deadline_s` counts from `at`."""
    return InferenceRequest(
        id=name,
        tenant=tenant,
        model=model,
        band=band,
        route="chat",
        streamed=streamed,
        arrived_s=at,
        deadline_s=at + deadline_s,
        prompt_tokens=tokens,
        max_output_tokens=max_output,
        sequences=sequences,
        body_bytes=body_bytes,
        prefix=prefix,
        session=session,
        text_bytes=text_bytes,
        **more,
    )


def endpoint(
    name: str,
    *,
    seqs: int = 8,
    prefill: int = 2048,
    pools: Sequence[str] = ("main",),
    speed: float = 1.0,
    **more: int,
) -> Endpoint:
    """At one token a second no estimate of a first token comes in the way of a test. It caps long prefills."""
    facts: dict[str, int] = {"long_prefill_cap": 512, **more}
    return Endpoint(
        name=name, pools=tuple(pools), max_seqs=seqs, max_prefill_tokens=prefill, prefill_tokens_per_s=speed, **facts
    )


class World:
    """A core with settings and endpoints. Every call is one event; answers are short texts (`told`)."""

    def __init__(self, *endpoints: Endpoint, settings: Settings = settings()) -> None:  # noqa: B008
        self.core = Core()
        self.happen(SettingsChanged(settings=settings), 0.0)
        for each in endpoints:
            self.up(each)

    def happen(self, event: Event, now: float) -> list[Decision]:
        decisions = self.core.handle(event, now)
        self.core.check()
        return decisions

    def arrive(self, name: str, at: float = 0.0, **facts: object) -> list[str]:
        return told(self.happen(Arrived(request=request(name, at=at, **facts)), at))  # type: ignore[arg-type]

    def first_token(self, name: str, at: float, attempt: int = 1) -> list[str]:
        return told(self.happen(FirstToken(request_id=name, attempt=attempt), at))

    def finish(self, name: str, at: float, attempt: int = 1, outcome: Outcome = Outcome.COMPLETED) -> list[str]:
        return told(self.happen(Finished(request_id=name, attempt=attempt, outcome=outcome), at))

    def bounce(
        self, name: str, at: float, cause: Cause = Cause.CONNECT, attempt: int = 1, retry_after_s: float | None = None
    ) -> list[str]:
        event = Bounced(request_id=name, attempt=attempt, cause=cause, retry_after_s=retry_after_s)
        return told(self.happen(event, at))

    def cancel(self, name: str, at: float) -> list[str]:
        return told(self.happen(Cancelled(request_id=name), at))

    def up(self, endpoint: Endpoint, at: float = 0.0) -> list[str]:
        return told(self.happen(EndpointUp(endpoint=endpoint), at))

    def down(self, name: str, at: float) -> list[str]:
        return told(self.happen(EndpointDown(name=name), at))

    def change(self, settings: Settings, at: float) -> list[str]:
        return told(self.happen(SettingsChanged(settings=settings), at))

    def tick(self, at: float) -> list[str]:
        return told(self.happen(Tick(), at))

    def finish_of(self, name: str, at: float, *, cached: int | None = None, output: int | None = None) -> list[str]:
        """It is complete, and the engine has counted."""
        event = Finished(
            request_id=name, attempt=1, outcome=Outcome.COMPLETED, cached_tokens=cached, output_tokens=output
        )
        return told(self.happen(event, at))

    def observe(
        self, name: str, at: float, *, running: int = 0, waiting: int = 0, kv_usage: float | None = None
    ) -> list[str]:
        event = LoadObserved(endpoint=name, observed_s=at, running=running, waiting=waiting, kv_usage=kv_usage)
        return told(self.happen(event, at))

    def why(self, name: str, at: float = 0.0, **facts: object) -> Why:
        """Of the one decision about an arrival."""
        [decision] = self.happen(Arrived(request=request(name, at=at, **facts)), at)  # type: ignore[arg-type]
        return decision.why

    def load(self, name: str) -> tuple[int, int]:
        """Sequences and prefill tokens outstanding there."""
        view = next(view for view in self.core.endpoints() if view.name == name)
        return view.sequences, view.prefill_tokens


def told(decisions: list[Decision]) -> list[str]:
    """`a>x` request a goes to endpoint x (`a>x#2` as its second attempt); `a!reason` it ends."""
    return [_tell(decision) for decision in decisions]


def _tell(decision: Decision) -> str:
    match decision:
        case Dispatch():
            number = f"#{decision.attempt}" if decision.attempt > 1 else ""
            return f"{decision.request_id}>{decision.endpoint}{number}"
        case Reject() | Evict() | Fail():
            return f"{decision.request_id}!{decision.reason}"
