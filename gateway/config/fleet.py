"""The sections about what is served, by whom, and how urgent it is: models, pools, endpoints, classes."""

import secrets
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gateway.config.kinds import EngineUrl, Number, Ref, Whole, url_parts
from gateway.config.section import ModelName, Name, Section, all_defaults, not_empty
from policies import types

QueueTimeout = Annotated[float, Number(0.1, 3600)]
MaxQueued = Annotated[int, Whole(1, 1_000_000)]
_TIMEOUT = "Longest wait in the queue, then 503 `queue_timeout`."
_QUEUED = "Requests of the class that may wait, then 503 `overloaded`."


class Isolation(Section):
    """What keeps one tenant's prefix cache from another's."""

    salt_secret: Annotated[bytes, Ref("text of 32 bytes or more", ".*", as_bytes=True, least_bytes=32)] = Field(
        default_factory=lambda: secrets.token_bytes(32),
        description="Key of the cache salts sent to engines. Set it where several gateways share engines.",
        json_schema_extra={"x-default": "random per start"},
        repr=False,
        exclude=True,
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


class Pool(Section):
    """A set of endpoints that serve one model."""

    model: ModelName = Field(description="The model it serves.")


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
    max_seqs: Annotated[int, Whole(1, 4096)] = Field(64, description="Sequences Forebay keeps outstanding on it.")
    max_prefill_tokens: Annotated[int, Whole(512, 1_000_000)] = Field(
        8192, description="Prompt tokens Forebay keeps outstanding on it that have no first token yet."
    )
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

    def described(self) -> types.Endpoint:
        """The endpoint as the core knows it."""
        return types.Endpoint(
            name=self.name, pools=self.pools, max_seqs=self.max_seqs, max_prefill_tokens=self.max_prefill_tokens
        )


class Critical(Section):
    """Rank 0, the most urgent class."""

    queue_timeout_s: QueueTimeout = Field(30.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(512, description=_QUEUED)


class Interactive(Section):
    """Rank 1."""

    queue_timeout_s: QueueTimeout = Field(30.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)


class Standard(Section):
    """Rank 2, the class of a request that names none."""

    queue_timeout_s: QueueTimeout = Field(60.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)


class Batch(Section):
    """Rank 3."""

    queue_timeout_s: QueueTimeout = Field(300.0, description=_TIMEOUT)
    max_queued: MaxQueued = Field(5000, description=_QUEUED)


class Classes(Section):
    """The built-in priority classes, the most urgent first: the position is the rank."""

    critical: Critical = all_defaults(Critical)
    interactive: Interactive = all_defaults(Interactive)
    standard: Standard = all_defaults(Standard)
    batch: Batch = all_defaults(Batch)
