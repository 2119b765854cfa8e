"""The nouns of scheduling: what a request is, what an endpoint is, what the operator has set.

Everything here is a plain record without behaviour. Units stand in names: `_s` seconds on the driver's clock,
`_tokens`, `_bytes`, `_per_s`. Text of a prompt never gets this far: the core knows sizes, ids and block hashes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import msgspec

T = TypeVar("T")

RATES = ("rpm", "tpm", "itpm", "otpm")  # limits of so much a minute, as `Limits` has them
SHARED = "shared"  # the partition of whoever names none


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Message(msgspec.Struct, frozen=True, gc=False):
    """What goes into the core and comes out of it: requests, events, decisions, and what stands in them.

    Several are made for every request, so they are made in C; what the operator sets is a dataclass, which pydantic
    can read (docs/adr/0003-records.md). None can be part of a circle, so the collector need not look at them.
    """


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A slotted, keyword-only dataclass that the type checker holds to be frozen.

    For what is not made for every request: settings and views.
    """
    made: Any = dataclass(slots=True, kw_only=True)(cls)
    return made  # type: ignore[no-any-return]


class InferenceRequest(Message, kw_only=False):
    """One request as the core sees it: every fact a policy may use, no text.

    Its first fields may be given by their places: of more than 15 keywords CPython makes a dict before the call.

    `arrived_s` is when its first byte came, `deadline_s` is absolute on the same clock. `prompt_tokens` is the
    driver's first estimate over the whole prompt, exact where `text_bytes` is 0 (a prompt of token ids); with
    `text_bytes` of text of that `kind` (text, code, cjk) the core knows better after a while. `max_output_tokens` is
    the cap sent to the engine (0 on routes that generate nothing).

    `prefix` is the chain of block hashes of `policies.fingerprint`. `head` is its fingerprint at the end of system
    prompt and tools or after 1,024 tokens, whichever is first (0: none). `shape` names what forms the answer besides
    the prompt: a schema, a forced tool (it begins with `schema` or `tool` then), a reasoning effort.

    `key` is the id of the API key. What it asks to be reserved for besides its text: `messages`, parts of `media`, and
    whether it `names_most`, the most tokens of its answer, itself. Counted only where tokens are limited.
    """

    id: str
    tenant: str
    model: str
    band: str
    route: str
    streamed: bool
    arrived_s: float
    deadline_s: float
    prompt_tokens: int
    max_output_tokens: int
    sequences: int
    body_bytes: int
    prefix: tuple[int, ...] = ()
    session: str = ""
    text_bytes: int = 0
    kind: str = "text"
    head: int = 0
    shape: str = ""
    key: str = ""
    messages: int = 0
    media: int = 0
    names_most: bool = True


@record
class Prediction:
    """Quantiles and mean of one sequence's answer, in tokens, none above the request's `max_output_tokens`.

    `held`: what each of many such answers holds on average when they hold most, all of them begun at once.
    """

    p25: float
    p50: float
    p90: float
    p99: float
    mean: float
    held: float


@record
class Endpoint:
    """One engine server and its outstanding bounds (scheduling.md 5).

    `prefill_tokens_per_s` and `decode_s` (seconds per token of one answer) are start values. Of `kv_tokens`,
    `context_tokens` and `step_tokens` (the engine's budget of one step) 0 means unknown. `long_lanes`: how many long
    prompts without a first token it may hold; `long_prefill_cap`: the most tokens of one prompt that the engine puts
    into a step beside others (vLLM's `--long-prefill-token-threshold`; 0: no cap, a long prompt fills every step).
    So many `replicas` of the gateway send to it, and each keeps to its part of every bound (tenancy.md 8.4).
    """

    name: str
    pools: tuple[str, ...]
    max_seqs: int
    max_prefill_tokens: int
    partition: str = SHARED
    prefill_tokens_per_s: float = 8000.0
    decode_s: float = 0.02
    long_lanes: int = 1
    long_prefill_cap: int = 0
    kv_tokens: int = 0
    context_tokens: int = 0
    step_tokens: int = 0
    replicas: int = 1


@record
class Pool:
    """A named set of endpoints that serve one model, up to `max_total_tokens` of prompt and answer (0: any).

    `borrow` names pools of the same model whose idle room it may use. `lanes` is auto, off or fixed; a prompt of more
    than `long_prompt_tokens` uncached tokens is long (0: twice the step budget).
    """

    name: str
    model: str
    max_total_tokens: int = 0
    borrow: tuple[str, ...] = ()
    lanes: str = "auto"
    long_prompt_tokens: int = 0


@record
class Band:
    """A priority class: 0 is the most urgent rank. Bounds of its queue, and what counts as good.

    A first token is due `slo_ttft_s` after the arrival (0: no such promise), and `ttft_per_token_s` later for each
    prompt token beyond `free_tokens`. `on_late`: queue, downgrade or reject.

    Of a pool's room it may hold `ceiling`; `reserved` of it less urgent ones leave free. While it waits it has at least
    `min_share` of what is dispatched, and an extra turn now and then once it has waited `age_after_s` (tenancy.md 5).
    """

    name: str
    rank: int
    queue_timeout_s: float
    max_queued: int
    slo_ttft_s: float = 0.0
    slo_itl_s: float = 0.0
    ttft_per_token_s: float = 0.00025
    free_tokens: int = 2048
    sheddable: bool = False
    on_late: str = "queue"
    age_after_s: float = 30.0
    ceiling: float = 1.0
    reserved: float = 0.0
    min_share: float = 0.0


@record
class Fairness:
    """How tenants share what a class is served (tenancy.md 6): by cost (`deficit`), or by requests (`round_robin`).

    A tenant may have `quantum` times its weight in a round. `input`, `cached` and `output` are what a token costs.
    """

    kind: str = "deficit"
    quantum: int = 8192
    input: float = 1.0
    cached: float = 0.1
    output: float = 2.0


@record
class Limits:
    """What one scope may use; None: no limit. Requests a minute, and cost units a minute: all, of input, of output."""

    rpm: int | None = None
    tpm: int | None = None
    itpm: int | None = None
    otpm: int | None = None
    max_concurrency: int | None = None


@record
class Budget:
    """Cost units for a day, a week (ISO) or a month, in UTC. From `soft_ratio` of it on the client is told."""

    id: str
    amount: int
    period: str = "day"
    soft_ratio: float = 0.8


@record
class Cost:
    """What a token is worth against the limits (not what it costs an engine)."""

    input: float = 1.0
    cached: float = 1.0
    output: float = 1.0


@record
class Reserve:
    """What is held for a request until it has ended. `output_default` tokens of answer where the client names no most,
    `media_tokens` for each part. One that needs more than a limit can ever hold is refused (`oversize` reject) or
    held to the limit (clamp)."""

    output_default: int = 1024
    media_tokens: int = 1024
    oversize: str = "reject"


@record
class Tenant:
    """What a tenant may have. `weight` is its share inside a class, beside others that wait (tenancy.md 6).

    It uses the endpoints of its `partition` and no others, whatever happens there.
    `limits` hold for all it does, those in `keys` for one key, those in `models` for what it sends to one model; each
    per-minute one allows `burst_s` seconds' worth at once. `mode` is enforce, or shadow: rates and budgets are counted
    and refuse nobody. `on_store_down` as in `Fleet`; empty: as there. The last three bound what waits in its queues.
    """

    id: str
    weight: float = 1.0
    partition: str = SHARED
    limits: Limits = field(default_factory=Limits)
    burst_s: float = 60.0
    cost: Cost = field(default_factory=Cost)
    reserve: Reserve = field(default_factory=Reserve)
    budgets: tuple[Budget, ...] = ()
    mode: str = "enforce"
    on_store_down: str = ""
    models: Mapping[str, Limits] = field(default_factory=dict)
    keys: Mapping[str, Limits] = field(default_factory=dict)
    max_queued: int | None = None
    max_queued_bytes: int | None = None
    queue_timeout_s: float | None = None


@record
class Model:
    """A model with limits for all tenants together. `context_tokens` 0: unknown."""

    name: str
    context_tokens: int = 0
    limits: Limits = field(default_factory=Limits)


@record
class Fleet:
    """Several replicas share limits through a store, which the driver asks every `sync_s` (tenancy.md 8).

    `on_store_down`, when it does not answer: local_share (each takes its part), open (rates and budgets refuse nobody)
    or closed (who has any is refused). `replicas` until the store has told how many there are. Slots are leased for
    `lease_s`: after the death of a replica its slots are nobody's for so long.
    """

    sync_s: float = 0.25
    lease_s: float = 30.0
    on_store_down: str = "local_share"
    replicas: int = 1


@record
class Affinity:
    """How equal prefixes are kept together (scheduling.md 8). `block_tokens` of the chain, at 4 bytes a token."""

    block_tokens: int = 64
    index_bytes: int = 256 * 1024 * 1024
    ttl_s: float = 1800.0
    max_load_ratio: float = 1.25
    kv_tiers: float = 1.0


@record
class Settings:
    """What the operator has set, as far as decisions go; the first event of every journal carries it whole.

    `admitting` False refuses new arrivals (`draining`); `queueing` False also drops what is queued.
    `timer_scale` multiplies the core's own fixed times (tests only); configured times come in already scaled.
    `ordering` is by_length, edf or fcfs; `shed` auto, llmd or off; `length` learned or declared. `affinity` None
    places without regard to prefixes. A tenant that is not in `tenants` has the defaults of `Tenant`, a model that is
    not in `models` those of `Model`: no limits. `fleet` None: there is one replica, and every limit is here.
    """

    pools: Mapping[str, Pool]
    bands: Mapping[str, Band]
    max_queued: int
    max_queued_bytes: int
    max_attempts: int
    seed: int
    timer_scale: float = 1.0
    admitting: bool = True
    queueing: bool = True
    ordering: str = "by_length"
    shed: str = "auto"
    length: str = "learned"
    affinity: Affinity | None = None
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)
    fairness: Fairness = field(default_factory=Fairness)
    fleet: Fleet | None = None
