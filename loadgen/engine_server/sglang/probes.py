"""SGLang's routes that do not generate: health, models, what the server is, its load and metrics, and its admin's.

Health is asked of the engine itself: it waits for any token that is given out, looking once a second, and is bad when none has
come in 20 s (`http_server.py`, with `SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION` as it is by default). An engine without work
answers with a token of its own.
"""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qs

import msgspec

from loadgen.engine_server.http import Request
from loadgen.engine_server.log import Entry
from loadgen.engine_server.probes import JSON, NOT_ALLOWED, TEXT, Answered, Probes

if TYPE_CHECKING:
    from loadgen.engine_server.sglang.metrics import SglangMetrics

VERSION = "0.5.10"  # the SGLang whose dialect is spoken; from 0.5.11 on the page size is a gauge of its own
HEALTH = frozenset({b"/health", b"/health_generate"})
LOOK_S = 1.0
PATIENCE_S = 20.0
PLAIN = (b"content-type", b"text/plain; charset=utf-8")


class SglangProbes(Probes):
    """Answers what monitors, gateways and admins ask of one engine."""

    admin = frozenset(
        {b"/get_server_info", b"/server_info", b"/v1/loads", b"/get_load", b"/flush_cache", b"/abort_request"}
    )
    paths = HEALTH | admin | {b"/ping", b"/v1/models", b"/get_model_info", b"/model_info", b"/metrics"}
    owner = "sglang"
    more_of_model: Mapping[str, object] = {}

    def handle(self, request: Request, entry: Entry) -> None:
        """Answer one; health when it is known."""
        starting = self._engine.faults.find("startup") is not None
        if request.path not in HEALTH or request.method != b"GET" or starting or self._engine.stopping:
            self._give(request, entry, self._answer(request))
        else:
            self._look_later(request, entry, time.monotonic())

    def _look_later(self, request: Request, entry: Entry, asked_s: float) -> None:
        asyncio.get_running_loop().call_later(LOOK_S, self._look, request, entry, asked_s)

    def _look(self, request: Request, entry: Entry, asked_s: float) -> None:
        engine, now = self._engine, time.monotonic()
        lives = engine.emitted_s > asked_s or not engine.exchanges or engine.faults.find("health_lie") is not None
        if request.connection.closed:
            engine.log.close(entry, "client left", now)
        elif lives or now - asked_s >= PATIENCE_S:
            self._give(request, entry, (200 if lives else 503, b"", TEXT))
        else:
            self._look_later(request, entry, asked_s)

    def _answer(self, request: Request) -> Answered:
        engine, path = self._engine, request.path
        if not self._allowed(request):
            return 405, NOT_ALLOWED, JSON
        if engine.faults.find("startup") is not None or (engine.stopping and path in HEALTH):
            return 503, b"", TEXT
        if path == b"/metrics":
            return self._metrics() if engine.options.has_metrics else (404, b'{"detail":"Not Found"}', JSON)
        if path == b"/ping":
            return 200, b"", TEXT
        if path == b"/flush_cache":
            return self._flush_cache()
        if path == b"/abort_request":
            return self._abort_request(request.body)
        return self._described(request)

    def _allowed(self, request: Request) -> bool:
        if request.path == b"/abort_request":
            return request.method == b"POST"
        return request.method in (b"GET", b"HEAD") or (request.method == b"POST" and request.path == b"/flush_cache")

    def _described(self, request: Request) -> Answered:
        """What the server is, and how loaded."""
        path = request.path
        if path == b"/v1/models":
            return 200, self._models(), JSON
        if path == b"/v1/loads":
            return self._loads(parse_qs(request.query.decode("latin-1")))
        if path == b"/get_load":
            load = self._load()
            old = {"num_reqs": load["num_total_reqs"], "num_waiting_reqs": load["num_waiting_reqs"]}
            return 200, msgspec.json.encode([{"dp_rank": 0, **old, "num_tokens": load["num_used_tokens"]}]), JSON
        info = self._model_info() if path in (b"/get_model_info", b"/model_info") else self._server_info()
        return 200, msgspec.json.encode(info), JSON

    def _model_info(self) -> dict[str, object]:
        name = self._engine.model_name
        sampling = {"preferred_sampling_params": None, "weight_version": "default"}
        return {"model_path": name, "tokenizer_path": name, "is_generation": True, **sampling}

    def _server_info(self) -> dict[str, object]:
        engine, settings = self._engine, self._engine.options.settings
        load = self._load()
        return {
            "model_path": engine.model_name,
            "served_model_name": engine.model_name,
            "host": engine.options.host,
            "port": engine.port,
            "context_length": settings.max_model_len,
            "page_size": settings.block_size,
            "max_running_requests": settings.max_num_seqs,
            "max_queued_requests": settings.max_num_queued_reqs,
            "chunked_prefill_size": settings.chunked_prefill_size,
            "enable_mixed_chunk": settings.enable_mixed_chunk,
            "disable_radix_cache": not settings.enable_prefix_caching,
            "enable_cache_report": engine.shows_cached,
            "enable_metrics": engine.options.has_metrics,
            "enable_priority_scheduling": settings.scheduling_policy == "priority",
            "max_total_num_tokens": load["max_total_num_tokens"],
            "internal_states": [{"last_gen_throughput": load["gen_throughput"]}],
            "version": VERSION,
        }

    def _load(self) -> dict[str, float]:
        engine, model = self._engine, self._engine.model
        now = cast("SglangMetrics", engine.metrics).gauges(model)
        return {
            "dp_rank": 0,
            "num_running_reqs": now.running,
            "num_waiting_reqs": now.waiting,
            "num_total_reqs": now.running + now.waiting,
            "num_used_tokens": now.used_tokens,
            "max_total_num_tokens": model.scheduler.kv.total * model.settings.block_size,
            "token_usage": now.usage,
            "gen_throughput": now.tokens_per_s,
            "cache_hit_rate": now.hit_rate,
            "max_running_requests": model.settings.max_num_seqs,
        }

    def _loads(self, query: dict[str, list[str]]) -> Answered:
        """Sections (`include`) beside the core one are not simulated."""
        ranks = [load for load in (self._load(),) if query.get("dp_rank", ["0"]) == ["0"]]
        if query.get("format") == ["prometheus"]:
            lines = [f'sglang_{name}{{dp_rank="0"}} {value}' for load in ranks for name, value in load.items()]
            return 200, "".join(f"{line}\n" for line in lines if "sglang_dp_rank" not in line).encode(), TEXT
        body = {"timestamp": datetime.now(UTC).isoformat(), "version": VERSION, "dp_rank_count": 1, "loads": ranks}
        return 200, msgspec.json.encode(body), JSON

    def _flush_cache(self) -> Answered:
        model = self._engine.model
        flushed = not model.running and not model.waiting and self._engine.reset_prefix_cache()
        words = (
            b"Cache flushed.\nPlease check backend logs for more details. "
            b"(When there are running or waiting requests, the operation will not be performed.)\n"
        )
        return 200 if flushed else 400, words, PLAIN

    def _abort_request(self, body: bytes) -> Answered:
        """Every request whose id begins so, or all."""
        try:
            asked = msgspec.json.decode(body, type=_Abort)
        except msgspec.MsgspecError as error:
            text = {"object": "error", "message": str(error), "type": "Bad Request", "param": None, "code": 400}
            return 400, msgspec.json.encode(text), JSON
        for exchange in list(self._engine.exchanges):
            if asked.abort_all or exchange.id.startswith(asked.rid):
                exchange.cut_short()
        return 200, b"", TEXT


class _Abort(msgspec.Struct):
    rid: str = ""
    abort_all: bool = False
