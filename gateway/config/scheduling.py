"""The sections about how urgent requests are, how long they may become, and where equal prompts go.

Defaults: tenancy.md 1.1. The four classes are built in; each field that is left out keeps the default of its class.
"""

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.kinds import GIB, MIB, Number, Size, Whole
from gateway.config.section import RESTART, FilePath, Section, all_defaults

QueueTimeout = Annotated[float, Number(0.1, 3600)]
MaxQueued = Annotated[int, Whole(1, 1_000_000)]
AgeAfter = Annotated[float, Number(0.1, 3600)]
OnLate = Literal["queue", "downgrade", "reject"]
Milliseconds = Annotated[float, Number(1, 1_000_000, unit="ms")]

_TIMEOUT = "Longest wait in the queue, then 503 `queue_timeout`."
_QUEUED = "Requests of the class that may wait, then 503 `overloaded`."
_AGE = "After so long in the queue a request counts as one class more urgent."
_SHEDDABLE = "Refused, more and more of them, while its pool is nearly full (`admission.shed`)."
_LATE = "What to do with one whose first token will surely be late: wait, become less urgent, or 503 `overloaded`."
_TTFT = "When the first token is due, from the first byte of the request. None: no such promise."
_ITL = "The largest gap between two tokens that is still good. None: no such promise."


class Slo(Section):
    """What counts as good for a class: orders its queue and is measured, never cut."""

    ttft_ms: Milliseconds | None = Field(None, description=_TTFT)
    itl_ms: Milliseconds | None = Field(None, description=_ITL)
    ttft_per_token_ms: Annotated[float, Number(0, 100, unit="ms")] = Field(
        0.25, description="So much later for each prompt token beyond `free_tokens`."
    )
    free_tokens: Annotated[int, Whole(0, 1_000_000)] = Field(
        2048, description="Prompt tokens that `ttft_ms` holds for as it is."
    )


class UrgentSlo(Slo):
    """What counts as good where a person waits."""

    ttft_ms: Milliseconds | None = Field(400.0, description=_TTFT)
    itl_ms: Milliseconds | None = Field(50.0, description=_ITL)


class StandardSlo(Slo):
    """What counts as good for a request that names no class."""

    ttft_ms: Milliseconds | None = Field(2000.0, description=_TTFT)
    itl_ms: Milliseconds | None = Field(100.0, description=_ITL)


class Critical(Section):
    """Rank 0, the most urgent class."""

    queue_timeout_s: QueueTimeout = Field(30.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(512, description=_QUEUED)
    age_after_s: AgeAfter = Field(5.0, description=_AGE)
    sheddable: bool = Field(False, description=_SHEDDABLE)
    on_late: OnLate = Field("reject", description=_LATE)
    slo: UrgentSlo = all_defaults(UrgentSlo)


class Interactive(Section):
    """Rank 1."""

    queue_timeout_s: QueueTimeout = Field(30.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)
    age_after_s: AgeAfter = Field(5.0, description=_AGE)
    sheddable: bool = Field(False, description=_SHEDDABLE)
    on_late: OnLate = Field("reject", description=_LATE)
    slo: UrgentSlo = all_defaults(UrgentSlo)


class Standard(Section):
    """Rank 2, the class of a request that names none."""

    queue_timeout_s: QueueTimeout = Field(60.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)
    age_after_s: AgeAfter = Field(30.0, description=_AGE)
    sheddable: bool = Field(False, description=_SHEDDABLE)
    on_late: OnLate = Field("queue", description=_LATE)
    slo: StandardSlo = all_defaults(StandardSlo)


class Batch(Section):
    """Rank 3."""

    queue_timeout_s: QueueTimeout = Field(300.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)
    age_after_s: AgeAfter = Field(120.0, description=_AGE)
    sheddable: bool = Field(True, description=_SHEDDABLE)
    on_late: OnLate = Field("queue", description=_LATE)
    slo: Slo = all_defaults(Slo)


Class = Critical | Interactive | Standard | Batch


class Classes(Section):
    """The built-in priority classes, the most urgent first: the position is the rank."""

    critical: Critical = all_defaults(Critical)
    interactive: Interactive = all_defaults(Interactive)
    standard: Standard = all_defaults(Standard)
    batch: Batch = all_defaults(Batch)

    def described(self, scale: float) -> dict[str, object]:
        """The classes as the core's settings have them; `scale` multiplies every time."""
        return {name: _band(name, rank, each, scale) for rank, (name, each) in enumerate(self)}


class Length(Section):
    """How the length of an answer is predicted."""

    kind: Literal["learned", "declared"] = Field(
        "learned", description="From what each tenant's answers were, or always as long as the request allows."
    )
    state_file: FilePath | None = Field(
        None,
        description="File that keeps what was learned over restarts; written every minute and at the end. Counts, no text.",
        json_schema_extra=RESTART,
    )


class Affinity(Section):
    """How requests with equal beginnings are kept together."""

    block_tokens: Annotated[int, Whole(16, 512)] = Field(64, description="Step in which beginnings are compared.")
    index_bytes: Annotated[int, Size(MIB, 16 * GIB)] = Field(
        256 * MIB, description="Memory for what is known of the engines' caches."
    )
    ttl_s: Annotated[float, Number(1, 86400)] = Field(
        1800.0, description="So long a beginning is taken to be in an engine's cache after its last use."
    )
    max_load_ratio: Annotated[float, Number(1, 4, unit="")] = Field(
        1.25, description="An endpoint with more than so many times the average load is passed over."
    )
    kv_tiers: Annotated[float, Number(0.1, 64, unit="")] = Field(
        1.0,
        description="Size of an engine's cache in units of its GPU memory for it: more where it also uses the CPU's.",
    )

    def described(self, scale: float) -> dict[str, object]:
        """The section as the core's settings have it; `scale` multiplies the time."""
        return {**self.model_dump(), "ttl_s": self.ttl_s * scale}


def _band(name: str, rank: int, each: Class, scale: float) -> dict[str, object]:
    slo = each.slo
    return {
        "name": name,
        "rank": rank,
        "queue_timeout_s": each.queue_timeout_s * scale,
        "max_queued": each.max_queued,
        "slo_ttft_s": (slo.ttft_ms or 0.0) / 1000 * scale,
        "slo_itl_s": (slo.itl_ms or 0.0) / 1000 * scale,
        "ttft_per_token_s": slo.ttft_per_token_ms / 1000 * scale,
        "free_tokens": slo.free_tokens,
        "sheddable": each.sheddable,
        "on_late": each.on_late,
        "age_after_s": each.age_after_s * scale,
    }
