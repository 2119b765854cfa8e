"""The sections about the gateway process itself: listeners, timers, bounds, logs."""

import resource
from typing import Annotated, Literal

from pydantic import Field

from gateway.config.headers import HeaderName
from gateway.config.kinds import GIB, KIB, MIB, Host, IpNetwork, Network, Number, Size, Text, Whole
from gateway.config.scheduling import Fairness
from gateway.config.section import RESTART, FilePath, Name, Section, all_defaults
from gateway.config.tls import Tls

HostName = Annotated[str, Text(r"[A-Za-z0-9.:_\-\[\]]{1,255}", "a host name", lower=True)]
Sha256 = Annotated[str, Text("[0-9a-fA-F]{64}", "the token's SHA-256: 64 hexadecimal digits", lower=True, secret=True)]
EngineSide = Annotated[float, Number(0.05, 86400)]
ClientSide = Annotated[float, Number(1, 3600)]


def _default_connections() -> int:
    """0.4 of the files this process may open: a proxied request takes two, and 64 stay for the rest (http.md 3.5)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2_500_000 if hard == resource.RLIM_INFINITY else hard
    return max(16, min(1_000_000, files * 2 // 5))


class Listen(Section):
    """The data listener."""

    host: Annotated[str, Host()] = Field(
        "0.0.0.0",
        description="Address of the data listener. Any but a loopback address needs tenant files or `allow_anonymous`.",
        json_schema_extra=RESTART,
    )
    port: Annotated[int, Whole(1, 65535)] = Field(
        8080, description="Port of the data listener.", json_schema_extra=RESTART
    )
    max_connections: Annotated[int, Whole(16, 1_000_000)] = Field(
        default_factory=_default_connections,
        description="Open client connections; beyond, nobody else is let in.",
        json_schema_extra={"x-default": "0.4 × the open file limit"},
    )
    trusted_proxies: tuple[Annotated[IpNetwork, Network()], ...] = Field(
        (), description="Peers whose `x-forwarded-for` names the client: its last address that is none of these."
    )
    allow_anonymous: bool = Field(
        False, description="Without tenant files: serve every client without a key where others can reach it."
    )
    tls: Tls | None = Field(None, description="None: plain HTTP.", json_schema_extra=RESTART)
    hosts: tuple[HostName, ...] = Field(
        (),
        description="`Host` values that are answered, with any port where none is named; others get 421. Empty: any.",
    )


class AdminToken(Section):
    """A bearer token of the admin listener; the file holds only its hash."""

    id: Name = Field(description="Name of the token in logs.")
    sha256: Sha256 = Field(
        description="SHA-256 of the token, 64 hexadecimal digits.",
        json_schema_extra={"x-secret": True},
        repr=False,
    )
    role: Literal["read", "operate"] = Field(description="`read` looks; `operate` also changes things.")


class Admin(Section):
    """The admin listener: health, metrics, operations."""

    host: Annotated[str, Host()] = Field(
        "127.0.0.1",
        description="Address of the admin listener. Any but a loopback address needs `tokens`.",
        json_schema_extra=RESTART,
    )
    port: Annotated[int, Whole(1, 65535)] = Field(
        9090, description="Port of the admin listener.", json_schema_extra=RESTART
    )
    tokens: tuple[AdminToken, ...] = Field((), description="Who may use it. Empty: anyone who can reach it.")
    metrics_auth: bool = Field(False, description="Ask for a token on `/metrics` too.")


class Admission(Section):
    """Bounds of the whole gateway, and how it shuts down."""

    max_queued: Annotated[int, Whole(1, 1_000_000)] = Field(
        10000, description="Requests that may wait in all, then 503 `overloaded`."
    )
    max_queued_bytes: Annotated[int, Size(MIB, 64 * GIB)] = Field(
        512 * MIB, description="Request bodies held in memory in all, then 503 `overloaded`."
    )
    drain_lag_s: Annotated[float, Number(0, 300)] = Field(
        5.0,
        description="After SIGTERM: `/readyz` says 503 for so long before new connections are refused. A second later those on which nothing came are closed.",
    )
    drain_grace_s: Annotated[float, Number(1, 3600)] = Field(
        120.0, description="After SIGTERM: what has not ended by then is cut with an error frame."
    )
    ordering: Literal["by_length", "edf", "fcfs"] = Field(
        "by_length",
        description="Within one tenant and class: by urgency, short before long among equals; by urgency alone; or by arrival.",
    )
    shed: Literal["auto", "llmd", "off"] = Field(
        "auto",
        description="How `sheddable` classes are refused while a pool fills up: from 70 % on; early and steeply, as llm-d does; never.",
    )
    fairness: Fairness = all_defaults(Fairness)


class Upstream(Section):
    """How engines are spoken to."""

    forward_headers: tuple[Annotated[str, HeaderName()], ...] = Field(
        (), description="Client headers passed on to engines beside the built-in few. Protected names are refused."
    )
    probe_s: Annotated[float, Number(0.05, 60)] = Field(2.0, description="Period of the health probes.")
    scrape_s: Annotated[float, Number(0.05, 60)] = Field(
        1.0, description="Period in which engines are asked for their metrics, those that have any."
    )
    coalesce_s: Annotated[float, Number(0, 0.01)] = Field(
        0.001,
        description="When more of a stream comes within twice this time, and the process is not busy, it rests so long once all is"
        " passed on, and reads at once what has come meanwhile: less CPU, for tokens that may come so much later. 0: never.",
    )


class Retries(Section):
    """Placing a request again before its first byte."""

    max_attempts: Annotated[int, Whole(1, 4)] = Field(2, description="Attempts of one request, the first included.")


class Timeouts(Section):
    """Timers, before `scale`."""

    connect_s: EngineSide = Field(1.0, description="Connecting to an engine.")
    first_byte_s: EngineSide = Field(120.0, description="From dispatch to the first event of a stream.")
    idle_s: EngineSide = Field(30.0, description="Between two events of a stream.")
    total_s: EngineSide = Field(1800.0, description="One request, from its first byte to the last of its answer.")
    upstream_keepalive_s: EngineSide = Field(
        4.0, description="How long an idle connection to an engine is kept. Below the engine's own limit (vLLM: 5)."
    )
    client_header_s: ClientSide = Field(10.0, description="A client's request head.")
    client_body_s: ClientSide = Field(
        30.0, description="From then on a request body must have come at 1 KiB/s on average."
    )
    client_stall_s: ClientSide = Field(60.0, description="A client that reads nothing while there are bytes for it.")
    scale: Annotated[float, Number(0.05, 1, unit="")] = Field(
        1.0,
        description="Multiplies every timer of the gateway, fixed ones too. For tests.",
        json_schema_extra=RESTART,
    )


class Limits(Section):
    """Bounds on the wire."""

    body_bytes: Annotated[int, Size(KIB, 256 * MIB)] = Field(16 * MIB, description="One request body, else 413.")
    header_bytes: Annotated[int, Size(256, 32 * KIB)] = Field(8190, description="One header field, else 431.")
    headers: Annotated[int, Whole(8, 1024)] = Field(128, description="Header fields of a request, else 431.")
    sse_line_bytes: Annotated[int, Size(KIB, 256 * MIB)] = Field(
        4 * MIB, description="One line of an engine's event stream; longer ends the stream with an error."
    )
    stream_buffer_bytes: Annotated[int, Size(KIB, 64 * MIB)] = Field(
        256 * KIB, description="Bytes held for one slow reader before its engine is paused."
    )
    sse_keepalive_s: Annotated[float, Number(1, 300, off=True)] = Field(
        0.0, description="Comment lines on streams that wait, this often. The true status is lost then."
    )
    unknown_fields: Literal["reject", "strip"] = Field(
        "strip", description="Unknown fields of a request body: removed with a notice, or 400."
    )


class Telemetry(Section):
    """Logs and metrics. Prompts and secrets are never logged at any level."""

    tenant_labels: Annotated[int, Whole(1, 1000)] = Field(
        100,
        description="Tenants that have a label of their own in metrics, in the order they come; the rest is `other`.",
        json_schema_extra=RESTART,
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level of events on stderr."
    )
    log_format: Literal["json", "text"] = Field(
        "json", description="Form of the access log on stdout and of events on stderr."
    )
    journal: FilePath | None = Field(
        None,
        description="File the decision journal is written to, for `forebay replay`. Sizes and ids, no text.",
        json_schema_extra=RESTART,
    )
