"""`GET /metrics` under vLLM's names (engines.md 5.1), from the model's true state."""

import time
from collections.abc import Iterable, Sequence

from loadgen.engine_server.log import Entry
from loadgen.engine_server.options import EngineOptions
from loadgen.engine_server.pacemaker import LAG_BUCKETS_S, Lag
from loadgen.sim.engine import EngineModel

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
E2E_BUCKETS_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)


class Histogram:
    """Counts of observations in fixed buckets."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """One observation, or several equal ones."""
        index = next((place for place, bound in enumerate(self.buckets) if value <= bound), len(self.buckets))
        self.counts[index] += times
        self.total += value * times


class Page:
    """Lines of an exposition, all with the same `labels` in front. Counters have twins that say when they began."""

    def __init__(self, labels: str) -> None:
        self._labels = labels
        self._started_s = time.time()

    def one(self, name: str, kind: str, samples: Sequence[tuple[str, float]]) -> Iterable[str]:
        """A metric: further labels, with a comma in front, and the value of each of its series."""
        suffix = "_total" if kind == "counter" else ""
        yield f"# HELP {name}{suffix} Simulated."
        yield f"# TYPE {name}{suffix} {kind}"
        for labels, value in samples:
            yield f"{name}{suffix}{{{self._labels}{labels}}} {float(value)}"
        if kind == "counter":
            yield f"# HELP {name}_created Simulated."
            yield f"# TYPE {name}_created gauge"
            for labels, _ in samples:
                yield f"{name}_created{{{self._labels}{labels}}} {self._started_s}"

    def histogram(self, name: str, histogram: Histogram, labels: str = "") -> Iterable[str]:
        """A histogram of one series."""
        yield f"# HELP {name} Simulated."
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip((*histogram.buckets, float("inf")), histogram.counts, strict=True):
            total += count
            edge = "+Inf" if bound == float("inf") else str(bound)
            yield f'{name}_bucket{{{self._labels}{labels},le="{edge}"}} {float(total)}'
        yield f"{name}_count{{{self._labels}{labels}}} {float(total)}"
        yield f"{name}_sum{{{self._labels}{labels}}} {histogram.total}"

    def emit_lag(self, lag: Lag) -> Iterable[str]:
        """How late tokens were given out; no engine's metric."""
        late = Histogram(LAG_BUCKETS_S)
        late.counts, late.total = lag.counts, lag.total_s
        return self.histogram("forebay_engine_emit_lag_seconds", late)


class EngineMetrics:
    """What the server counts beside the model: ends by reason, refusals, latencies."""

    def __init__(self, model_name: str, options: EngineOptions) -> None:
        self.finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.refused: dict[str, int] = dict.fromkeys(("max_num_queued_reqs", "max_num_queued_tokens"), 0)
        self.ttft = Histogram(TTFT_BUCKETS_S)
        self.e2e = Histogram(E2E_BUCKETS_S)
        page = Page(f'model_name="{model_name}",engine="0"')
        self._one, self._histogram, self._emit_lag = page.one, page.histogram, page.emit_lag

    def stepped(self, model: EngineModel) -> None:
        """Everything is read from the model when it is asked for."""

    def ended(self, entry: Entry, reasons: list[str], now: float) -> None:
        """Count it."""
        for reason in reasons:
            self.finished["stop" if reason == "tool_calls" else reason] += 1
        if entry.first_s is not None:
            self.ttft.observe(entry.first_s - entry.accepted_s)
        self.e2e.observe(now - entry.accepted_s)

    def render(self, model: EngineModel, lag: Lag) -> bytes:
        """The exposition text."""
        lines = [*self._gauges(model), *self._counters(model), *self._config(model), *self._histograms(lag)]
        return ("\n".join(lines) + "\n").encode()

    def _gauges(self, model: EngineModel) -> Iterable[str]:
        waiting = len(model.waiting)
        yield from self._one("vllm:num_requests_running", "gauge", [("", len(model.running))])
        yield from self._one("vllm:num_requests_waiting", "gauge", [("", waiting)])
        reasons = [(',reason="capacity"', waiting), (',reason="deferred"', 0)]
        yield from self._one("vllm:num_requests_waiting_by_reason", "gauge", reasons)
        yield from self._one("vllm:kv_cache_usage_perc", "gauge", [("", model.kv_usage)])
        states = [("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)]
        sleep = [(f',sleep_state="{state}"', value) for state, value in states]
        yield from self._one("vllm:engine_sleep_state", "gauge", sleep)

    def _counters(self, model: EngineModel) -> Iterable[str]:
        scheduler = model.scheduler
        yield from self._one("vllm:prefix_cache_queries", "counter", [("", scheduler.lookup_tokens)])
        yield from self._one("vllm:prefix_cache_hits", "counter", [("", scheduler.hit_tokens)])
        yield from self._one("vllm:prompt_tokens", "counter", [("", model.prompt_tokens)])
        yield from self._one("vllm:prompt_tokens_cached", "counter", [("", model.cached_tokens)])
        computed = model.prompt_tokens - model.cached_tokens
        sources = {"local_compute": computed, "local_cache_hit": model.cached_tokens, "external_kv_transfer": 0}
        by_source = [(f',source="{name}"', value) for name, value in sources.items()]
        yield from self._one("vllm:prompt_tokens_by_source", "counter", by_source)
        yield from self._one("vllm:generation_tokens", "counter", [("", model.generated_tokens)])
        yield from self._one("vllm:num_preemptions", "counter", [("", scheduler.preemptions)])
        ends = [(f',finished_reason="{reason}"', count) for reason, count in self.finished.items()]
        yield from self._one("vllm:request_success", "counter", ends)
        refused = [(f',reason="{reason}"', count) for reason, count in self.refused.items()]
        yield from self._one("vllm:admission_rejections", "counter", refused)
        yield from self._one("forebay_engine_steps", "counter", [("", model.steps)])

    def _config(self, model: EngineModel) -> Iterable[str]:
        settings, blocks = model.settings, model.scheduler.kv.total
        config = {
            "block_size": settings.block_size,
            "num_gpu_blocks": blocks,
            "kv_cache_size_tokens": blocks * settings.block_size,
            "enable_prefix_caching": settings.enable_prefix_caching,
            "hash_block_size": settings.block_size,
            "cache_hit_alignment_tokens": settings.block_size,
            "cache_dtype": "auto",
            "prefix_caching_hash_algo": "xxhash",
        }
        labels = "".join(f',{key}="{value}"' for key, value in config.items())
        yield from self._one("vllm:cache_config_info", "gauge", [(labels, 1)])

    def _histograms(self, lag: Lag) -> Iterable[str]:
        yield from self._histogram("vllm:time_to_first_token_seconds", self.ttft)
        yield from self._histogram("vllm:e2e_request_latency_seconds", self.e2e)
        yield from self._emit_lag(lag)
