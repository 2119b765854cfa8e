"""How an attempt can end, and what it keeps to until then."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.dialects.verdict import Bounce
from gateway.errors import GatewayError
from policies.decisions import Reason
from policies.events import Cause


class How(Enum):
    """How an attempt ended."""

    COMPLETED = "completed"
    BOUNCED = "bounced"  # nothing reached the client: may be placed again
    REFUSED = "refused"  # the engine's own error, to be told to the client
    BROKEN = "broken"  # the client has part of an answer


@dataclass(slots=True)
class End:
    """The end of an attempt; `cause` goes with BOUNCED, `error` with REFUSED, `reason` with BROKEN.

    `stale`: a pooled connection had died unnoticed, and the engine never saw the request.
    """

    how: How
    cause: Cause = Cause.RESET
    retry_after_s: float | None = None
    error: GatewayError | None = None
    reason: Reason = Reason.BACKEND_STREAM_INTERRUPTED
    stale: bool = False


COMPLETED: Final = End(How.COMPLETED)


def end_of(verdict: Bounce | GatewayError) -> End:
    """The end of an attempt whose error has been judged."""
    if isinstance(verdict, Bounce):
        return End(How.BOUNCED, cause=verdict.cause, retry_after_s=verdict.retry_after_s)
    return End(How.REFUSED, error=verdict)


@dataclass(frozen=True, slots=True)
class Rules:
    """What every attempt of a gateway keeps to; times in seconds."""

    idle_s: float  # longest gap between two events
    stale_s: float  # a reused connection that closes this soon after the write was dead before it
    write_stall_s: float  # longest time without progress while a request is written
    after_end_s: float  # how long a stream may stay open behind its end marker
    tail_bytes: int  # of an unfinished event that are held
    line_bytes: int  # of one line of a stream
