"""One request until its outcome stands: its tries, its patience, and what was read of its answer and not yet looked at."""

import asyncio
import math
import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import intern

from loadgen import tasks
from loadgen.client.answer import Answer, Page, Refusal, Stream, Whole
from loadgen.client.connection import MALFORMED, Connection
from loadgen.client.idle import Idle
from loadgen.client.pool import Pool
from loadgen.client.values import Api
from loadgen.report.record import Outcome, Sample, Try

_RETRIED = frozenset((408, 409, 429))  # and 5xx, as OpenAI's and Anthropic's own clients do
_BACKOFF_S, _MOST_BACKOFF_S = 0.5, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The bytes of a request and where they go. `api` None: no generation. `keep`: the body of the answer is wanted."""

    pool: Pool
    head: bytes
    body: bytes
    api: Api | None
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What all requests of a run have in common. `zero`: time 0 of the run on the monotonic clock."""

    zero: float
    timeout_s: float
    retries: int = 0
    honour_retry_after: bool = False
    idle: Idle = field(default_factory=Idle)


def after(delay_s: float, what: Callable[[], None]) -> asyncio.TimerHandle:
    """Call it in about that time. Timers have whole milliseconds, and may be one early: whoever is called looks again."""
    return asyncio.get_running_loop().call_later(max(1, math.ceil(delay_s * 1000)) / 1000, what)


class Exchange:
    """One request. `done` is called once, with this exchange, when the sample's outcome stands."""

    __slots__ = (
        "_answer",
        "_complete",
        "_connection",
        "_done",
        "_judged",
        "_leaves",
        "_looking",
        "_opening",
        "_over",
        "_patience",
        "_pause",
        "_resent",
        "_retry_after_s",
        "_rules",
        "_try_sent_s",
        "_until",
        "_why",
        "datas",
        "kept",
        "request",
        "said",
        "sample",
        "stamps",
    )

    def __init__(
        self,
        sample: Sample,
        request: Request,
        rules: Rules,
        done: Callable[["Exchange"], None],
        said: list[str] | None = None,
    ) -> None:
        """`sample` has its intended time. `said` gets the text of the answer."""
        self.said = said
        self.sample = sample
        self.request = request
        self.stamps = array("d")
        self.datas: list[bytes] = []
        self.kept: list[bytes] = []
        self._rules = rules
        self._done = done
        self._answer: Answer | None = None
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._until = self._try_sent_s = self._retry_after_s = 0.0
        self._over = self._complete = self._judged = self._looking = self._resent = self._leaves = False
        self._why = ""

    def begin(self, leaves_s: float | None) -> None:
        """Send it. Its client leaves `leaves_s` after the intended time, unless it is over by then."""
        rules, sample = self._rules, self.sample
        self._leaves = leaves_s is not None and leaves_s <= rules.timeout_s
        patience_s = leaves_s if self._leaves and leaves_s is not None else rules.timeout_s
        self._until = rules.zero + sample.sched_s + patience_s
        now = time.monotonic()
        sample.sent_s = now - rules.zero
        self._patience = after(self._until - now, self._out_of_patience)
        self._try()

    def end(self, outcome: Outcome) -> None:
        """End it now, whatever it has come to."""
        if not self._judged:
            if not self._over or self._pause is not None:
                self.sample.end_s = time.monotonic() - self._rules.zero
            self._let_go()
            self.look()
            self._conclude(outcome)

    # ---- one try

    def _try(self) -> None:
        self._pause = None
        self._over = self._resent = False
        self._try_sent_s = time.monotonic() - self._rules.zero
        connection = self.request.pool.take()
        if connection is None:
            self._open()
        else:
            self._send(connection)

    def _open(self) -> None:
        self._opening = tasks.start(self._opened(), f"connection for request {self.sample.id}")

    async def _opened(self) -> None:
        try:
            connection = await self.request.pool.open()
        except OSError as error:
            self._opening = None
            self._finish(time.monotonic(), why=_said(error))
        else:
            self._opening = None
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        if connection.transport.is_closing():
            self._finish(time.monotonic(), why="the connection was closed")
            return
        self._connection = connection
        connection.send(self, self.request.head, self.request.body)

    # ---- its answer, inside the read callback

    def on_head(self, now: float, status: int, fields: dict[bytes, bytes]) -> None:
        """The head has come."""
        sample = self.sample
        sample.head_s = self._run_s(now)
        sample.status = status
        sample.request_id = _field(fields, b"x-forebay-request-id", b"x-request-id", b"request-id")
        sample.pool = intern(_field(fields, b"x-forebay-pool"))
        sample.gateway_class = intern(_field(fields, b"x-forebay-class"))
        sample.attempts = int(_number(fields, b"x-forebay-attempts"))
        if b"x-forebay-queue-ms" in fields:
            sample.queued_s = _number(fields, b"x-forebay-queue-ms") / 1000
        sample.reason = _field(fields, b"x-forebay-reason")
        self._retry_after_s = _number(fields, b"retry-after")
        api, kind = self.request.api, fields.get(b"content-type", b"").lower()
        if status != 200:
            self._answer = Refusal(sample)
        elif api is None:
            self._answer = Page()
        elif b"event-stream" in kind or (sample.streamed and b"json" not in kind):
            self._answer = Stream(api, sample, self.said)
        else:
            self._answer = Whole(api, sample, self.said)

    def on_crowded(self) -> None:
        """Many reads wait to be looked at."""
        if not self._looking:
            self._looking = True
            self._rules.idle.add(self.look)

    def on_end(self, now: float) -> None:
        """The message is complete."""
        self._connection = None
        self._finish(now, complete=True)

    def on_lost(self, now: float, why: str, *, received: bool) -> None:
        """The connection ended before it was."""
        connection, self._connection = self._connection, None
        if not received and connection is not None and connection.reused and not self._resent:
            self._resent = True  # the server closed an idle connection just as it was used again
            self._open()
        else:
            self._finish(now, why=why)

    # ---- what it came to

    def look(self) -> None:
        """Look at what has been read since the last time."""
        self._looking = False
        sample, zero, answer = self.sample, self._rules.zero, self._answer
        if answer is None or not self.datas:
            return
        if not sample.byte_s:
            sample.byte_s = self._run_s(self.stamps[0])
        for when, data in zip(self.stamps, self.datas, strict=True):
            answer.take(when - zero, data)
        if self.request.keep:
            self.kept += self.datas
        del self.stamps[:]
        self.datas.clear()

    def _finish(self, now: float, *, complete: bool = False, why: str = "") -> None:
        """A try is over; what it was is found out in idle time."""
        self._over = True
        self._complete, self._why = complete, why
        self.sample.end_s = self._run_s(now)
        self._rules.idle.add(self._judge)

    def _run_s(self, now: float) -> float:
        """Seconds of the run; what came in one read has one number, and samples stay small."""
        head_s, run_s = self.sample.head_s, now - self._rules.zero
        return head_s if head_s == run_s else run_s

    def _judge(self) -> None:
        if self._judged:
            return
        self.look()
        outcome = self._outcome()
        if not self._again(outcome):
            self._conclude(outcome)

    def _outcome(self) -> Outcome:
        if self._answer is None:
            self.sample.reason = self._why[:80]
            return Outcome.ERROR_PROTOCOL if self._why == MALFORMED else Outcome.ERROR_CONNECT
        outcome = self._answer.end(complete=self._complete)
        if outcome is Outcome.TRUNCATED and self._why == MALFORMED:
            outcome = Outcome.ERROR_PROTOCOL
        if outcome in (Outcome.TRUNCATED, Outcome.ERROR_PROTOCOL):
            self.sample.reason = self.sample.reason or self._why[:80]
        return outcome

    def _again(self, outcome: Outcome) -> bool:
        """Whether it is tried once more."""
        sample, rules = self.sample, self._rules
        retried = outcome is Outcome.ERROR_CONNECT or sample.status in _RETRIED or sample.status >= 500
        if sample.tries > rules.retries or not retried:
            return False
        delay_s = min(_BACKOFF_S * 2 ** (sample.tries - 1), _MOST_BACKOFF_S)
        if rules.honour_retry_after and self._retry_after_s:
            delay_s = self._retry_after_s
        if time.monotonic() + delay_s >= self._until:
            return False
        this = Try(
            sent_s=self._try_sent_s,
            end_s=sample.end_s,
            status=sample.status,
            outcome=outcome,
            reason=sample.reason,
        )
        sample.earlier += (this,)
        sample.tries += 1
        sample.status = sample.attempts = 0
        sample.head_s = sample.byte_s = sample.queued_s = self._retry_after_s = 0.0
        sample.reason = ""
        self._answer = None
        if self.said is not None:
            self.said.clear()
        self._pause = after(delay_s, self._try)
        return True

    def _out_of_patience(self) -> None:
        now = time.monotonic()
        if now < self._until:
            self._patience = after(self._until - now, self._out_of_patience)
        elif not self._over or self._pause is not None:
            self.end(Outcome.CANCELLED if self._leaves else Outcome.TIMEOUT)

    def _conclude(self, outcome: Outcome) -> None:
        self._judged = True
        self.sample.outcome = outcome
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self._answer = None
        self._done(self)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        if self._opening is not None:
            self._opening.cancel()
        if self._pause is not None:
            self._pause.cancel()


def _field(fields: dict[bytes, bytes], *names: bytes) -> str:
    for name in names:
        if name in fields:
            return fields[name].decode("latin-1")[:128]
    return ""


def _number(fields: dict[bytes, bytes], name: bytes) -> float:
    if name not in fields:
        return 0.0
    try:
        return max(0.0, float(fields[name]))
    except ValueError:
        return 0.0


def _said(error: OSError) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # loops have words of their own, with the address in them
    return error.strerror or str(error) or type(error).__name__
