"""`GET /metrics` under SGLang's names (engines.md 5.2), from the model's true state.

Counters move when a request ends, as SGLang's do. With `--decode-log-interval N` the gauges move as SGLang's do too: with
each step that has prompt tokens in it, and each N steps that have none, so they are old between them and stand still when the
last request has ended, until `IDLE_S` later.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from loadgen.engine_server.log import Entry
from loadgen.engine_server.metrics import Histogram, Page
from loadgen.engine_server.options import EngineOptions
from loadgen.engine_server.pacemaker import Lag
from loadgen.sim.engine import EngineModel

TTFT_BUCKETS_S = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    *(2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
)
E2E_BUCKETS_S = (*TTFT_BUCKETS_S, 600.0, 1200.0, 1800.0, 2400.0)
ITL_BUCKETS_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8),
    *(1.0, 2.0, 4.0, 6.0, 8.0),
)
QUEUE_BUCKETS_S = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(
        70.0,
        80.0,
        90.0,
        *(100.0 * times for times in range(1, 11)),
        1200.0,
        1400.0,
        1600.0,
        1800.0,
        2000.0,
        2500.0,
        3000.0,
    ),
)
IDLE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The figures of one moment. Rates and counts of events are those since the moment before."""

    running: int = 0
    waiting: int = 0
    used_tokens: int = 0
    usage: float = 0.0
    hit_rate: float = 0.0
    tokens_per_s: float = 0.0
    retracted: int = 0


class Moments:
    """Takes the figures of the model, and knows what has happened since the last time."""

    def __init__(self) -> None:
        self._taken_s = time.monotonic()
        self._generated = self._looked = self._hit = self._retracted = 0
        self._hit_rate = 0.0

    def take(self, model: EngineModel, now: float) -> Gauges:
        """The figures of now."""
        scheduler = model.scheduler
        looked = scheduler.lookup_tokens - self._looked
        if looked:
            self._hit_rate = (scheduler.hit_tokens - self._hit) / looked
        retracted = scheduler.preemptions - self._retracted
        passed_s = now - self._taken_s
        rate = (model.generated_tokens - self._generated) / passed_s if passed_s > 0 else 0.0
        self._taken_s, self._generated, self._retracted = now, model.generated_tokens, scheduler.preemptions
        self._looked, self._hit = scheduler.lookup_tokens, scheduler.hit_tokens
        return Gauges(
            running=len(model.running),
            waiting=len(model.waiting),
            used_tokens=scheduler.kv.referenced * model.settings.block_size,
            usage=model.kv_usage,
            hit_rate=self._hit_rate,
            tokens_per_s=rate,
            retracted=retracted,
        )


class SglangMetrics:
    """What the server counts beside the model, and what of the model its page shows."""

    def __init__(self, model_name: str, options: EngineOptions) -> None:
        self.refused: dict[str, int] = dict.fromkeys(("max_num_queued_reqs", "max_num_queued_tokens"), 0)
        self._page = Page(f'model_name="{model_name}",engine_type="unified",tp_rank="0",pp_rank="0"')
        self._totals = dict.fromkeys(("prompt", "generation", "cached", "requests", "aborted"), 0)
        self._ttft, self._e2e = Histogram(TTFT_BUCKETS_S), Histogram(E2E_BUCKETS_S)
        self._itl, self._queue = Histogram(ITL_BUCKETS_S), Histogram(QUEUE_BUCKETS_S)
        self._interval = options.decode_log_interval
        self._moments = Moments()
        self._gauges = Gauges()
        self._gauges_s = time.monotonic()
        self._prefills = self._decodes = 0  # steps: all with prompt tokens, and those without since the gauges moved

    def stepped(self, model: EngineModel) -> None:
        """Move the gauges if it is time."""
        if not self._interval:
            return
        self._decodes += 1
        if model.prefill_steps > self._prefills or self._decodes >= self._interval:
            self._move(model)

    def ended(self, entry: Entry, reasons: list[str], now: float) -> None:
        """Count it. Pauses between tokens are told as the request's mean."""
        totals = self._totals
        totals["aborted"] += entry.ended == "client left" or "abort" in reasons
        totals["prompt"] += entry.prompt_tokens
        totals["generation"] += entry.output_tokens
        totals["cached"] += entry.cached_tokens or 0
        totals["requests"] += 1
        self._e2e.observe(now - entry.accepted_s)
        if entry.started_s is not None:
            self._queue.observe(entry.started_s - entry.accepted_s)
        if entry.first_s is not None:
            self._ttft.observe(entry.first_s - entry.accepted_s)
            pauses = entry.output_tokens - len(reasons)
            if entry.stream and pauses > 0:
                self._itl.observe((now - entry.first_s) / pauses * len(reasons), pauses)

    def render(self, model: EngineModel, lag: Lag) -> bytes:
        """The exposition text."""
        idle = not model.running and not model.waiting
        if not self._interval or (idle and time.monotonic() - self._gauges_s >= IDLE_S):
            self._move(model)
        lines = [
            *self._gauge_lines(model),
            *self._counter_lines(model),
            *self._histogram_lines(),
            *self._page.emit_lag(lag),
        ]
        return ("\n".join(lines) + "\n").encode()

    def gauges(self, model: EngineModel) -> Gauges:
        """The figures of this moment, whatever the page shows."""
        return self._moments.take(model, time.monotonic())

    def _move(self, model: EngineModel) -> None:
        self._gauges_s = time.monotonic()
        self._gauges = self._moments.take(model, self._gauges_s)
        self._prefills, self._decodes = model.prefill_steps, 0

    def _gauge_lines(self, model: EngineModel) -> Iterable[str]:
        shown, blocks, size = self._gauges, model.scheduler.kv.total, model.settings.block_size
        gauges = {
            "num_running_reqs": shown.running,
            "num_queue_reqs": shown.waiting,
            "num_grammar_queue_reqs": 0,
            "token_usage": shown.usage,
            "num_used_tokens": shown.used_tokens,
            "cache_hit_rate": shown.hit_rate,
            "gen_throughput": shown.tokens_per_s,
            "num_retracted_reqs": shown.retracted,
            "num_paused_reqs": 0,
            "max_total_num_tokens": blocks * size,
        }
        for name, value in gauges.items():
            yield from self._page.one(f"sglang:{name}", "gauge", [("", value)])
        pages = f',page_size="{size}",num_pages="{blocks}"'
        yield from self._page.one("sglang:cache_config_info", "gauge", [(pages, 1)])

    def _counter_lines(self, model: EngineModel) -> Iterable[str]:
        totals = self._totals
        counters = {
            "sglang:prompt_tokens": [("", totals["prompt"])],
            "sglang:generation_tokens": [("", totals["generation"])],
            "sglang:cached_tokens": [(',cache_source="device"', totals["cached"])],
            "sglang:num_requests": [("", totals["requests"])],
            "sglang:num_aborted_requests": [("", totals["aborted"])],
            "sglang:num_retracted_requests": [("", model.scheduler.preemptions)],
            "forebay_engine_steps": [("", model.steps)],
        }
        for name, samples in counters.items():
            yield from self._page.one(name, "counter", samples)

    def _histogram_lines(self) -> Iterable[str]:
        yield from self._page.histogram("sglang:time_to_first_token_seconds", self._ttft)
        yield from self._page.histogram("sglang:inter_token_latency_seconds", self._itl)
        yield from self._page.histogram("sglang:queue_time_seconds", self._queue)
        yield from self._page.histogram("sglang:e2e_request_latency_seconds", self._e2e)
