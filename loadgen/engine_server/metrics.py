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
ITL_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
TOKEN_BUCKETS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
STEP_BUCKETS = (1.0, *(float(1 << power) for power in range(3, 15)))
FEW_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
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


OF_TIMES = {
    "vllm:time_to_first_token_seconds": TTFT_BUCKETS_S,
    "vllm:inter_token_latency_seconds": ITL_BUCKETS_S,
    "vllm:request_time_per_output_token_seconds": ITL_BUCKETS_S,
    "vllm:e2e_request_latency_seconds": E2E_BUCKETS_S,
    **{f"vllm:request_{part}_time_seconds": E2E_BUCKETS_S for part in ("queue", "inference", "prefill", "decode")},
}
OF_SIZES = {
    **{f"vllm:request_{part}_tokens": TOKEN_BUCKETS for part in ("prompt", "generation", "prefill_kv_computed")},
    "vllm:request_params_max_tokens": TOKEN_BUCKETS,
    "vllm:request_params_n": FEW_BUCKETS,
    "vllm:request_num_preemptions": FEW_BUCKETS,
    "vllm:iteration_tokens_total": STEP_BUCKETS,
}


class EngineMetrics:
    """What the server counts beside the model: ends by reason, refusals, latencies."""

    def __init__(self, model_name: str, options: EngineOptions) -> None:
        self.finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.refused: dict[str, int] = dict.fromkeys(("max_num_queued_reqs", "max_num_queued_tokens"), 0)
        self._histograms = {
            **{name: Histogram(buckets) for name, buckets in OF_TIMES.items()},
            **{name: Histogram(buckets) for name, buckets in OF_SIZES.items()},
        }
        self._scheduled = 0  # tokens in steps so far
        page = Page(f'model_name="{model_name}",engine="0"')
        self._one, self._histogram, self._emit_lag = page.one, page.histogram, page.emit_lag

    def stepped(self, model: EngineModel) -> None:
        """Count what the step held; all else is read from the model when it is asked for."""
        self._see("vllm:iteration_tokens_total", model.scheduled_tokens - self._scheduled)
        self._scheduled = model.scheduled_tokens

    def ended(self, entry: Entry, reasons: list[str], now: float) -> None:
        """Count it. Pauses between tokens are told as the request's mean."""
        for reason in reasons:
            self.finished["stop" if reason == "tool_calls" else reason] += 1
        self._see("vllm:e2e_request_latency_seconds", now - entry.accepted_s)
        if entry.first_s is None or entry.started_s is None:
            return
        self._see_times(entry, entry.started_s, entry.first_s, now)
        self._see_sizes(entry)
        pauses = entry.output_tokens - len(reasons)
        if pauses > 0:
            pause_s = (now - entry.first_s) / pauses * len(reasons)
            self._see("vllm:inter_token_latency_seconds", pause_s, pauses)
            self._see("vllm:request_time_per_output_token_seconds", pause_s)

    def _see_times(self, entry: Entry, started_s: float, first_s: float, now: float) -> None:
        self._see("vllm:time_to_first_token_seconds", first_s - entry.accepted_s)
        self._see("vllm:request_queue_time_seconds", started_s - entry.accepted_s)
        self._see("vllm:request_prefill_time_seconds", first_s - started_s)
        self._see("vllm:request_decode_time_seconds", now - first_s)
        self._see("vllm:request_inference_time_seconds", now - started_s)

    def _see_sizes(self, entry: Entry) -> None:
        self._see("vllm:request_prompt_tokens", entry.prompt_tokens)
        self._see("vllm:request_generation_tokens", entry.output_tokens)
        self._see("vllm:request_prefill_kv_computed_tokens", entry.prompt_tokens - (entry.cached_tokens or 0))
        self._see("vllm:request_params_n", entry.sequences)
        self._see("vllm:request_num_preemptions", entry.preemptions)
        if entry.max_tokens is not None:
            self._see("vllm:request_params_max_tokens", entry.max_tokens)

    def _see(self, name: str, value: float, times: int = 1) -> None:
        self._histograms[name].observe(value, times)

    def render(self, model: EngineModel, lag: Lag) -> bytes:
        """The exposition text."""
        lines = [*self._gauges(model), *self._counters(model), *self._config(model), *self._histogram_lines(lag)]
        return ("\n".join(lines) + "\n").encode()

    def _gauges(self, model: EngineModel) -> Iterable[str]:
        waiting = len(model.waiting)
        yield from self._one("vllm:num_requests_running", "gauge", [("", len(model.running))])
        yield from self._one("vllm:num_requests_waiting", "gauge", [("", waiting)])
        reasons = [(',reason="capacity"', waiting), (',reason="deferred"', 0)]
        yield from self._one("vllm:num_requests_waiting_by_reason", "gauge", reasons)
        yield from self._one("vllm:kv_cache_usage_perc", "gauge", [("", model.kv_usage)])
        states = [("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)]
        yield from self._one("vllm:sleep_mode_operations_in_flight", "gauge", [("", 0)])
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
        kept = ("device", "host", "p2p", "disk", "external_unspecified")
        cached = [(f',source="{name}"', model.cached_tokens if name == "device" else 0) for name in kept]
        yield from self._one("vllm:prompt_tokens_cached_by_source", "counter", cached)
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

    def _histogram_lines(self, lag: Lag) -> Iterable[str]:
        for name, histogram in self._histograms.items():
            yield from self._histogram(name, histogram)
        yield from self._emit_lag(lag)
