"""How well does the client itself do? Loop lag, CPU, what this machine refused: a client that is late measures itself.

A run makes much and throws away little: a full garbage collection would stop the loop for as long as there are samples.
So collection is off while it runs, but for what is young, once a second.
"""

import asyncio
import gc
import math
import resource
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from loadgen.client.values import Health, HealthPoint
from loadgen.report.stats import percentile

SAMPLE_S = 0.02
SECOND_S = 1.0
CPU_WINDOW = 5  # seconds
KEPT_LAGS = 1000


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """One second of one worker. Lags in ms; CPU as a share of a core, over that second and over the last five."""

    t_s: float
    worker: int
    open: int
    loop_lags_ms: list[float]
    send_lag_p99_ms: float
    cpu_share: float
    cpu_share_5s: float
    full: bool  # five seconds have passed
    local_failures: dict[str, int]


class Monitor:
    """Samples the loop it is entered in. `async with` it around a run; `on_pulse` gets a `Pulse` each second."""

    def __init__(
        self,
        worker: int,
        now_s: Callable[[], float],
        on_pulse: Callable[[Pulse], None],
        state: Callable[[], tuple[int, dict[str, int]]],
    ) -> None:
        """`now_s` is the clock of the run; `state` gives the number of open requests and the local failures."""
        self.send_lags_ms: deque[float] = deque(maxlen=KEPT_LAGS)
        self._worker = worker
        self._now_s = now_s
        self._on_pulse = on_pulse
        self._state = state
        self._lags = array("d")
        self._cpu_s: deque[tuple[float, float]] = deque(maxlen=CPU_WINDOW + 1)  # (clock, CPU time)
        self._timer: asyncio.TimerHandle | None = None
        self._asked_s = 0.0

    async def __aenter__(self) -> Self:
        self._collects = gc.isenabled()
        gc.disable()
        raise_file_limit()
        self._cpu_s.append((time.monotonic(), time.process_time()))
        self._wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pulse(time.monotonic())
        if self._collects:
            gc.enable()

    def _wait(self) -> None:
        self._asked_s = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self._sample)

    def _sample(self) -> None:
        now = time.monotonic()
        self._lags.append(max(0.0, now - self._asked_s - SAMPLE_S) * 1000)
        if now - self._cpu_s[-1][0] >= SECOND_S:
            self._pulse(now)
            gc.collect(0)
        self._wait()

    def _pulse(self, now: float) -> None:
        cpu_s = time.process_time()
        (last_s, last_cpu_s), (first_s, first_cpu_s) = self._cpu_s[-1], self._cpu_s[0]
        self._cpu_s.append((now, cpu_s))
        opened, failures = self._state()
        pulse = Pulse(
            t_s=self._now_s(),
            worker=self._worker,
            open=opened,
            loop_lags_ms=list(self._lags),
            send_lag_p99_ms=percentile(sorted(self.send_lags_ms), 0.99) or 0.0,
            cpu_share=(cpu_s - last_cpu_s) / max(now - last_s, 1e-3),
            cpu_share_5s=(cpu_s - first_cpu_s) / max(now - first_s, 1e-3),
            full=now - first_s >= CPU_WINDOW * SECOND_S,
            local_failures=failures,
        )
        del self._lags[:]
        self._on_pulse(pulse)


class Healths:
    """What all pulses of a run come to."""

    def __init__(self) -> None:
        """None has come."""
        self._latest: dict[int, Pulse] = {}
        self._lags: Counter[int] = Counter()  # by tenths of a millisecond: the cost of a look must not grow
        self._worst = 0.0
        self._points: list[HealthPoint] = []

    def add(self, pulse: Pulse) -> None:
        """One second of one worker."""
        self._latest[pulse.worker] = pulse
        self._lags.update(math.ceil(lag_ms * 10) for lag_ms in pulse.loop_lags_ms)
        if pulse.full:
            self._worst = max(self._worst, pulse.cpu_share_5s)
        self._points.append(
            HealthPoint(
                t_s=pulse.t_s,
                worker=pulse.worker,
                loop_lag_ms=max(pulse.loop_lags_ms, default=0.0),
                cpu_share=pulse.cpu_share,
            )
        )

    @property
    def health(self) -> Health:
        """All of them together."""
        latest = self._latest.values()
        busiest = max((one.cpu_share_5s for one in latest), default=0.0)
        failures = sum((Counter(one.local_failures) for one in latest), Counter())
        return Health(
            open=sum(one.open for one in latest),
            loop_lag_p99_ms=self._lag_p99_ms(),
            send_lag_p99_ms=max((one.send_lag_p99_ms for one in latest), default=0.0),
            cpu_share=busiest,
            cpu_worst=self._worst or busiest,
            local_failures=dict(failures),
            points=list(self._points),
        )

    def _lag_p99_ms(self) -> float:
        above, seen = self._lags.total() // 100, 0
        for tenths in sorted(self._lags, reverse=True):
            seen += self._lags[tenths]
            if seen > above:
                return tenths / 10
        return 0.0


def raise_file_limit() -> None:
    """As many open files as this process may ask for: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # what this system calls unlimited may be more than it allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
