"""What a load is sent to and how, who is told of it, and how well the client itself was."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, get_args
from urllib.parse import unquote, urlsplit

from loadgen.report.record import Sample
from loadgen.workload.bodies import Api as Api
from loadgen.workload.dialog import Control

APIS: tuple[Api, ...] = get_args(Api)
LengthControl = Control
OTHERS = ""  # the key of the targets of every tenant that has none of its own


# What is wrong exactly is not repeated: it may be a part of the password.
_UNREADABLE = (
    "a URL that cannot be read: its port is a number, and in a password / ? # [ ] @ are written as %2F and so on"
)


class ClientError(Exception):
    """A load that cannot be sent, or a worker that died; the message says what, where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server for one tenant.

    `url` is the base URL, http or https, with or without a path prefix and with or without `/v1` at its end; user and
    password in it become basic authorization. `key` is the API key ("": none). `headers` go with each request and win
    over the client's own. Neither key, nor headers, nor user and password stand in the repr. ClientError on a URL or
    an API that cannot be used.
    """

    url: str = field(repr=False)
    model: str
    api: Api = "chat"
    key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    shown: str = field(init=False, default="")  # the base URL without user and password

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise ClientError(_UNREADABLE) from error
        host = parts.hostname or ""
        place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
        object.__setattr__(self, "shown", f"{parts.scheme}://{place}{parts.path.rstrip('/')}")
        if parts.scheme not in ("http", "https") or not host:
            told = self.shown if parts.netloc else self.url.rpartition("@")[2].partition("?")[0]
            raise ClientError(f"{told!r} is no URL of a server: it begins with http:// or https:// and a host")
        if parts.query or parts.fragment:
            raise ClientError(f"{self.shown!r} has more behind its path, which would not be sent: end it before ? or #")
        if self.api not in APIS:
            raise ClientError(f"{self.api!r} is no API of a server: there are {', '.join(APIS)}")
        for name, value in (("API key", self.key), *self.headers.items()):
            if not value.isascii() or not value.isprintable():
                raise ClientError(f"{self.shown}: {name} holds characters that no header can carry")

    @property
    def server(self) -> str:
        """What the server is called in reports, whoever names it: `shown` without `/v1`."""
        return self.shown.removesuffix("/v1")

    @property
    def userinfo(self) -> str:
        """User and password of the URL, "" without."""
        parts = urlsplit(self.url)
        return "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How a load is sent. Times in seconds.

    `timeout_s`: from the intended arrival to the last byte. `connect_s`: for one connection. `max_open`: requests open
    at once; one that would be too many is `dropped`, never delayed (shared out over `workers`). `retries`: of a request
    that was refused with 429, 503 or 529 or found no connection; at once, or after `Retry-After` with
    `honour_retry_after`. `length_control`: what makes answers as long as planned. `drain_s`: after the last arrival,
    None: `timeout_s`. `lead_s`: from `run` to time 0 of the schedule. `workers`: processes.
    """

    timeout_s: float = 120.0
    connect_s: float = 5.0
    max_open: int = 20_000
    retries: int = 0
    honour_retry_after: bool = False
    length_control: LengthControl = "marker"
    drain_s: float | None = None
    lead_s: float = 0.25
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("timeout_s", "connect_s", "max_open", "workers"):
            if getattr(self, name) <= 0:
                raise ClientError(f"{name}: more than 0, not {getattr(self, name)}")
        if self.retries < 0:
            raise ClientError(f"retries: 0 or more, not {self.retries}")


class Watcher(Protocol):
    """Is told of every request as it goes out and as it ends, in this process, whatever the number of workers."""

    def sent(self, sample: Sample) -> None:
        """A request went out: `sched_s` and `sent_s` stand."""

    def ended(self, sample: Sample) -> None:
        """A request ended; its outcome stands. One that was dropped ends without having been sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPoint:
    """One worker over one second that ended at `t_s` of the run: the largest loop lag, the share of a core it used."""

    t_s: float
    worker: int
    loop_lag_ms: float
    cpu_share: float


@dataclass(slots=True, kw_only=True)
class Health:
    """How well the client itself is (loadgen.md 8.2), over all workers.

    `loop_lag_p99_ms`: of the run so far, sampled each 20 ms. `send_lag_p99_ms`: of the last 1,000 requests of each
    worker. `cpu_share`: of a core, the busiest worker's over the last 5 s; `cpu_worst`: its highest so far.
    `local_failures`: what this machine refused (file descriptors, ports), by name of the error. `open`: requests now.
    """

    open: int = 0
    loop_lag_p99_ms: float = 0.0
    send_lag_p99_ms: float = 0.0
    cpu_share: float = 0.0
    cpu_worst: float = 0.0
    local_failures: dict[str, int] = field(default_factory=dict)
    points: list[HealthPoint] = field(default_factory=list)
