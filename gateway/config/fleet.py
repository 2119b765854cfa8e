"""The sections about what is served, and by whom: models, pools, endpoints."""

import secrets
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gateway.config.kinds import EngineUrl, EventsUrl, Ref, Whole, url_parts
from gateway.config.quotas import SharedRates
from gateway.config.section import RESTART, ModelName, Name, Section, all_defaults, not_empty, several
from gateway.config.tenant import TenantId
from policies import types


class Partition(Section):
    """Endpoints that only its tenants use, and the only ones that they use."""

    mode: Literal["hard"] = Field("hard", description="Nothing crosses it, also not when all its engines are down.")
    tenants: Annotated[tuple[TenantId, ...], BeforeValidator(not_empty)] = Field(
        description="All its tenants. Each one's file says `partition: NAME`.", json_schema_extra={"minItems": 1}
    )


class Isolation(Section):
    """What keeps one tenant's prefix cache from another's."""

    salt_secret: Annotated[bytes, Ref("text of 32 bytes or more", ".*", as_bytes=True, least_bytes=32)] = Field(
        default_factory=lambda: secrets.token_bytes(32),
        description="Key of the cache salts sent to engines. Required with more than one tenant; set it where several"
        " gateways share engines.",
        json_schema_extra={"x-default": "random per start", **RESTART},
        repr=False,
        exclude=True,
    )
    groups: dict[Name, Annotated[tuple[TenantId, ...], BeforeValidator(several)]] = Field(
        default_factory=dict,
        description="Trust groups: tenants that share prefix caches and accept to see by timing what the others asked."
        " Each also says `cache: {isolation: group, group: NAME}` in its file.",
        json_schema_extra={"default": {}},
    )


class Model(Section):
    """A model as clients name it."""

    served_as: ModelName = Field(
        default_factory=str,  # filled in by tree.py, which knows the name
        description="Name sent to the engine.",
        json_schema_extra={"x-default": "the model's name here"},
    )
    kind: Literal["chat", "completion", "embedding"] = Field(
        "chat",
        description="Its routes. `chat`: all that generate; `completion`: `/v1/completions`; `embedding`: embeddings, rerank, score.",
    )
    context_tokens: Annotated[int, Whole(1, 10_000_000)] = Field(description="Tokens of prompt and answer together.")
    max_output_tokens: Annotated[int, Whole(1, 10_000_000)] = Field(
        default_factory=lambda known: min(known["context_tokens"], 8192),
        description="Most output tokens of one answer: written where a client sets none, larger wishes are lowered.",
        json_schema_extra={"x-default": "the smaller of `context_tokens` and 8192"},
    )
    limits: SharedRates = all_defaults(SharedRates)

    def described(self, name: str) -> Mapping[str, object]:
        """The model as the core's settings have it."""
        return {"name": name, "context_tokens": self.context_tokens, "limits": self.limits.described()}


class Pool(Section):
    """A set of endpoints that serve one model."""

    model: ModelName = Field(description="The model it serves.")
    max_total_tokens: Annotated[int, Whole(1, 10_000_000)] | None = Field(
        None, description="Most tokens of prompt and predicted answer together. None: any length."
    )
    borrow: tuple[Name, ...] = Field((), description="Pools of the same model whose idle room it may use.")
    lanes: Literal["auto", "off", "fixed"] = Field(
        "auto",
        description="Long prompts only on some endpoints: as many as their work needs (`auto`), all that have"
        " `long_lanes` (`fixed`), or no difference between long and short (`off`).",
    )
    long_prompt_tokens: Annotated[int, Whole(2048, 1_000_000)] | None = Field(
        None,
        description="A prompt with more uncached tokens than this is long.",
        json_schema_extra={"x-default": "twice the engine's step budget, else `max_prefill_tokens`"},
    )

    def described(self, name: str) -> Mapping[str, object]:
        """The pool as the core's settings have it."""
        return {
            "name": name,
            "model": self.model,
            "max_total_tokens": self.max_total_tokens or 0,
            "borrow": self.borrow,
            "lanes": self.lanes,
            "long_prompt_tokens": self.long_prompt_tokens or 0,
        }


class Endpoint(Section):
    """One engine server."""

    name: Name = Field(description="Unique. In logs and metrics, never shown to clients.")
    url: Annotated[str, EngineUrl()] = Field(description="`http://host:port` or `https://host:port`, no path.")
    engine: Literal["vllm", "sglang", "trtllm", "openai"] = Field(
        "vllm", description="What runs there; `openai` is anything else that speaks that dialect."
    )
    pools: Annotated[tuple[Name, ...], BeforeValidator(not_empty)] = Field(
        description="The pools it belongs to.", json_schema_extra={"minItems": 1}
    )
    max_seqs: Annotated[int, Whole(1, 4096)] = Field(
        256, description="Sequences Forebay keeps outstanding on it: vLLM's `--max-num-seqs`, or less."
    )
    max_prefill_tokens: Annotated[int, Whole(512, 1_000_000)] = Field(
        8192,
        description="Prompt tokens Forebay keeps outstanding on it that have no first token yet: vLLM's"
        " `--max-num-batched-tokens`.",
    )
    long_lanes: Annotated[int, Whole(0, 2)] = Field(
        1, description="Long prompts without a first token that it may hold. 0: it takes none."
    )
    long_prefill_cap: Annotated[int, Whole(0, 1_000_000)] = Field(
        0,
        description="Tokens of one long prompt that the engine puts into a step beside others: vLLM's"
        " `--long-prefill-token-threshold`. 0: it has no such cap, and nothing is sent beside a long prompt.",
    )
    priority_field: bool = Field(
        False,
        description="It runs requests by their `priority`: each is sent the rank of its class. vLLM: `--scheduling-policy"
        " priority`; SGLang: `--enable-priority-scheduling` without `--schedule-low-priority-values-first`.",
    )
    drain_on_abort: bool = Field(
        False,
        description="It does not bear that a client leaves: what it still says then is read to its end and thrown away, in place of a"
        " closed connection. Until then the request holds its place and its slot.",
    )
    kv_events: Annotated[str, EventsUrl()] | None = Field(
        None,
        description="`tcp://host:port` where the engine publishes what enters and leaves its KV cache (vLLM, SGLang:"
        " `--kv-events-config`). Needs `pip install 'forebay[kv-events]'`. Its events carry prompts in clear: only over"
        " loopback or a private network.",
    )
    kv_events_replay: Annotated[str, EventsUrl()] | None = Field(
        None,
        description="`tcp://host:port` where the engine tells again what was lost on the way (vLLM: `replay_endpoint` of"
        " `--kv-events-config`). What cannot be told again makes the gateway forget what that engine's cache held.",
    )
    kv_events_ranks: Annotated[int, Whole(1, 64)] = Field(
        1, description="Data-parallel ranks of the engine; each publishes one port above the one before."
    )
    partition: Name = Field(types.SHARED, description="The partition it belongs to: `shared`, or one of `partitions`.")
    api_key: Annotated[str, Ref("1 to 4096 visible ASCII characters", "[!-~]{1,4096}")] | None = Field(
        None, description="Sent to the engine as its bearer token; a client's key never is.", repr=False, exclude=True
    )

    @cached_property
    def _address(self) -> tuple[bool, str, int]:
        parts = url_parts(self.url)
        if parts is None:
            raise ValueError(f"endpoint {self.name}: not the URL of an engine")
        return parts

    @property
    def tls(self) -> bool:
        """Whether it is spoken to over TLS."""
        return self._address[0]

    @property
    def host(self) -> str:
        """Name or address without brackets, as `create_connection` takes it."""
        return self._address[1]

    @property
    def port(self) -> int:
        """The port; 80 or 443 where the URL names none."""
        return self._address[2]

    @property
    def authority(self) -> str:
        """The `host` header sent to it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def identity(self) -> tuple[str, ...]:
        """What makes it this engine and not another one under the same name."""
        return self.url, self.engine, self.partition

    def described(self) -> types.Endpoint:
        """The endpoint as the core knows it, before it was asked what it is."""
        return types.Endpoint(
            name=self.name,
            pools=self.pools,
            max_seqs=self.max_seqs,
            max_prefill_tokens=self.max_prefill_tokens,
            long_lanes=self.long_lanes,
            long_prefill_cap=self.long_prefill_cap,
            partition=self.partition,
        )
