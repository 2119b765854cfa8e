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
Ceiling = Annotated[float, Number(0.05, 1, unit="")]
Ratio = Annotated[float, Number(0, 0.5, unit="")]
TokenCost = Annotated[float, Number(0, 100, unit="")]
OnLate = Literal["queue", "downgrade", "reject"]
Milliseconds = Annotated[float, Number(1, 1_000_000, unit="ms")]

_TIMEOUT = "Longest wait in the queue, then 503 `queue_timeout`."
_QUEUED = "Requests of the class that may wait, then 503 `overloaded`."
_AGE = "A head that has waited so long may have the next fourth dispatch of its pool, whatever its class."
_CEILING = "Most of a pool's sequences that the class may hold; no bound in a pool of less than 8. Never more than in a more urgent class."
_RESERVED = "Part of a pool's sequences that less urgent classes leave free for it; none in a pool of less than 8."
_SHARE = "Part of what a pool dispatches that the class gets at least while it waits. 0.5 in all classes together."
_SHEDDABLE = "Refused, more and more of them, while its pool is nearly full (`admission.shed`)."
_LATE = "What to do with one whose first token will surely be late: wait, become less urgent, or 503 `overloaded`."
_TTFT = "When the first token is due, from the first byte of the request. None: no such promise."
_ITL = "Time per output token, on average over an answer, that is still good. None: no such promise."


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

    ceiling: Ceiling = Field(1.0, description=_CEILING)
    reserved: Ratio = Field(0.05, description=_RESERVED)
    min_share: Ratio = Field(0.0, description=_SHARE)
    queue_timeout_s: QueueTimeout = Field(30.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(512, description=_QUEUED)
    age_after_s: AgeAfter = Field(5.0, description=_AGE)
    sheddable: bool = Field(False, description=_SHEDDABLE)
    on_late: OnLate = Field("reject", description=_LATE)
    slo: UrgentSlo = all_defaults(UrgentSlo)


class Interactive(Section):
    """Rank 1."""

    ceiling: Ceiling = Field(0.95, description=_CEILING)
    reserved: Ratio = Field(0.05, description=_RESERVED)
    min_share: Ratio = Field(0.0, description=_SHARE)
    queue_timeout_s: QueueTimeout = Field(30.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)
    age_after_s: AgeAfter = Field(5.0, description=_AGE)
    sheddable: bool = Field(False, description=_SHEDDABLE)
    on_late: OnLate = Field("reject", description=_LATE)
    slo: UrgentSlo = all_defaults(UrgentSlo)


class Standard(Section):
    """Rank 2, the class of a request that names none."""

    ceiling: Ceiling = Field(0.9, description=_CEILING)
    reserved: Ratio = Field(0.0, description=_RESERVED)
    min_share: Ratio = Field(0.1, description=_SHARE)
    queue_timeout_s: QueueTimeout = Field(60.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)
    age_after_s: AgeAfter = Field(30.0, description=_AGE)
    sheddable: bool = Field(False, description=_SHEDDABLE)
    on_late: OnLate = Field("queue", description=_LATE)
    slo: StandardSlo = all_defaults(StandardSlo)


class Batch(Section):
    """Rank 3."""

    ceiling: Ceiling = Field(0.85, description=_CEILING)
    reserved: Ratio = Field(0.0, description=_RESERVED)
    min_share: Ratio = Field(0.05, description=_SHARE)
    queue_timeout_s: QueueTimeout = Field(300.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)
    age_after_s: AgeAfter = Field(120.0, description=_AGE)
    sheddable: bool = Field(True, description=_SHEDDABLE)
    on_late: OnLate = Field("queue", description=_LATE)
    slo: Slo = all_defaults(Slo)


Class = Critical | Interactive | Standard | Batch


class Classes(Section):
    """The built-in priority classes, the most urgent first; their order is fixed (ADR 23)."""

    critical: Critical = all_defaults(Critical)
    interactive: Interactive = all_defaults(Interactive)
    standard: Standard = all_defaults(Standard)
    batch: Batch = all_defaults(Batch)

    def described(self, scale: float, most_urgent: str) -> dict[str, dict[str, object]]:
        """The classes as the core's settings have them; `scale` multiplies every time.

        Nobody uses one above `most_urgent`: nothing is reserved for it.
        """
        bands = {name: _band(name, rank, each, scale) for rank, (name, each) in enumerate(self)}
        for name in list(bands)[: list(bands).index(most_urgent)]:
            bands[name]["reserved"] = 0.0
        return bands


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

    block_tokens: Annotated[int, Whole(16, 512)] = Field(
        64, description="Step in which beginnings are compared.", json_schema_extra=RESTART
    )
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


class Fairness(Section):
    """How tenants share what a class is served. What a token costs an engine here is not what a tenant is charged."""

    kind: Literal["deficit", "round_robin"] = Field(
        "deficit", description="By what requests cost, or request by request; both by `weight`."
    )
    quantum: Annotated[int, Whole(256, 1_000_000)] = Field(
        8192, description="Cost that a tenant of weight 1 may have at a time, before it is the next one's turn."
    )
    input: TokenCost = Field(1.0, description="Cost of a prompt token.")
    cached: TokenCost = Field(0.1, description="Cost of a prompt token that the engine has in its cache.")
    output: TokenCost = Field(2.0, description="Cost of a token of the answer.")


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
        "ceiling": each.ceiling,
        "reserved": each.reserved,
        "min_share": each.min_share,
    }
