"""What a scope may use: rates, budgets, slots, what a token is worth, what is held for a request (docs/policies/quotas.md).

Defaults and ranges: tenancy.md 1. Absent inherits, `null` is no limit, 0 is refused: to close something use `state`.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from gateway.config.kinds import GIB, KIB, MIB, Number, Size, Text, Whole
from gateway.config.section import Section

Rpm = Annotated[int, Whole(1, 10_000_000)]
Tpm = Annotated[int, Whole(1, 1_000_000_000)]
Slots = Annotated[int, Whole(1, 100_000)]
Weight = Annotated[float, Number(0, 1000, unit="")]
BudgetId = Annotated[str, Text("[a-z0-9][a-z0-9-]{0,47}", "a budget's id (a to z, 0 to 9, '-'; at most 48 characters)")]
RATES = ("rpm", "tpm", "itpm", "otpm")
BURST_S = 60.0
SLOTS = 64  # of a tenant that says nothing
QUEUE_BOUNDS = ("max_concurrency", "max_queued", "max_queued_bytes")


class Rates(Section):
    """What one scope may use beside the others that hold as well."""

    rpm: Rpm | None = Field(None, description="Requests a minute.")
    tpm: Tpm | None = Field(None, description="Cost units a minute (`cost`).")
    max_concurrency: Slots | None = Field(None, description="Requests that run at a time; more wait in their queue.")

    def described(self) -> dict[str, object]:
        """The limits as the core's settings have them."""
        return self.model_dump()


class SharedRates(Rates):
    """What all tenants together may use."""

    tpm: Tpm | None = Field(None, description="Tokens a minute, each worth 1.")


class TenantLimits(Section):
    """What a tenant may use and how much of it may wait."""

    rpm: Rpm | None = Field(None, description="Requests a minute.")
    tpm: Tpm | None = Field(None, description="Cost units a minute, of input and output (`cost`).")
    itpm: Tpm | None = Field(None, description="Cost units of input a minute.")
    otpm: Tpm | None = Field(None, description="Cost units of output a minute.")
    tpd: Annotated[int, Whole(1, 10**13)] | None = Field(
        None, description="Cost units a day (UTC): short for a budget `tpd`."
    )
    burst_s: Annotated[float, Number(1, 600)] = Field(
        BURST_S,
        description="So many seconds' worth of a rate may come at once. With 60, a minute after idleness sees twice the limit.",
    )
    max_concurrency: Slots | None = Field(
        SLOTS,
        description="Requests that run at a time; more wait in the tenant's queue.",
        json_schema_extra={"x-default": "64; without tenant files no limit"},
    )
    max_queued: Annotated[int, Whole(0, 100_000)] | None = Field(
        256,
        description="Requests that may wait, then 429 `queue_full`. 0: none waits for a slot, 429 `concurrency_exceeded`.",
        json_schema_extra={"x-default": "256; without tenant files no limit"},
    )
    max_queued_bytes: Annotated[int, Size(64 * KIB, 4 * GIB)] | None = Field(
        64 * MIB,
        description="Bytes of the bodies that may wait, then 429 `queue_full`.",
        json_schema_extra={"x-default": "64MiB; without tenant files no limit"},
    )
    queue_timeout_s: Annotated[float, Number(0.1, 3600)] | None = Field(
        None, description="Longest wait in a queue, where that is less than the class allows."
    )
    max_output_tokens: Annotated[int, Whole(1, 1_000_000)] | None = Field(
        None,
        description="Most output tokens of one answer: written where a client names no most, more is 400 `max_tokens_above_limit`.",
    )

    def scope(self, only_written: bool) -> dict[str, object]:
        """The limits as the core's settings have them. `only_written`: without the bounds that are defaults."""
        held = {name: getattr(self, name) for name in RATES}
        return {**held, "max_concurrency": self._bound("max_concurrency", only_written)}

    def queues(self, scale: float, only_written: bool) -> dict[str, object]:
        """What may wait, as the core's settings have it."""
        timeout_s = self.queue_timeout_s
        return {
            "max_queued": self._bound("max_queued", only_written),
            "max_queued_bytes": self._bound("max_queued_bytes", only_written),
            "queue_timeout_s": timeout_s * scale if timeout_s is not None else None,
        }

    def _bound(self, name: str, only_written: bool) -> object:
        return None if only_written and name not in self.model_fields_set else getattr(self, name)


class Reserve(Section):
    """What is held for a request until it has ended and its true use is known."""

    output_default: Annotated[int, Whole(1, 1_000_000)] = Field(
        1024, description="Tokens of answer where a client names no most; at most a quarter of the smallest limit."
    )
    media_tokens: Annotated[int, Whole(0, 1_000_000)] = Field(
        1024, description="Tokens for each picture, sound or file."
    )
    oversize: Literal["reject", "clamp"] = Field(
        "reject",
        description="A request that needs more than a limit can ever hold: 400 `request_exceeds_limit`, or it passes when nothing is used and the rest is owed.",
    )


class Cost(Section):
    """What a token is worth against the limits."""

    input: Weight = Field(1.0, description="Of a prompt, not cached.")
    cached: Weight = Field(1.0, description="Of a prompt, from the engine's cache.")
    output: Weight = Field(1.0, description="Of an answer.")


class Budget(Section):
    """Cost units for a calendar period, after which nothing passes until the next one."""

    id: BudgetId = Field(description="Unique in the tenant. In metrics and headers; its counter hangs on it.")
    amount: Annotated[int, Whole(1, 10**15)] = Field(description="Cost units.")
    period: Literal["day", "week", "month"] = Field("day", description="In UTC; a week begins on Monday.")
    soft_ratio: Annotated[float, Number(0, 1, unit="")] = Field(
        0.8, description="From this share on answers carry `x-forebay-budget-soft`."
    )


NO_RATES = dict.fromkeys(("rpm", "tpm", "max_concurrency"))


def budgets_of(limits: TenantLimits, budgets: tuple[Budget, ...]) -> list[dict[str, object]]:
    """All budgets as the core's settings have them."""
    made = [budget.model_dump() for budget in budgets]
    return [{"id": "tpd", "amount": limits.tpd}, *made] if limits.tpd is not None else made


def scopes(named: Mapping[str, Rates]) -> dict[str, object]:
    """Limits by the key or model they are of, where there are any."""
    return {name: rates.described() for name, rates in named.items() if rates.described() != NO_RATES}
