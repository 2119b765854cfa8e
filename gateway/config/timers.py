"""Every timer of the gateway in one record, configured and fixed ones alike, already multiplied by `timeouts.scale`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Seconds. Sources: http.md 3.5 and 10, where each figure has its reason."""

    # engine side
    connect_s: float
    tls_s: float
    write_stall_s: float  # no progress while a request is written to an engine
    first_byte_s: float  # from dispatch to the first event of a stream
    idle_s: float  # between two chunks
    total_s: float
    upstream_keepalive_s: float  # how long an idle connection to an engine is kept
    stale_socket_s: float  # a reused connection that closes this soon after the write was already dead
    probe_s: float
    scrape_s: float
    # client side
    first_byte_of_connection_s: float
    head_s: float
    keepalive_idle_s: float
    body_gap_s: float  # silence between two pieces of a body
    body_rate_after_s: float  # from then on a body must have come at 1 KiB/s on average
    body_total_s: float
    client_stall_s: float  # the client reads nothing while there are bytes for it
    lingering_s: float  # reading on after an early error answer, so that the answer arrives
    sse_keepalive_s: float  # 0 = off
    # the gateway itself
    sweep_s: float  # period of the sweep that enforces the longer timers
    drain_lag_s: float
    drain_idle_s: float  # a connection on which nothing comes for so long is closed while the gateway drains
    drain_grace_s: float
