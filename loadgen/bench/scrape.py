"""`--scrape URL`: what gateway and engines say of themselves, once a second, on the clock of the run.

It never disturbs: a page that does not come is a gap in the series and a line in the warnings. The first look is before
the first request and the last one after the last, so what others have asked of the server before is not counted.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import aiohttp

from loadgen.bench import exposition
from loadgen.bench.exits import BenchError, Exit
from loadgen.bench.exposition import Series, total
from loadgen.bench.options import shown
from loadgen.client import Target
from loadgen.report.folder import Scrape

PERIOD_S = 1.0
PATIENCE_S = 5.0
SETTLE_S = 0.1
BEFORE_S = -1.0  # what was said before the run began
GATEWAY = "forebay_requests_inflight"  # has it from its start on
# What is read, and under which names, the first that is there: those of Forebay, vLLM, SGLang.
RUNNING = (GATEWAY, "vllm:num_requests_running", "sglang:num_running_reqs")
WAITING = ("forebay_requests_queued", "vllm:num_requests_waiting", "sglang:num_queue_reqs")
KV_USAGE = ("vllm:kv_cache_usage_perc", "sglang:token_usage")
TOKENS = "forebay_tokens_total"
COUNTERS = {
    "requests": ("forebay_requests_received_total", "vllm:request_success_total", "sglang:num_requests_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "output_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "cached_tokens": ("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "queried_tokens": ("vllm:prefix_cache_queries_total",),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
}
KINDS = {"prompt_tokens": "prompt", "output_tokens": "output", "cached_tokens": "cached"}  # labels of TOKENS
EMIT_LAG = "forebay_engine_emit_lag_seconds"
NAMES = frozenset((*RUNNING, *WAITING, *KV_USAGE, TOKENS, f"{EMIT_LAG}_bucket", *sum(COUNTERS.values(), ())))

Failed = (aiohttp.ClientError, OSError, TimeoutError)


class Page:
    """One page, with what it said so far in `looks`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        """`url` without a path is that of `/metrics`."""
        self.looks: list[Scrape] = []
        self.failures: Counter[str] = Counter()
        self._url = url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/metrics"
        self.name = Target(url=self._url.partition("?")[0].rstrip("/").removesuffix("/metrics"), model="").server
        self._session = session
        self._first: Series = {}

    async def begin(self) -> None:
        """Read it once. BenchError when it cannot be read, or is not what is known."""
        try:
            self._first = await self._read()
        except Failed as error:
            raise BenchError(f"--scrape {shown(self._url)}: {_words(error)}", Exit.UNREACHABLE) from error
        if not any(total(self._first, name) is not None for name in RUNNING):
            unknown = "these are not the metrics of Forebay, vLLM or SGLang"
            raise BenchError(f"--scrape {shown(self._url)}: {unknown}", Exit.UNREACHABLE)

    async def look(self, now_s: Callable[[], float]) -> None:
        """One more row, at the time the answer came."""
        try:
            series = await self._read()
        except Failed as error:
            self.failures[_words(error)] += 1
            return
        self.looks.append(self._row(series, now_s()))

    async def idle(self) -> bool:
        """Whether nothing runs or waits there."""
        try:
            return not _busy(await self._read())
        except Failed:
            return False

    async def end(self, now_s: Callable[[], float]) -> None:
        """The last row: a gateway takes a moment to count what has just ended."""
        until_s = time.monotonic() + PATIENCE_S
        while not await self.idle() and time.monotonic() < until_s:
            await asyncio.sleep(SETTLE_S)
        await self.look(now_s)

    def _row(self, series: Series, t_s: float) -> Scrape:
        counts = {field: _first_of(series, names) for field, names in COUNTERS.items()}
        gateway = GATEWAY in series
        if gateway:
            counts["requests"] = counts["requests"] or 0.0  # has no series before its first one
            counts |= {field: total(series, TOKENS, kind=kind) or 0.0 for field, kind in KINDS.items()}
        lag_s = exposition.above(exposition.grown(series, self._first), EMIT_LAG, 0.99)
        return Scrape(
            t_s=round(max(t_s, BEFORE_S), 3),
            name=self.name,
            running=_first_of(series, RUNNING),
            waiting=_first_of(series, WAITING),
            kv_usage=_kv(series),
            gateway=gateway,
            emit_lag_p99_ms=None if lag_s is None else lag_s * 1e3,
            **counts,
        )

    async def _read(self) -> Series:
        async with asyncio.timeout(PATIENCE_S), self._session.get(self._url) as answer:
            answer.raise_for_status()
            return exposition.read(await answer.text(), NAMES)


async def watch(pages: Sequence[Page], now_s: Callable[[], float]) -> None:
    """Look at every page each second, until cancelled."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    while True:
        await asyncio.gather(*(page.look(now_s) for page in pages))
        due_s = max(due_s + PERIOD_S, loop.time())
        await asyncio.sleep(due_s - loop.time())


async def until_idle(pages: Sequence[Page], within_s: float) -> bool:
    """Wait until nothing runs or waits on any page; False when that takes too long."""
    until_s = time.monotonic() + within_s
    while not all([await page.idle() for page in pages]):
        if time.monotonic() > until_s:
            return False
        await asyncio.sleep(PERIOD_S / 2)
    return True


def _busy(series: Series) -> bool:
    return any(total(series, name) for name in (*RUNNING, *WAITING))


def _first_of(series: Series, names: Sequence[str]) -> float | None:
    return next((value for name in names if (value := total(series, name)) is not None), None)


def _kv(series: Series) -> float | None:
    """The mean where a page has several."""
    values = [value for name in KV_USAGE for _, value in series.get(name, ())]
    return sum(values) / len(values) if values else None


def _words(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"status {error.status}"
    if isinstance(error, TimeoutError):
        return f"no answer within {PATIENCE_S:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        code = error.os_error.errno
        return f"{os.strerror(code) if code and code > 0 else error.os_error}; is the server there?"
    return str(error) or type(error).__name__
