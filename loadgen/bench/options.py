"""What the command line of `forebay bench` says, and which of it does not go together."""

import re
from pathlib import Path
from typing import Literal

import msgspec

from loadgen.bench.exits import BenchError
from loadgen.bench.validity import RULES
from loadgen.client import Api, ClientError, LengthControl, Target
from loadgen.workload.fields import seconds

_DURATION = re.compile(r"[0-9]+(\.[0-9]+)?(ms|s|m)")


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Names are the options'. Times in s; None: what the scenario says."""

    scenario: str | None = None
    urls: tuple[str, ...] = ()
    model: str | None = None
    api: Api = "chat"
    workers: int = 1
    timeout_s: float = 120.0
    connect_timeout_s: float = 5.0
    max_open: int = 20_000
    retries: int = 0
    honour_retry_after: bool = False
    scrape: tuple[str, ...] = ()
    probe: float | None = None
    salt: str | None = None
    prime: bool = False
    length_control: LengthControl | Literal["auto"] | None = None
    scale: float | None = None
    rates: tuple[str, ...] = ()  # NAME=X: factors of single tenants
    tail_s: float | None = None
    seed: int | None = None
    out: Path | None = None
    keys: Path | None = None
    changes: tuple[str, ...] = ()
    schedule: Path | None = None
    trace: Path | None = None
    allow: tuple[str, ...] = ()
    find_max_rate: bool = False
    start: float = 0.25
    probe_s: float = 60.0
    probe_requests: int = 500
    searched: tuple[str, ...] = ()  # tenants whose rate is searched; () for all of them
    html: bool = True
    json: bool = False
    quiet: bool = False
    dry_run: bool = False


def duration(text: str) -> float:
    """`500ms`, `30s`, `10m` in s. ValueError, which names what is expected."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration like 500ms, 30s or 10m")
    return seconds(text)


def check(options: BenchOptions) -> None:
    """BenchError for options that cannot be, or do not go together."""
    unknown = [rule for rule in options.allow if rule not in RULES]
    if unknown:
        raise BenchError(f"--allow {unknown[0]}: no such rule; there are {', '.join(RULES)}")
    for flag, value in (("--timeout", options.timeout_s), ("--connect-timeout", options.connect_timeout_s)):
        if value <= 0:
            raise BenchError(f"{flag}: more than 0")
    for flag, urls in (("--url", options.urls), ("--scrape", options.scrape)):
        for url in urls:
            check_server(flag, url)
    _check_fixed(options)


def check_server(where: str, url: str) -> None:
    """BenchError for a URL that is none of a server; it stands at `where`."""
    try:
        Target(url=url, model="")
    except ClientError as error:
        raise BenchError(f"{where}: {error}") from error


def shown(url: str) -> str:
    """The URL without userinfo and query, where secrets may stand."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _check_fixed(options: BenchOptions) -> None:
    """What a saved schedule, or a search, rules out."""
    changed = options.scale is not None or options.rates or options.tail_s is not None or options.seed is not None
    if options.schedule is not None and (changed or options.find_max_rate):
        raise BenchError("--schedule: the requests are given; no rate, tail, seed or search goes with it")
    if len(options.searched) > 1:
        raise BenchError("--scale-tenant: one tenant's rate is searched; give the others a factor, NAME=X")
    if options.find_max_rate and options.dry_run:
        raise BenchError("--dry-run says what one run would offer; it does not go with --find-max-rate")
